"""The golden tests run on the stub upstream here."""

from __future__ import annotations

import pytest

import golden_runs as golden
from ms_recipe import backends


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> golden.Tree:
    return golden.Tree("stub", backends.stub_tree(), tmp_path_factory.mktemp("stub"))
