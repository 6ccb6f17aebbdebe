"""Smoke's comparisons see what is wrong, and the command says so with exit code 3. ``make smoke`` runs the whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ms_recipe import cli, resources
from ms_recipe.errors import Problem, StageError
from ms_recipe.logs.parser import Record
from ms_recipe.smoke import Check, Options, Smoke, checks, stages
from ms_recipe.smoke.stages import Row


def rows(*losses: float | None) -> list[Record]:
    return [Record(iteration=n + 2, train_iters=20, lm_loss=loss) for n, loss in enumerate(losses)]


def test_losses_must_be_finite_reach_the_end_and_fall() -> None:
    assert checks.losses(rows(3.0, 2.9, 2.8, 2.7, 2.6, 2.5), 7).ok
    assert checks.losses(rows(3.0, 2.9, 2.8, 2.9, 3.0, 3.1), 7).wrong == "the loss does not fall"
    assert checks.losses(rows(3.0, None, 2.8, float("inf"), 2.6, 2.5), 7).wrong == "no finite loss at iteration 3, 5"
    assert "ends at iteration 7, not 20" in checks.losses(rows(3.0, 2.9, 2.8, 2.7, 2.6, 2.5), 20).wrong
    assert "ends at iteration 0" in checks.losses([], 20).wrong


def test_records_of_several_nodes_come_in_order_of_iteration(tmp_path: Path) -> None:
    line = " [2026-11-30 21:39:46] iteration {:8d}/      20 | consumed samples:          320 | elapsed time per iteration (ms): 4.5 | learning rate: 1.250000E-06 | global batch size:     8 | lm loss: {:.6E} | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    (tmp_path / "0.log").write_text("starting\n")
    (tmp_path / "1.log").write_text(line.format(2, 3.0) + "noise\n" + line.format(3, 2.5))
    found = checks.records(sorted(tmp_path.glob("*.log")))
    assert [(r.iteration, r.lm_loss) for r in found] == [(2, 3.0), (3, 2.5)]


def test_a_round_trip_that_is_not_exact_names_tensors() -> None:
    assert checks.round_trip({"tensors": 46, "round_trip": []}).ok
    assert checks.round_trip({"tensors": 46, "round_trip": ["a", "b"]}).wrong == "2 differ: a, b"


def test_an_export_must_be_trained_finite_and_of_the_same_shapes() -> None:
    good = {"same_shapes": True, "finite": True, "changed": 46}
    assert checks.exported(good).ok
    for key, value, words in (("same_shapes", False, "shapes"), ("finite", False, "finite"), ("changed", 0, "nothing was trained")):
        assert words in checks.exported({**good, key: value}).wrong


def test_texts_are_compared_without_what_a_log_cannot_carry() -> None:
    assert checks.same_text(" a b\x0c c", "a b\n\tc\u2028").ok
    assert 'transformers writes "a d"' in checks.same_text("a b", "a d").wrong


def test_documents_of_the_corpus() -> None:
    assert checks.documents({"text": {"documents": 200, "tokens": 9}}, 200).ok
    assert not checks.documents({"text": {"documents": 199, "tokens": 9}}, 200).ok
    assert not checks.documents({}, 200).ok


def test_a_missing_checkpoint_is_seen(tmp_path: Path) -> None:
    source = resources.path("recipes", "tiny", "tiny-tied")
    assert "does not exist" in checks.shapes(source, tmp_path / "none", 1, 1, 4).wrong


@pytest.mark.parametrize(
    ("recipe", "asked", "world"),
    [
        ("qwen3-0.6b", {}, (1, 2)),
        ("qwen3-8b", {}, (1, 4)),
        ("qwen3-8b-2x4", {}, (2, 4)),
        ("qwen3-0.6b", {"npus_per_node": 4, "nnodes": 2}, (2, 4)),
        ("qwen3-8b-2x4", {"npus_per_node": 8}, (1, 8)),
        ("qwen3-8b", {"nnodes": 2}, (2, 2)),
    ],
)
def test_the_world_is_the_smallest_that_has_the_layout(tmp_path: Path, recipe: str, asked: dict[str, int], world: Any) -> None:
    run = Smoke(Options(recipe, "stub", tmp_path, **asked))
    assert (run.nnodes, run.npus) == world
    assert run.recipe.get("cluster.nnodes") == world[0]


class Fake(Smoke):
    """All of a smoke run but the stages."""

    outcome = "ok"

    def run(self) -> None:
        self._add(Row("pretrain", 1.0, checks=[Check("19 losses finite")]))
        if self.outcome == "mismatch":
            self._add(Row("compare", 1.0, checks=[Check("greedy text", 'transformers writes "x"')]))
        if self.outcome == "failure":
            self._add(Row("generate", 1.0, "failed", reason="node 0 failed"))
            self.error = StageError(Problem("generate failed on node 0"))


@pytest.mark.parametrize(("outcome", "code"), [("ok", 0), ("mismatch", 3), ("failure", 4)])
def test_a_mismatch_is_exit_3_and_a_failed_stage_exit_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, outcome: str, code: int
) -> None:
    monkeypatch.setattr("ms_recipe.smoke.Smoke", Fake)
    monkeypatch.setattr(Fake, "outcome", outcome)
    assert cli.run(["smoke", "--work", str(tmp_path / "w")]) == code
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["stage", "seconds", "result", "compared"]
    assert ("WRONG" in out) == (outcome == "mismatch")
    assert ("error: compare: greedy text: transformers writes" in err) == (outcome == "mismatch")
    assert cli.run(["smoke", "--json", "--work", str(tmp_path / "v")]) == code
    body = json.loads(capsys.readouterr().out.splitlines()[0])
    assert body["ok"] is (outcome == "ok") and body["stages"][0]["compared"][0]["ok"]


def test_a_work_folder_in_use_and_an_unknown_upstream_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert cli.run(["smoke", "--work", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert cli.run(["smoke", "--upstream", "real"]) == 2
    assert "known: pinned, stub" in capsys.readouterr().err


def test_pinned_without_a_tree_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MS_RECIPE_TREE", raising=False)
    monkeypatch.setenv("MS_RECIPE_HOME", str(tmp_path / "none"))
    assert cli.run(["smoke", "--upstream", "pinned"]) == 5
    assert "ms-recipe vendor sync" in capsys.readouterr().err


@pytest.mark.torch
def test_the_worker_sees_one_changed_bit(tmp_path: Path) -> None:
    """The bit-exact comparison and transformers' text, on the shipped tiny model and a copy with one bit changed."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    source = resources.path("recipes", "tiny", "tiny-tied")
    other = tmp_path / "other"
    shutil.copytree(source, other)
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"].view(torch.int16)[0] ^= 1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    run = Smoke(Options("qwen3-0.6b", "stub", tmp_path))
    found = run._worker("check", {"source": str(source), "returned": str(other), "trained": str(source),
                                  "prompt": stages.PROMPT, "new_tokens": 24})
    assert found["round_trip"] == ["model.norm.weight"]
    assert found["same_shapes"] and found["finite"] and found["changed"] == 0
    assert found["text"].startswith(" mirrors were left in the orchard by the pilot.")
