"""hosts, ls, status, logs, stop: on runs that a supervisor of the test's own made, over ssh."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Result, clean_env

from cluster.netns import Hosts, of_run, wait_for
from ms_recipe.runs.folder import RunFolder, find, list_runs

HERE = Path(__file__).parent


def cli(*args: str, env: dict[str, str]) -> Result:
    done = subprocess.run([sys.executable, "-m", "ms_recipe", *args], env=env, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=90)
    return Result(done.returncode, done.stdout, done.stderr)


@contextmanager
def supervised(net: Hosts, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], RunFolder, dict[str, str]]]:
    """A run in a process of its own, training on three hosts; its folder is below tmp_path/runs."""
    paths = [str(HERE.parent), str(HERE.parents[1] / "launcher")]
    env = clean_env(MS_RECIPE_RUNS=str(tmp_path / "runs"), PYTHONPATH=os.pathsep.join(paths), PATH=os.environ["PATH"])
    process = subprocess.Popen([sys.executable, str(HERE / "drive_run.py"), str(net.hostfile())], env=env,
                               stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        root = tmp_path / "runs"
        wait_for("the run folder", lambda: list_runs(root))
        run = find(None, root)
        wait_for("training", lambda: len(run.log_files()) == 3 and all(
            "iteration" in p.read_text() for p in run.log_files()), 40)
        yield process, run, env
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.netns
def test_status_logs_and_a_stop_from_another_shell(net: Hosts, tmp_path: Path) -> None:
    with supervised(net, tmp_path) as (process, run, env):
        (row,) = json.loads(cli("ls", "--json", env=env).out)
        assert (row["run"], row["state"], row["nodes"]) == (run.name, "running", 3)
        status = json.loads(cli("status", "--json", env=env).out)
        assert [n["state"] for n in status["nodes"]] == ["running"] * 3
        assert "node 1" in cli("status", env=env).out
        words = ("logs", "--node", "1", "--grep", r"rank 3$", "-n", "50")
        wait_for("rank 3 in node 1's log", lambda: cli(*words, env=env).out, 60)
        assert all(line.endswith("rank 3") for line in cli(*words, env=env).out.splitlines())
        wait_for("lines of all nodes", lambda: {line[:2] for line in cli("logs", "-n", "3", env=env).out.splitlines()} == {"0:", "1:", "2:"}, 60)
        assert cli("logs", "--node", "7", env=env).code == 2
        follow = subprocess.Popen([sys.executable, "-m", "ms_recipe", "logs", "-f", "--node", "0"], env=env,
                                  stdout=subprocess.PIPE, text=True)
        stopped = cli("stop", "--grace", "1", env=env)
        assert stopped.code == 0, stopped.err
        assert all(h.ip in stopped.out for h in net.hosts)
        assert process.wait(60) == 130
        assert of_run(run.record.id) == []
        assert "iteration" in follow.communicate(timeout=20)[0]
        assert json.loads(cli("status", "--json", env=env).out)["state"] == "interrupted"
        again = cli("stop", run.record.id, env=env)
        assert again.code == 0 and "nothing of it is left" in again.out


@pytest.mark.netns
def test_stop_after_the_launcher_died_and_with_a_host_away(net: Hosts, tmp_path: Path) -> None:
    with supervised(net, tmp_path) as (process, run, env):
        net.hosts[2].cut()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert json.loads(cli("ls", "--json", env=env).out)[0]["state"] == "lost"
        told = json.loads(cli("status", "--json", env=env).out)
        assert {n["state"] for n in told["nodes"]} == {"not known"} and told["nodes_up"] == 0
        assert "ms-recipe stop" in cli("status", env=env).out
        stopped = cli("stop", "--grace", "1", env=env)
        assert stopped.code == 4
        assert net.hosts[2].ip in stopped.err and "not verified" in stopped.err
        assert net.hosts[0].ip not in stopped.err
        wait_for("the end everywhere", lambda: of_run(run.record.id) == [], 30)
        told = json.loads(cli("status", "--json", env=env).out)
        assert [n["state"] for n in told["nodes"]] == ["stopped", "stopped", "lost"]
        assert [a["state"] for a in told["attempts"]] == ["interrupted"] * len(told["attempts"])
        net.hosts[2].mend()
        assert cli("stop", env=env).code == 0
        assert json.loads(cli("status", "--json", env=env).out)["state"] == "interrupted"


def test_hosts(tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text("root@npu[01-02]:2222 slots=8\nspare npu09 slots=8\n")
    env = clean_env(PATH=os.environ["PATH"])
    shown = cli("hosts", str(file), env=env)
    assert shown.code == 0 and "2 nodes, 16 NPUs, master npu01" in shown.out and "spare  npu09" in shown.out
    found = json.loads(cli("hosts", str(file), "--json", "--exclude", "npu01", env=env).out)
    assert [h["host"] for h in found["hosts"]] == ["npu02"]
    file.write_text("a slots=x\nb lots=1\n")
    wrong = cli("hosts", str(file), env=env)
    assert wrong.code == 2 and "hostfile:1" in wrong.err and "hostfile:2" in wrong.err
    assert "Traceback" not in wrong.err
    assert cli("hosts", "/nonexistent/hostfile", env=env).err.startswith("error: /nonexistent/hostfile: hostfile not found")
