"""The lock on a folder: who holds it, when it is stale, and that only its holder gives it up."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from ms_recipe.runs import lock
from ms_recipe.runs.folder import this_process


def mine(run: str) -> dict:
    return {"run": run, **this_process()}


def test_one_run_holds_it_and_may_take_it_again(tmp_path: Path) -> None:
    folder = tmp_path / "save"
    file = lock.take(folder, mine("a1"))
    assert lock.take(folder, mine("a1")) == file and not folder.exists()
    with pytest.raises(lock.Held, match=r"is being written by run a1 on .*pid \d+\), since 20") as held:
        lock.take(folder, mine("b2"))
    assert held.value.owner["run"] == "a1"
    assert not lock.release(folder, "b2") and file.exists()
    assert lock.release(folder, "a1") and not file.exists()
    assert not lock.release(folder, "a1")


def test_the_lock_of_a_process_that_has_gone_is_taken_over(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = tmp_path / "save"
    lock.take(folder, {"run": "dead", "host": socket.gethostname(), "pid": gone.pid, "start": 1})
    lock.take(folder, mine("b2"))
    assert json.loads(lock.lock_file(folder).read_text())["run"] == "b2"


def test_another_hosts_lock_lives_by_its_time(tmp_path: Path) -> None:
    folder = tmp_path / "save"
    file = lock.take(folder, {"run": "far", "host": "other", "pid": 1})
    with pytest.raises(lock.Held, match="run far on other"):
        lock.take(folder, mine("b2"))
    old = time.time() - lock.STALE_S - 10
    os.utime(file, (old, old))
    lock.heartbeat(file)
    with pytest.raises(lock.Held):
        lock.take(folder, mine("b2"))
    os.utime(file, (old, old))
    lock.take(folder, mine("b2"))
    assert not list(tmp_path.glob("*.stale-*"))


def test_a_holder_without_a_process_lives_by_the_runs_mark(tmp_path: Path) -> None:
    folder = tmp_path / "save"
    file = lock.take(folder, {"run": "marked", "host": socket.gethostname()})
    worker = subprocess.Popen(["sleep", "60"], env={**os.environ, "MS_RECIPE_RUN": "marked/0"})
    try:
        aged = time.time() - 3 * lock.BEAT_S
        os.utime(file, (aged, aged))
        with pytest.raises(lock.Held):
            lock.take(folder, mine("b2"))
    finally:
        worker.kill()
        worker.wait()
    lock.take(folder, mine("b2"))


def test_an_unreadable_lock_is_somebodys_until_it_is_old(tmp_path: Path) -> None:
    folder = tmp_path / "save"
    file = lock.lock_file(folder)
    file.write_text("{not json")
    with pytest.raises(lock.Held, match="run \\?"):
        lock.take(folder, mine("b2"))
    old = time.time() - lock.STALE_S - 10
    os.utime(file, (old, old))
    lock.take(folder, mine("b2"))
