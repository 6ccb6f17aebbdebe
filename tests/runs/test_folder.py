"""Run folders: made, found, read back, and never half-written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ms_recipe.errors import RecipeError
from ms_recipe.runs.folder import RunFolder, State, find, list_runs, runs_root, supervisor_alive, this_process


def test_layout_and_round_trip(tmp_path: Path) -> None:
    run = RunFolder.create("pretrain", root=tmp_path / "runs here")
    assert run.path.name.endswith(f"-pretrain-{run.record.id}")
    assert {p.name for p in run.path.iterdir()} == {"run.json", "events.jsonl", "scripts", "logs"}
    attempt = run.begin("pretrain", 1, "pretrain.sh", ["localhost"])
    run.log(0, "localhost", "a line\n")
    run.end(attempt, State.FAILED, exit_code=4, reason="no proof")
    run.set_state(State.FAILED, 4)
    run.close()
    again = RunFolder.load(run.path)
    assert again.record == run.record
    assert again.state is State.FAILED
    assert [e["event"] for e in again.events()] == ["attempt", "attempt_end", "state"]
    assert again.log_files()[0].read_text() == "a line\n"
    assert not list(run.path.glob(".*part"))


def test_a_torn_last_event_is_left_out(tmp_path: Path) -> None:
    run = RunFolder.create("all", root=tmp_path)
    run.event("one")
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"event": "tw')
    assert [e["event"] for e in run.events()] == ["one"]


def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_RECIPE_RUNS", str(tmp_path))
    assert runs_root() == tmp_path
    with pytest.raises(RecipeError, match="no run yet"):
        find()
    first, second = RunFolder.create("pretrain"), RunFolder.create("all")
    assert find().name == second.name
    assert find(first.record.id).name == first.name == find(first.name).name == find(str(first.path)).name
    assert [r.name for r in list_runs()] == [second.name, first.name]
    with pytest.raises(RecipeError, match="is the beginning of 2 runs"):
        find(first.name[:8])
    with pytest.raises(RecipeError, match="no run is called nothing"):
        find("nothing")
    (tmp_path / "20200101-000000-pretrain-abcdef").mkdir()
    assert len(list_runs()) == 2


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    run = RunFolder.create("all", root=tmp_path)
    data = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**data, "schema": 99, "new": 1}))
    with pytest.raises(RecipeError, match="newer ms-recipe"):
        RunFolder.load(run.path)


def test_a_run_whose_supervisor_has_gone_is_lost(tmp_path: Path) -> None:
    run = RunFolder.create("all", root=tmp_path)
    run.set_state(State.RUNNING)
    assert run.state is State.RUNNING
    assert supervisor_alive(this_process())
    run.record.supervisor["start"] = 1
    assert run.state is State.LOST
    run.record.supervisor.update(pid=os.getpid(), host="another host")
    assert run.state is State.RUNNING
