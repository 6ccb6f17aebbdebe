"""``ms-recipe stop`` of a run whose launcher has died (tests/cluster has it with real hosts)."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import clean_env, ms_recipe

from ms_recipe.runs.folder import RunFolder, State


def _dead(root: Path, **record: object) -> RunFolder:
    run = RunFolder.create("pretrain", root=root)
    for name, value in record.items():
        setattr(run.record, name, value)
    run.begin("pretrain", 1)
    run.record.supervisor["start"] = 1  # of a process that is gone
    run.save()
    run.close()
    return run


def test_a_step_of_a_users_own_allocation_cannot_be_asked(tmp_path: Path) -> None:
    run = _dead(tmp_path, launcher="slurm", nodes=[{"rank": 0, "host": "n1"}, {"rank": 1, "host": "n2"}])
    done = ms_recipe("stop", run.name, cwd=tmp_path, env=clean_env(MS_RECIPE_RUNS=str(tmp_path)))
    assert done.code == 4
    assert "n1, n2 cannot be asked" in done.err and "squeue --steps" in done.err


def test_a_local_run_is_written_down_as_stopped(tmp_path: Path) -> None:
    run = _dead(tmp_path, launcher="local", nodes=[{"rank": 0, "host": None}])
    env = clean_env(MS_RECIPE_RUNS=str(tmp_path))
    lost = json.loads(ms_recipe("status", "--json", cwd=tmp_path, env=env).out)
    assert lost["state"] == "lost" and [n["state"] for n in lost["nodes"]] == ["not known"]
    done = ms_recipe("stop", cwd=tmp_path, env=env)
    assert done.code == 0 and "nothing of it is left on localhost" in done.out
    record = RunFolder.load(run.path).record
    assert record.state == State.INTERRUPTED.value and record.exit_code == 130
    assert [(a.state, a.reason) for a in record.attempts] == [("interrupted", "stopped after its launcher had died")]
    after = json.loads(ms_recipe("status", "--json", cwd=tmp_path, env=env).out)
    assert [n["state"] for n in after["nodes"]] == ["stopped"]
