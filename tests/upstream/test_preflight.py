"""Preflight through the pinned upstream: totals, refusals, silent changes, and that the figures are upstream's."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import Result, clean_env, ms_recipe

B06, B8 = 596_049_920, 8_190_735_360

pytestmark = pytest.mark.skipif(not os.environ.get("MS_RECIPE_TREE"), reason="MS_RECIPE_TREE names no tree")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree: nothing is written into the user's."""
    return copy_tree(tmp_path_factory.mktemp("preflight"))


def copy_tree(into: Path) -> Path:
    source = Path(os.environ["MS_RECIPE_TREE"]).resolve()
    for name in (source.name, "MindSpeed"):
        shutil.copytree(source.parent / name, into / name, ignore=shutil.ignore_patterns(".git", "__pycache__", "docs"))
    return into / source.name


def preflight(tree: Path, work: Path, *args: str) -> tuple[Result, dict]:
    result = ms_recipe("preflight", *args, "--json", cwd=work, env=clean_env(MS_RECIPE_TREE=str(tree)), timeout=300)
    assert "Traceback" not in result.err
    return result, json.loads(result.out)


def test_0_6b_ties_its_embeddings(built: Path, work: Path) -> None:
    result, report = preflight(built, work, "qwen3-0.6b")
    assert result.code == 0, result.err
    (kind,) = report["kinds"]
    assert report["sums"]["parameters"] == kind["parameters"] == B06
    assert report["layout"] == {"tp": 1, "pp": 1, "cp": 1, "dp": 8}
    assert kind["gradients"] == 4 * B06  # bf16 accumulates in float32
    assert kind["optimizer_plain"] == 12 * B06  # main copy and two moments, float32
    assert kind["optimizer_distributed"] == 12 * B06 // 8
    assert any("no effect with tp 1" in note for note in report["notes"])


def test_8b_over_four_stages(built: Path, work: Path) -> None:
    result, report = preflight(built, work, "qwen3-8b")
    assert result.code == 0, result.err
    assert [len(kind["layers"]) for kind in report["kinds"]] == [9] * 4
    assert [kind["parameters"] for kind in report["kinds"]] == [2_358_847_744, 1_736_517_888, 1_736_517_888, 2_358_851_840]
    assert report["sums"] == {"built": B8, "replicated": 0, "tied": 0, "parameters": B8}


def test_8b_on_2x4_with_activations(built: Path, work: Path) -> None:
    result, report = preflight(built, work, "qwen3-8b-2x4", "--activations")
    assert result.code == 0, result.err
    assert report["seconds"] < 120
    assert len(report["kinds"]) == 8 and report["sums"]["parameters"] == B8
    # Norms are not split: four copies of 36 layers' (2 x 4096 + 2 x 128) and of the final one.
    assert report["sums"]["replicated"] == 3 * (36 * (2 * 4096 + 2 * 128) + 4096)
    first = report["kinds"][0]["activations"]
    # Full recomputation keeps each of the 18 layers' input: 8192 / 4 x 4 x 4096 in bf16.
    inputs = 18 * 2048 * 4 * 4096 * 2
    assert inputs <= first["per_micro_batch"] < inputs * 1.02
    assert first["peak"] > first["per_micro_batch"] and first["in_flight"] == 2


def test_tied_embeddings_over_stages_are_explained(built: Path, work: Path) -> None:
    result, report = preflight(built, work, "qwen3-0.6b", "--set", "parallel.tp=2", "--set", "parallel.pp=2")
    assert result.code == 0, result.err
    assert report["sums"]["tied"] == 151_936 * 1024
    assert report["sums"]["parameters"] == B06


def test_activations_grow_with_the_sequence_and_not_with_its_square(built: Path, work: Path) -> None:
    kept = []
    for length in (2048, 4096):
        sets = ("--set", f"pretrain.seq_length={length}", "--set", "model.num_layers=4")
        _, report = preflight(built, work, "qwen3-0.6b", "--activations", *sets)
        kept.append(report["kinds"][0]["activations"]["per_micro_batch"])
    assert kept[1] / kept[0] == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("recipe", ["qwen3-8b", "qwen3-8b-2x4"])
