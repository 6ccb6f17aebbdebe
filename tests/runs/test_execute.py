"""Around a stage: which node holds which part, the lock is kept alive, the user's files keep their modes."""

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


@pytest.mark.parametrize(("node", "sizes", "before_dp", "load", "write"), [
    (1, (2, 2, 1, 1), False, [(0, 0)], []),  # a data parallel replica loads and writes nothing
    (1, (4, 2, 4, 2), False, [(t, 1) for t in range(4)], [(t, 1) for t in range(4)]),
    (0, (4, 2, 2, 2), False, [(0, 0), (1, 0)], [(0, 0), (1, 0)]),
    (1, (4, 2, 2, 2), True, [(0, 0), (0, 1), (1, 0), (1, 1)], []),
])  # fmt: skip
def test_which_parts_a_node_loads_and_writes(
    node: int, sizes: tuple[int, int, int, int], before_dp: bool, load: list[tuple[int, int]], write: list[tuple[int, int]]
) -> None:
    assert checkpoints.parts_of(node, *sizes, before_dp) == {"load": load, "write": write}


def test_what_slurms_nodes_hold_alone_is_refused_or_said_to_be_unchecked() -> None:
    def request(stage: str) -> tuple[Any, Any]:
        recipe = SimpleNamespace(get=lambda name, default=None: 2 if name == "cluster.nnodes" else default, origin=lambda _: "r.yaml:3")
        return (SimpleNamespace(launcher="slurm", shared=False, hosts=None, recipe=recipe, slots=1),
                SimpleNamespace(invocation=SimpleNamespace(stage=stage, launcher="python" if stage == "hf2mcore" else "torchrun")))  # fmt: skip

    assert "not checked" in str(execute._unseen(*request("pretrain")))
    with pytest.raises(CheckError, match="cannot be looked at"):
        execute._unseen(*request("hf2mcore"))


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
    request: Any = SimpleNamespace(recipe=SimpleNamespace(path=lambda _: str(tmp_path)), hosts=None)
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
