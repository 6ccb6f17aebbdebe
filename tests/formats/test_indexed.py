"""Indexed datasets: header against sizes."""

from __future__ import annotations

import pytest

from fake_files import indexed_dataset
from ms_recipe.formats import indexed


@pytest.mark.parametrize(("code", "name"), [(4, "int32"), (8, "uint16")])
def test_a_whole_dataset(tmp_path, code, name):
    data = indexed.inspect(indexed_dataset(tmp_path / "d_text_document", [[1, 2, 3], [70], [5, 6]], code))
    assert data.problems == []
    assert (data.documents, data.sequences, data.tokens, data.dtype) == (3, 3, 6, name)
    assert indexed.sample_max_token(data) == 70
    assert indexed.sample_max_token(data, windows=2, tokens=1) == 70


def test_both_files_are_named_when_missing(tmp_path):
    assert indexed.inspect(tmp_path / "d").problems == [f"{tmp_path}/d.bin does not exist", f"{tmp_path}/d.idx does not exist"]


def test_torn_and_foreign_files(tmp_path):
    prefix = indexed_dataset(tmp_path / "d", [[1, 2, 3]])
    idx, bin_ = tmp_path / "d.idx", tmp_path / "d.bin"
    whole = idx.read_bytes()
    bin_.write_bytes(bin_.read_bytes()[:-1])
    assert "has 11 bytes, its index speaks of 12" in indexed.inspect(prefix).problems[0]
    idx.write_bytes(whole[:-8])
    assert "torn" in indexed.inspect(prefix).problems[0]
    idx.write_bytes(whole[:12])
    assert "less than its header" in indexed.inspect(prefix).problems[0]
    idx.write_bytes(b"idx\n")
    assert "not an index" in indexed.inspect(prefix).problems[0]


def test_no_documents(tmp_path):
    data = indexed.inspect(indexed_dataset(tmp_path / "d", []))
    assert (data.problems, data.documents, data.tokens) == ([], 0, 0)
    assert indexed.sample_max_token(data) is None
