"""``plan``: known sizes, layouts and their reasons, the command."""

from __future__ import annotations

import json
import time

import pytest
from conftest import ms_recipe

from ms_recipe.checks.effective import divisors
from ms_recipe.errors import RecipeError
from ms_recipe.plan import plan_recipe
from ms_recipe.plan.memory import peak, total_parameters
from ms_recipe.plan.summary import parse_size
from ms_recipe.recipe import load_recipe

GIB = 2**30


def planned(name, *sets, **named):
    return plan_recipe(load_recipe(name, sets=list(sets)), **named)


@pytest.mark.parametrize(("name", "parameters"), [("qwen3-0.6b", 596_049_920), ("qwen3-8b", 8_190_735_360)])
def test_parameters_are_the_models(name, parameters):
    """As the HF files hold them, in every layout."""
    assert planned(name).parameters == parameters
    assert total_parameters(planned(name, "parallel.tp=4", "parallel.pp=2").shape) == parameters


def test_stages_of_8b_pp4():
    """What upstream built on 16 ranks: 2,358,847,744 + 2 x 1,736,517,888 + 2,358,851,840 parameters."""
    stages = planned("qwen3-8b").stages
    assert [s.parameters for s in stages] == [2_358_847_744, 1_736_517_888, 1_736_517_888, 2_358_851_840]
    assert [s.in_flight for s in stages] == [4, 3, 2, 1]


def test_a_tied_model_in_two_stages_holds_its_embedding_twice():
    one, two = planned("qwen3-0.6b"), planned("qwen3-0.6b", "parallel.pp=2")
    assert sum(s.parameters for s in two.stages) == one.stages[0].parameters + 151936 * 1024


def test_upstreams_hardware():
    """0.6B and 8B train on one A2 server of 8 x 64 GiB, as upstream documents; the 2 x 4 recipe fits as well."""
    for name in ("qwen3-0.6b", "qwen3-8b", "qwen3-8b-2x4"):
        plan = planned(name)
        assert max(s.total for s in plan.stages) + plan.reserve < 64 * GIB, name
        assert any((x.tp, x.pp, x.cp) == (plan.shape.tp, plan.shape.pp, plan.shape.cp) for x in plan.layouts.good)
    assert not planned("qwen3-8b", "parallel.pp=1", memory="32GiB").layouts.good[:1] or \
        planned("qwen3-8b", memory="32GiB").layouts.good[0].peak < 29 * GIB


def test_the_distributed_optimizer_shares_its_states():
    plain, shared = planned("qwen3-0.6b", "pretrain.use_distributed_optimizer=null"), planned("qwen3-0.6b")
    assert plain.stages[0].optimizer == 12 * 596_049_920
    assert shared.stages[0].optimizer == 12 * 596_049_920 // 8
    assert plain.checkpoint() == shared.checkpoint() == {"converted": 2 * 596_049_920, "training": 14 * 596_049_920}


def test_more_recomputation_less_memory():
    full = ("pretrain.recompute_granularity=full", "pretrain.recompute_num_layers=1")
    none, selective, block, uniform = (peak(planned("qwen3-8b", *s).shape) for s in (
        (), ("pretrain.recompute_granularity=selective",), (*full, "pretrain.recompute_method=block"),
        (*full, "pretrain.recompute_method=uniform")))
    assert uniform < block < none
    assert selective < none


def test_uneven_stages():
    plan = planned("qwen3-0.6b", "parallel.pp=8", 'pretrain.num_layer_list="3,4,4,4,4,4,4,1"')
    assert [s.layers for s in plan.stages] == [3, 4, 4, 4, 4, 4, 4, 1]


def test_layouts_and_their_reasons():
    layouts = planned("qwen3-8b").layouts
    every = [(t, p, c) for t in divisors(8) for p in divisors(8 // t) for c in divisors(8 // t // p)]
    assert sorted((x.tp, x.pp, x.cp) for x in layouts.good + layouts.out) == sorted(every)
    eight = next(x for x in layouts.out if x.pp == 8)
    assert "36 layers are not a multiple of pp 8" in eight.reasons
    alone = next(x for x in layouts.out if (x.tp, x.pp, x.cp) == (1, 1, 1))
    assert alone.reasons[0].startswith("needs")
    assert [x.score for x in layouts.good] == sorted((x.score for x in layouts.good), reverse=True)
    spread = planned("qwen3-8b", "cluster.npus_per_node=4", "cluster.nnodes=2").layouts
    assert any("does not fit into the 4 NPUs of a node" in " ".join(x.reasons) for x in spread.out if x.tp == 8)


def test_8192_npus_within_the_time():
    recipe = load_recipe("qwen3-8b", sets=["pretrain.global_batch_size=8192"])
    start = time.process_time()
    plan = plan_recipe(recipe, npus=8192)
    assert time.process_time() - start < 2
    assert plan.layouts.good
    assert len(plan.layouts.good) + len(plan.layouts.out) == 560


def test_a_layout_that_does_not_fit_the_npus():
    plan = planned("qwen3-8b", npus=6)
    assert "6 NPUs are not a multiple" in plan.problem
    assert plan.stages == []
    assert plan.as_dict()["stages"] == []


def test_sizes():
    assert parse_size("64GiB") == 64 * GIB
    assert parse_size("1.5 GB") == 1_500_000_000
    with pytest.raises(RecipeError, match="not a size"):
        parse_size("64 gigs")


def test_the_command(work):
    done = ms_recipe("plan", "qwen3-8b-2x4", "--out", cwd=work)
    assert done.code == 0, done.err
    for part in ("8,190,735,360 parameters on 8 NPUs", "13,107,200,000 tokens", "(x 20 saves)", "out:", "layers % pp"):
        assert part in done.out, part
    made = json.loads(ms_recipe("plan", "qwen3-0.6b", "--npus", "16", "--memory", "32GiB", "--json", cwd=work).out)
    assert made["npus"] == 16
    assert made["tokens_per_step"] == 32 * 4096
    (work / "hosts").write_text("a slots=4\nb slots=4\n")
    assert json.loads(ms_recipe("plan", "qwen3-0.6b", "--nodes", "hosts", "--json", cwd=work).out)["npus_per_node"] == 4
    assert ms_recipe("plan", "qwen3-0.6b", "--nodes", "hosts", "--npus", "8", cwd=work).code == 2
    assert ms_recipe("plan", "qwen3-0.6b", "--memory", "x", cwd=work).code == 2
