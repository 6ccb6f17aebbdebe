"""HF folders: config, shards, index, tokenizer files, by headers."""

from __future__ import annotations

import json
import time

import pytest

from fake_files import QWEN3_06B, QWEN3_8B, hf_folder
from ms_recipe.formats import hf


def test_an_8b_folder_is_read_fast(tmp_path):
    folder = hf_folder(tmp_path / "hf", QWEN3_8B, shards=5)
    started = time.perf_counter()
    found = hf.inspect(folder)
    assert time.perf_counter() - started < 0.5
    assert found.problems == []
    assert hf.compare_tensors(found) == []
    assert sum(t.bytes for t in found.tensors.values()) == 2 * 8_190_735_360
    assert found.tensors["lm_head.weight"].shape == (151936, 4096)


def test_a_tied_model_in_one_file(tmp_path):
    found = hf.inspect(hf_folder(tmp_path / "hf", QWEN3_06B))
    assert found.complete
    assert "lm_head.weight" not in found.tensors
    assert sum(t.bytes for t in found.tensors.values()) == 2 * 596_049_920


def test_everything_that_is_missing_is_named(tmp_path):
    folder = hf_folder(tmp_path / "hf", QWEN3_06B, shards=3, tokenizer=False)
    (folder / "model-00002-of-00003.safetensors").unlink()
    (folder / "config.json").unlink()
    found = hf.inspect(folder)
    assert len(found.problems) == 4
    for name in ("config.json", "model-00002-of-00003.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert any(name in p for p in found.problems), name


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_torn_weights(tmp_path, size):
    folder = hf_folder(tmp_path / "hf", QWEN3_06B)
    file = folder / "model.safetensors"
    with file.open("r+b") as out:
        out.truncate(size if size >= 0 else file.stat().st_size - 1)
    assert "torn" in hf.inspect(folder).weight_problems[0]


def test_a_tensor_that_is_not_where_the_index_says(tmp_path):
    folder = hf_folder(tmp_path / "hf", QWEN3_06B, shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "first model.norm.weight" in hf.inspect(folder).weight_problems[0]


def test_weights_of_another_shape_than_the_config(tmp_path):
    folder = hf_folder(tmp_path / "hf", QWEN3_06B)
    (folder / "config.json").write_text(json.dumps({**QWEN3_06B, "num_hidden_layers": 29, "head_dim": 64}))
    found = hf.compare_tensors(hf.inspect(folder))
    assert "11 tensors that config.json needs" in found[0]
    assert "q_proj" in found[1]


def test_a_git_lfs_pointer(tmp_path):
    folder = hf_folder(tmp_path / "hf", QWEN3_06B)
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "git lfs pull" in hf.inspect(folder).weight_problems[0]


def test_bad_config(tmp_path):
    folder = hf_folder(tmp_path / "hf", QWEN3_06B)
    (folder / "config.json").write_text("{not json")
    assert "config.json cannot be read" in hf.inspect(folder).config_problems[0]
    (folder / "config.json").write_text("[]")
    assert "not a JSON object" in hf.inspect(folder).config_problems[0]
    assert hf.inspect(tmp_path / "nowhere").problems == [f"{tmp_path}/nowhere does not exist"]
