"""The launcher itself is interrupted, terminated, killed: the nodes stop, by word or for want of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.live import trainee_script
from cluster.netns import Hosts, of_run, processes, wait_for
from ms_recipe.cluster.bootstrap import BOOT

HERE = Path(__file__).parent


@contextmanager
def launcher(hostfile: Path, tmp_path: Path, script: str, node_dir: str = "") -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    run_id = "k" + uuid.uuid4().hex[:10]
    (tmp_path / "script.sh").write_text(script)
    out = tmp_path / "out.jsonl"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE.parents[1] / "launcher")])}
    with out.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "drive.py"), str(hostfile), run_id, str(tmp_path / "script.sh"),
             *([node_dir] if node_dir else [])], stdout=file, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
            env=env, start_new_session=True)
    try:
        yield process, run_id, out
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def events(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.read_text().splitlines() if line.endswith("}")]


@pytest.mark.netns
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_the_launcher_gets_a_signal(net: Hosts, tmp_path: Path, number: int, code: int) -> None:
    with launcher(net.hostfile(), tmp_path, trainee_script()) as (process, run_id, out):
        wait_for("training on all", lambda: {f"| rank {r}" for r in range(6)} <=
                 {line[line.find("| rank"):] for e in events(out) for line in [str(e.get("line", ""))]}, 30)
        process.send_signal(number)
        assert process.wait(20) == code
        wait_for("the end of the run's processes", lambda: not of_run(run_id), 0 if code == 130 else 30)
        wait_for("the end of the agents", lambda: not [p for p in processes() if BOOT in p.argv and any(
            a.startswith(run_id) for a in p.argv)], 10)
        if code == 130:
            outcome = events(out)[-1]
            assert outcome["interrupted"] and outcome["unverified"] == []


def records(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def case(name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = HERE.parent / "data" / "cases" / name
    monkeypatch.setenv("FAKE_SSH_MAP", str(folder / "fake_ssh.map"))
    return folder / "hostfile"


def test_ssh_06_nothing_of_our_standard_input_reaches_ssh(
    fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostfile = case("SSH-06", monkeypatch)
    with launcher(hostfile, tmp_path, "read -r x || echo input is empty", str(tmp_path)) as (process, _, out):
        assert process.stdin is not None
        process.stdin.write("MARKER-OF-THE-LAUNCHER\n" * 100)
        process.stdin.close()
        process.stdin = None
        assert process.wait(30) == 0
        assert {r["host"] for r in records(fake_ssh)} == {"192.168.1.100", "192.168.1.101", "192.168.1.102"}
        assert "MARKER" not in fake_ssh.read_text()
        assert sum(e.get("line") == "input is empty" for e in events(out)) == 3


def test_ssh_07_ctrl_c_ends_the_remote_processes(
    fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostfile = case("SSH-07", monkeypatch)
    with launcher(hostfile, tmp_path, "sleep 600", str(tmp_path)) as (process, run_id, out):
        wait_for("the sleeps", lambda: len([p for p in of_run(run_id) if p.comm == "sleep"]) == 2)
        process.send_signal(signal.SIGINT)
        wait_for("the stop", lambda: "stopping" in out.read_text() or process.poll() is not None)
        process.send_signal(signal.SIGINT)  # a second time, in the middle of it
        assert process.wait(15) == 130
        assert of_run(run_id) == []
        outcome = events(out)[-1]
        assert {n["host"]: n["verified"] for n in outcome["nodes"]} == {  # type: ignore[attr-defined]
            "192.168.1.100": True, "192.168.1.101": True}
