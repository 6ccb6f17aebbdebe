"""Around a stage: parts on other nodes are not missing, the lock is kept alive, the user's files keep their modes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ms_recipe.errors import CheckError
from ms_recipe.runs import checkpoints, execute, lock
from ms_recipe.runs.targets import Target


def _said() -> Any:
    lines: list[str] = []
    return SimpleNamespace(say=lines.append, lines=lines)


def test_parts_on_other_nodes_are_neither_missing_nor_kept_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"torn": [], "ranks": [[0, 0]], "problems": ["mp_rank_00_001 is missing"]}
    here = {"tracker": "10", "iterations": {"iter_0000010": report}}
    monkeypatch.setattr(checkpoints, "survey", lambda _: here)
    item: Any = SimpleNamespace(invocation=SimpleNamespace(
        stage="pretrain", one={"--save": str(tmp_path), "--pipeline-model-parallel-size": "2"}.get))  # fmt: skip
    request: Any = SimpleNamespace(shared=False, hosts=("a", "b"))
    record = SimpleNamespace(unchecked=[], id="r")
    run: Any = SimpleNamespace(record=record, event=lambda *_, **__: pytest.fail("nothing is settled"))
    assert execute.prepare_training(request, run, item, _said()) == [10]
    assert "not checked" in record.unchecked[0]
    report["torn"] = ["model_optim_rng.pt is torn"]  # type: ignore[assignment]
    with pytest.raises(CheckError, match="is torn"):
        execute.prepare_training(request, run, item, _said())


def test_the_lock_is_touched_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT_S", 0.01)
    file = lock.take(tmp_path / "save", {"run": "r"})
    os.utime(file, (1, 1))
    touched = threading.Event()
    beat = lock.heartbeat
    monkeypatch.setattr(lock, "heartbeat", lambda f: (beat(f), touched.set()))
    with execute._beating(tmp_path / "save"):
        assert touched.wait(20)
    assert file.stat().st_mtime > 1


def test_the_original_files_keep_their_modes(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_text("x")
    file.chmod(0o604)
    request: Any = SimpleNamespace(recipe=SimpleNamespace(path=lambda _: str(tmp_path)))
    with execute._modes_kept(request, "mcore2hf"):
        file.chmod(0o640)
    assert file.stat().st_mode & 0o777 == 0o604


def test_going_on_with_a_training_from_other_inputs_is_said(tmp_path: Path) -> None:
    place, progress = Target("pretrain", str(tmp_path), str(tmp_path)), _said()
    place.note_file().write_text('{"inputs": {"converted checkpoint": {"a": [1]}, "arguments": {}}}')
    execute._warn_stale(place, {"converted checkpoint": {"a": [1]}, "arguments": {"x": 1}}, True, progress)
    assert not progress.lines
    execute._warn_stale(place, {"converted checkpoint": {"a": [2]}, "arguments": {}}, True, progress)
    assert "another converted checkpoint" in progress.lines[0]
