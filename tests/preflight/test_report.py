"""What preflight says about what its worker found; the worker itself is tested in tests/upstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import clean_env, ms_recipe

from ms_recipe.errors import RecipeError, UpstreamError
from ms_recipe.preflight import read, request
from ms_recipe.preflight.text import lines, merged, size, spans
from ms_recipe.recipe import load_recipe


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that has what is looked for before the worker starts."""
    tree = tmp_path / "MindSpeed-LLM"
    (tree / "megatron" / "training").mkdir(parents=True)
    (tree.parent / "MindSpeed" / "mindspeed").mkdir(parents=True)
    (tree / "pretrain_gpt.py").touch()
    monkeypatch.setenv("MS_RECIPE_TREE", str(tree))
    return tree


def ask(name: str = "qwen3-8b-2x4", *sets: str, slots: list[int] | None = None):
    return request(load_recipe(name, overlays=(), sets=list(sets), scale=None), slots=slots)


def kind(pp: int, tp: int, layers: range, parameters: int, **other: object) -> dict:
    return {
        "rank": pp * 4 + tp, "pp": pp, "tp": tp, "layers": list(layers), "parameters": parameters, "replicated": 100, "tied": 0,
        "weights": 2 * parameters, "gradients": 4 * parameters,
        "optimizer": {"asked": "distributed", "distributed": {"main": 2 * parameters, "moments": 4 * parameters},
                      "plain": {"main": 4 * parameters, "moments": 8 * parameters}},
        **other,
    }  # fmt: skip


