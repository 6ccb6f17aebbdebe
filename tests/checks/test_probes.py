"""The checks against what upstream's own validators did with 144 argument lists (parse, validate_args, micro-batch
calculator, TransformerConfig; recorded from MindSpeed-LLM 2.1.0 on Megatron core_r0.8.0)."""

from __future__ import annotations

import json

import pytest
from conftest import DATA

from checks_support import Unknown, ids, invoked, laid_over
from ms_recipe.checks import check_invocation

PROBES = json.loads((DATA / "checks" / "probes.json").read_text())

#: Where the checks refuse what upstream's validators let through: the failure comes later, or never and wrong.
STRICTER = {
    "8b: PP=16 > world/TP (clamped)": "layout-layers",  # 32 of 36 layers are built
    "06: PP=8, 28 layers (not divisible)": "layout-layers",
    "8b: PP=8, 36 layers (not divisible)": "layout-layers",
    "06: ffn-hidden-size 3070 TP=4": "shape-ffn",  # fails when the MLP is built
    "06: vocab 151937 TP=2": "shape-vocab",  # fails when the embedding is built
    "06: seq-length 4095 TP=2 SP": "seq-parallel-length",  # fails in the first scatter
    "06: no lr": "lr-missing",  # the scheduler fails, after the model is built
    "06: neither train-iters nor train-samples": "iters-missing",
    "06: lr-warmup-iters >= train-iters": "lr-warmup-length",
    "06: lr-warmup-fraction 1.5": "lr-warmup-length",
    "06: no data-path": "data-missing",  # becomes True, the dataset builder fails
}

#: What upstream changes silently, and the warning that says so.
SILENT = {
    "06: TP=16 > world=8 (clamped)": "layout-tp-clamped",
    "8b: PP=16 > world/TP (clamped)": "layout-pp-clamped",
    "06: sequence-parallel TP=1": "seq-parallel-tp1",
    "06: no --kv-channels (hidden/heads=64, HF head_dim=128)": "model-kv-channels",
    "06: no --ffn-hidden-size": "model-ffn",
    "06: no --num-query-groups": "model-groups",
    "06: no --group-query-attention": "model-groups",
    "06: no GBS": "batch-global-default",
    "06: no --save": "save-missing",
    "06: neither fp16 nor bf16": "dtype-none",
    "06: fp16 only": "dtype-nan",
    "06: recompute full block 99 > layers": "recompute-layers-above",
    "06: recompute-method only": "recompute-inert",
    "06: CP=2 ulysses no flash-attn": "cp-flash",
    "06: attention-mask-type general ignored": "seq-mask-type",
    "06: use-mc2 silently off": "model-forced-off",
    "06: no --use-mcore-models": "model-legacy",
    "06: mock-data + data-path": "data-mock",
    "06: no split": "data-split",
    "06: no position-embedding-type, use-rotary": "model-rope",
    "06: swap-attention": "model-swap-attention",
}


def _check(case):
    base = PROBES["bases"][case["base"]]
    args = {k: v for k, v in base["args"].items() if k not in case["removed"]}
    args = laid_over(args, case["add"], base["entry"])
    env = {k: v for k, v in {**base["env"], **case["env"]}.items() if v is not None}
    stage = {"pretrain_gpt.py": "pretrain"}.get(base["entry"], "tune_lora" if "lora" in case["base"] else "tune_full")
    return check_invocation(invoked(args, stage, base["entry"], case["world"], env), case["world"])


@pytest.mark.parametrize("case", PROBES["cases"], ids=lambda c: c["case"])
def test_as_upstream(case):
    try:
        report = _check(case)
    except Unknown:
        assert case["outcome"] == "parse"
        return
    assert case["outcome"] != "parse"
    found = ids(report)
    if case["case"] in STRICTER:
        assert case["outcome"] == "ok"
        assert found == [STRICTER[case["case"]]]
    else:
        assert bool(found) == (case["outcome"] != "ok"), (found, case)
    if case["case"] in SILENT:
        assert SILENT[case["case"]] in ids(report, "warning")


def test_all_probes_are_there():
    assert len(PROBES["cases"]) == 144
    assert {*STRICTER, *SILENT} <= {c["case"] for c in PROBES["cases"]}