def test_plan_computes_what_upstream_builds(built: Path, work: Path, recipe: str) -> None:
    """The figures of ``ms-recipe plan``, without upstream, against those of upstream's modules."""
    _, report = preflight(built, work, recipe, "--activations")
    plan = json.loads(ms_recipe("plan", recipe, "--json", cwd=work).out)
    assert plan["parameters"] == report["sums"]["parameters"]
    kinds = [kind for kind in report["kinds"] if kind["tp"] == 0]
    for stage, kind in zip(plan["stages"], kinds, strict=True):
        for name, found in (("parameters", "parameters"), ("weights", "weights"), ("gradients", "gradients")):
            assert stage[name] == pytest.approx(kind[found], rel=1e-3)
        assert stage["optimizer"] == pytest.approx(kind["optimizer"], rel=1e-3)
        if stage is plan["stages"][-1]:  # plan also counts what the logits need and autograd does not keep
            assert stage["activations"] + stage["logits"] >= kind["activations"]["total"]
        else:
            assert stage["activations"] == pytest.approx(kind["activations"]["total"], rel=0.03)


@pytest.mark.parametrize(
    "sets",
    [
        ("parallel.cp=2",),
        ("parallel.tp=2", "parallel.pp=2", "parallel.vpp=7", "pretrain.recompute_granularity=selective"),
        ("parallel.tp=2", "pretrain.overlap_grad_reduce=true", "pretrain.overlap_param_gather=true"),
    ],
)
def test_other_layouts_are_built_and_counted(built: Path, work: Path, sets: tuple[str, ...]) -> None:
    result, report = preflight(built, work, "qwen3-0.6b", "--activations", *(x for s in sets for x in ("--set", s)))
    assert result.code == 0, result.err
    assert report["sums"]["parameters"] == B06
    assert all(kind["activations"]["total"] > 0 for kind in report["kinds"])


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("parallel.pp=8",), "upstream builds 24 of the 28 layers"),
        (("pretrain.global_batch_size=12",), "global batch size (12) is not divisible by"),
        (("parallel.tp=3",), "not divisible by tensor model parallel size (3)"),
        (("pretrain.lr_warmup_iters=3000",), "lr_warmup_steps < self.lr_decay_steps"),
        (("pretrain.env.CUDA_DEVICE_MAX_CONNECTIONS=null",), "CUDA_DEVICE_MAX_CONNECTIONS"),
    ],
)
def test_what_upstream_refuses_or_drops_is_an_error(built: Path, work: Path, sets: tuple[str, ...], words: str) -> None:
    result, report = preflight(built, work, "qwen3-0.6b", *(x for s in sets for x in ("--set", s)))
    assert result.code == 3
    assert words in report["problems"][0]["what"], report["problems"]
    if sets[0].startswith(("parallel", "pretrain.global")):
        assert report["problems"][0]["where"] == f"--set {sets[0].split('=')[0]}"


def test_a_flag_that_upstream_turns_off_is_reported(built: Path, work: Path) -> None:
    result, report = preflight(built, work, "qwen3-0.6b", "--set", "pretrain.sequence_parallel=true")
    assert result.code == 0
    given = [(c["flag"], c["before"], c["after"]) for c in report["changes"] if c["given"]]
    assert given == [("--sequence-parallel", True, False)]
    assert any("--set pretrain.sequence_parallel" in note for note in report["notes"])


def test_a_world_of_a_hostfile(built: Path, work: Path) -> None:
    (work / "hosts").write_text("a slots=8\nb slots=8\n")
    result, report = preflight(built, work, "qwen3-8b", "--nodes", "hosts")
    assert result.code == 0, result.err
    assert report["world_size"] == 16 and report["layout"]["dp"] == 4 and report["sums"]["parameters"] == B8


def test_the_figures_are_those_of_upstreams_modules(work: Path, tmp_path: Path) -> None:
    """A layer made wider in a copy of the tree is seen: nothing is computed from the recipe."""
    tree = copy_tree(tmp_path)
    # MindSpeed-LLM puts its own MLP in the place of Megatron's.
    source = tree / "mindspeed_llm" / "core" / "transformer" / "mlp.py"
    text = source.read_text()
    assert "self.config.ffn_hidden_size" in text
    source.write_text(text.replace("self.config.ffn_hidden_size", "(self.config.ffn_hidden_size + 64)"))
    result, report = preflight(tree, work, "qwen3-0.6b")
    assert result.code == 0, result.err
    assert report["sums"]["parameters"] == B06 + 28 * 3 * 64 * 1024  # gate, up and down of 28 layers