def raw(**other: object) -> dict:
    """The worker's answer for a model of 36 layers with tp 2, pp 2, dp 2, tied embeddings of 500 parameters."""
    args = {"num_layers": 36, "micro_batch_size": 1, "global_batch_size": 16, "data_parallel_size": 2,
            "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2, "use_distributed_optimizer": True}  # fmt: skip
    kinds = [kind(0, 0, range(1, 19), 10_000), kind(0, 1, range(1, 19), 10_000),
             kind(1, 0, range(19, 37), 10_000, tied=500), kind(1, 1, range(19, 37), 10_000, tied=500)]  # fmt: skip
    return {"layout": {"tp": 2, "pp": 2, "cp": 1, "dp": 2}, "before": dict(args), "args": args, "kinds": kinds, "error": None,
            "tokenizer": {"path": "/t", "checked": True}, "seconds": 3.0, **other}  # fmt: skip


def test_the_sum_counts_every_parameter_once(tree: Path) -> None:
    report = read(ask(), raw())
    assert report.sums == {"built": 40_000, "replicated": 200, "tied": 1000, "parameters": 38_800}
    text = "\n".join(lines(report))
    assert "copies on tensor positions above 0: 200" in text
    assert "the last stage's copy of the tied embedding: 1,000" in text
    assert "= the model's parameters: 38,800" in text


def test_a_kind_has_its_bytes_with_and_without_the_distributed_optimizer(tree: Path) -> None:
    first = read(ask(), raw()).kinds[0]
    assert (first.weights, first.gradients, first.optimizer_distributed, first.optimizer_plain) == (
        20_000, 40_000, 60_000, 120_000)  # fmt: skip
    assert (first.optimizer, first.total, first.ranks) == (60_000, 120_000, 2)


def test_tensor_positions_with_the_same_figures_share_a_row(tree: Path) -> None:
    report = read(ask(), raw())
    assert [[k.rank for k in group] for group, _ in merged(report.kinds)] == [[0, 1], [4, 5]]
    text = "\n".join(lines(report))
    assert "pp 0 tp 0-1" in text and "1-18 (18)" in text


def test_activations_in_flight_follow_the_schedule(tree: Path) -> None:
    found = raw()
    for one in found["kinds"]:
        one["activations"] = [{"kept": 1000, "peak": 1300, "output": 1}]
    first, _, last, _ = (k.activations for k in read(ask(), found).kinds)
    assert first == {"per_micro_batch": 1000, "peak": 1300, "in_flight": 2, "chunks": 1, "total": 2300}
    assert last == {"per_micro_batch": 1000, "peak": 1300, "in_flight": 1, "chunks": 1, "total": 1300}
    found["args"]["global_batch_size"] = 2  # one micro batch: no more can be in flight
    assert read(ask(), found).kinds[0].activations["in_flight"] == 1


def test_activations_of_virtual_stages_are_counted_by_chunk(tree: Path) -> None:
    found = raw()
    for one in found["kinds"]:
        one["activations"] = [{"kept": 500, "peak": 500, "output": 1}, {"kept": 700, "peak": 750, "output": 1}]
    first = read(ask(), found).kinds[0].activations
    # 2 * (2 - 0 - 1) + (2 - 1) * 2 + 1 forwards before the first backward: chunks 0 0 1 1 0.
    assert first == {"per_micro_batch": 1200, "peak": 1250, "in_flight": 5, "chunks": 2, "total": 3 * 500 + 2 * 700 + 50}


def test_the_logits_of_a_virtual_stage_are_held_once(tree: Path) -> None:
    """On the last stage the chunk with the logits is worked off right after its forward."""
    found = raw()
    for one in found["kinds"]:
        one["activations"] = [{"kept": 500, "peak": 500, "output": 1}, {"kept": 9000, "peak": 9100, "output": 1}]
    last = next(k for k in read(ask(), found).kinds if k.pp == 1).activations
    assert last["in_flight"] == 3 and last["total"] == 2 * 500 + 9100


def test_activations_that_cannot_be_counted_are_a_note_and_the_rest_stands(tree: Path) -> None:
    found = raw()
    found["kinds"][0]["uncounted"] = {"message": "Tensor.item() cannot be called on meta tensors", "where": "megatron/x.py:1"}
    report = read(ask(), found)
    assert len(report.kinds) == 4 and not report.problems
    assert any(note.startswith("not counted: the activations") and "megatron/x.py:1" in note for note in report.notes)


def test_dropped_layers_are_a_problem_at_the_line_that_asks_for_pp(tree: Path) -> None:
    found = raw()
    found["kinds"] = found["kinds"][:2]
    (problem,) = read(ask(), found).problems
    assert "builds 18 of the 36 layers" in problem.what
    assert "qwen3-8b-2x4.yaml:" in problem.where
    assert "1, 2, 3, 4, 6, 9, 12, 18, 36" in problem.fix


def test_a_refusal_keeps_upstreams_words_and_names_the_line(tree: Path) -> None:
    error = {"phase": "initialize", "type": "AssertionError", "where": "megatron/core/x.py:182",
             "message": "global batch size (12) is not divisible by micro batch size (1) times data parallel size (8)"}  # fmt: skip
    report = read(ask("qwen3-0.6b", "pretrain.global_batch_size=12"), raw(kinds=[], error=error))
    (problem,) = report.problems
    assert problem.where == "--set pretrain.global_batch_size"
    assert "global batch size (12) is not divisible" in problem.what and "megatron/core/x.py:182" in problem.what
    assert not report.as_dict()["ok"]


def test_a_given_flag_that_upstream_turned_off_is_a_note_with_its_line(tree: Path) -> None:
    found = raw()
    found["before"] |= {"sequence_parallel": True, "bias_gelu_fusion": True, "start_weight_decay": None}
    found["args"] |= {"sequence_parallel": False, "bias_gelu_fusion": False, "start_weight_decay": 0.1}
    report = read(ask(), found)
    assert [(c.flag, c.given) for c in report.changes] == [("--sequence-parallel", True), ("bias_gelu_fusion", False)]
    assert any("qwen3-8b-2x4.yaml:" in note and "--sequence-parallel from True to False" in note for note in report.notes)
    assert not report.problems
    assert "bias_gelu_fusion True->False" in "\n".join(lines(report))


def test_a_layout_that_upstream_cuts_down_is_a_problem(tree: Path) -> None:
    found = raw()
    found["before"]["tensor_model_parallel_size"] = 16
    found["args"]["tensor_model_parallel_size"] = 8
    (problem,) = read(ask(), found).problems
    assert "silently cuts --tensor-model-parallel-size from 16 to 8" in problem.what


def test_sequence_parallel_with_tp_1_is_a_note(tree: Path) -> None:
    notes = read(ask("qwen3-0.6b"), raw()).notes
    assert any("qwen3-0.6b.yaml:" in note and "no effect with tp 1" in note for note in notes)


def test_what_was_not_checked_is_said(tree: Path) -> None:
    found = raw(tokenizer={"path": "/nowhere", "checked": False})
    found["args"]["o2_optimizer"] = True
    notes = read(ask(), found).notes
    assert "not checked: the tokenizer (nothing at /nowhere)" in notes
    assert any(note.startswith("not counted: what o2_optimizer") for note in notes)


def test_the_world_is_the_recipes_or_the_hostfiles(tree: Path) -> None:
    asked = ask()
    assert (asked.nnodes, asked.local, asked.world) == (2, 4, 8)
    asked = ask(slots=[8, 8, 8])
    assert (asked.nnodes, asked.local, asked.world) == (3, 8, 24)
    with pytest.raises(RecipeError, match=r"unequal slots \(8, 4\)"):
        ask(slots=[8, 4])


def test_without_a_tree_the_error_names_the_command_that_makes_one(work: Path, tmp_path: Path) -> None:
    result = ms_recipe("preflight", "qwen3-0.6b", cwd=work, env=clean_env(MS_RECIPE_HOME=str(tmp_path / "none")))
    assert result.code == 5, result.err
    assert "ms-recipe vendor sync mcore-0.8" in result.err and "Traceback" not in result.err


def test_an_incomplete_tree_is_named(tree: Path) -> None:
    (tree / "pretrain_gpt.py").unlink()
    with pytest.raises(UpstreamError, match=r"pretrain_gpt\.py is not there.*vendor sync"):
        ask()


def test_a_worker_that_cannot_import_upstream_is_reported(tree: Path, work: Path) -> None:
    """The whole command on a tree whose entry point does not import: upstream's words, no traceback."""
    pytest.importorskip("torch")
    (tree / "pretrain_gpt.py").write_text("raise ImportError('no such operator')\n")
    result = ms_recipe("preflight", "qwen3-0.6b", "--json", cwd=work, env=clean_env(MS_RECIPE_TREE=str(tree)))
    assert result.code == 5, result.err
    (problem,) = json.loads(result.out)["problems"]
    assert problem["what"] == "pretrain_gpt.py cannot be imported: ImportError: no such operator (pretrain_gpt.py:1)"
    assert "Traceback" not in result.err


def test_numbers_read_well() -> None:
    assert spans((1, 2, 3, 7, 9, 10)) == "1-3,7,9-10"
    assert size(3 * 2**29) == "1.50 GiB" and size(2**20) == "1.0 MiB"
