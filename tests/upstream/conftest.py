"""Tests of the upstream room, and, when MS_RECIPE_TREE names an assembled tree, the golden tests on the pinned upstream."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import golden_runs as golden

collect_ignore = [] if os.environ.get("MS_RECIPE_TREE") else ["test_golden.py", "test_layouts.py", "test_stages.py"]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> golden.Tree:
    """A copy of the tree (upstream writes caches and logs into it)."""
    source = Path(os.environ["MS_RECIPE_TREE"]).resolve()
    work = tmp_path_factory.mktemp("upstream")
    pin = "qwen3-0day" if "qwen3-0day" in str(source) else "mcore-0.8"
    for name in (source.name, "MindSpeed"):
        shutil.copytree(source.parent / name, work / pin / name, symlinks=True,
                        ignore=shutil.ignore_patterns(".git", "__pycache__", "docs", "tests_extend"))  # fmt: skip
    return golden.Tree("pinned", work / pin / source.name, work, "pinned")
