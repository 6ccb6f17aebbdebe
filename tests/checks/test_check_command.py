"""``ms-recipe check`` as a process: words, JSON, exit codes, --explain, time; and docs/checks.md up to date."""

from __future__ import annotations

import json
import os
import time

from conftest import ROOT, clean_env, ms_recipe

from fake_files import QWEN3_8B, hf_folder
from ms_recipe.checks import CHECKS
from ms_recipe.checks.docs import table


def test_the_page_is_the_codes():
    assert (ROOT / "docs" / "checks.md").read_text(encoding="utf-8") == table(), \
        "python -m ms_recipe.checks.docs docs/checks.md"


def test_every_check_says_all():
    for c in CHECKS.values():
        assert c.explain, c.id
        assert c.example, c.id
        assert c.upstream, c.id
        assert c.source.startswith(("M ", "L ", "HF", "transformers", "this project")), c.id


def test_all_problems_at_once(work):
    (work / "r.yaml").write_text("extends: qwen3-8b\nparallel: {tp: 3, pp: 8}\npretrain: {global_batch_size: 30, min_lr: 1}\n")
    done = ms_recipe("check", "r.yaml", "--no-files", cwd=work)
    assert done.code == 3
    for part in ("r.yaml:2: parallel.tp", "r.yaml:2: parallel.pp", "r.yaml:3: pretrain.min_lr", "not checked: files"):
        assert part in done.out, part
    done = ms_recipe("check", "r.yaml", "--no-files", "--json", cwd=work)
    assert done.code == 3
    report = json.loads(done.out)
    assert report["ok"] is False
    assert report["counts"]["error"] == len([f for f in report["findings"] if f["severity"] == "error"]) >= 4


def test_usage(work):
    assert ms_recipe("check", cwd=work).code == 2
    assert ms_recipe("check", "--explain", "layout-layer", cwd=work).code == 2
    assert "did you mean layout-layers?" in ms_recipe("check", "--explain", "layout-layer", cwd=work).err
    done = ms_recipe("check", "--explain", "layout-layers", cwd=work)
    assert done.code == 0
    assert "transformer_block.py:50" in done.out
    assert json.loads(ms_recipe("check", "--explain", "batch-global", "--json", cwd=work).out)["severity"] == "error"


def test_a_hostfile(work):
    (work / "hosts").write_text("a slots=4\nb slots=4\n")
    done = ms_recipe("check", "qwen3-0.6b", "--nodes", "hosts", "--no-files", "--stage", "pretrain", cwd=work)
    assert done.code == 0, done.out
    assert "on 8 NPUs, pretrain: 0 errors" in done.out


def test_an_8b_folder_within_the_time(work):
    """0.6 s of processor time for the whole process (the clock would measure the machine's other work too)."""
    hf_folder(work / "hf", QWEN3_8B, shards=5)
    (work / "raw.jsonl").write_text('{"text": "a"}\n' * 1000)
    (work / "r.yaml").write_text("extends: qwen3-8b\npaths: {hf: ./hf, raw_data: ./raw.jsonl}\n")
    before, start = os.times(), time.perf_counter()
    done = ms_recipe("check", "r.yaml", "--json", cwd=work, env=clean_env())
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert [f["id"] for f in json.loads(done.out)["findings"] if f["severity"] == "error" and f["id"] != "out-space"] == []
    assert min(used, time.perf_counter() - start) < 0.6
