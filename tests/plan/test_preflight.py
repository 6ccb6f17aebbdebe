"""The memory model against ``ms-recipe preflight --activations``: what upstream's own layers keep, at full size.

data/plan/preflight.json holds its figures for 14 layouts (recorded from MindSpeed-LLM 2.1.0 on Megatron core_r0.8.0 behind
the cpu backend). With MS_RECIPE_TREE two drawn layouts are asked anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import DATA, clean_env, ms_recipe
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ms_recipe.checks import check_recipe
from ms_recipe.plan import plan_recipe
from ms_recipe.plan.memory import again_bytes, kept_bytes
from ms_recipe.recipe import load_recipe

RECORDED = json.loads((DATA / "plan" / "preflight.json").read_text())
TREE = os.environ.get("MS_RECIPE_TREE", "")
TOLERANCE = 0.001


def compare(plan, index, counted):
    """Parameters, gradients and optimizer bytes exactly; what is kept within the tolerance."""
    stage = plan.stages[index]
    assert stage.parameters == counted["parameters"]
    assert stage.weights == counted["weights"]
    assert stage.gradients == counted["gradients"]
    assert stage.optimizer == counted["optimizer_distributed" if plan.shape.distributed else "optimizer_plain"]
    assert counted["optimizer_plain"] == 12 * stage.parameters
    kept, logits = kept_bytes(plan.shape, index)
    assert kept + logits == pytest.approx(counted["kept"], rel=TOLERANCE)
    assert stage.in_flight == counted["in_flight"] / counted["chunks"]
    if counted["chunks"] == 1:  # with a virtual pipeline preflight counts the last stage's logits once a chunk
        total = int(stage.in_flight * kept) + logits + again_bytes(plan.shape, index)
        assert total == pytest.approx(counted["total"], rel=TOLERANCE)


@pytest.mark.parametrize("row", RECORDED, ids=lambda r: " ".join([r["recipe"], *r["sets"]]))
def test_recorded(row):
    plan = plan_recipe(load_recipe(row["recipe"], sets=row["sets"]))
    assert len(row["stages"]) == plan.shape.pp
    for index, counted in row["stages"].items():
        compare(plan, int(index), counted)


@pytest.mark.torch
@pytest.mark.skipif(not (TREE and (Path(TREE) / "megatron/training").is_dir()), reason="needs MS_RECIPE_TREE")
def test_drawn(tmp_path):
    drawn: list[list[str]] = []

    @settings(max_examples=12, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(st.fixed_dictionaries({
        "parallel.tp": st.sampled_from([1, 2, 4]), "parallel.pp": st.sampled_from([1, 2, 4]),
        "parallel.sequence_parallel": st.booleans(), "pretrain.micro_batch_size": st.sampled_from([1, 2]),
        "pretrain.use_distributed_optimizer": st.sampled_from([True, None])}))
    def collect(values):
        sets = [f"{k}={json.dumps(v)}" for k, v in values.items()]
        if sets not in drawn and check_recipe(load_recipe("qwen3-0.6b", sets=sets), ["pretrain"], look_at_files=False).ok:
            drawn.append(sets)

    collect()
    for sets in drawn[-2:]:
        words = [w for s in sets for w in ("--set", s)]
        done = ms_recipe("preflight", "qwen3-0.6b", *words, "--activations", "--json", cwd=tmp_path,
                         env=clean_env(MS_RECIPE_TREE=TREE), timeout=400)
        assert done.code == 0, done.err
        plan = plan_recipe(load_recipe("qwen3-0.6b", sets=sets))
        for kind in json.loads(done.out)["kinds"]:
            compare(plan, kind["pp"], {**kind, "kept": kind["activations"]["per_micro_batch"], **kind["activations"]})
