"""``ms-recipe run`` on hosts, on a torch-free tree: the checks, the background, a restart with a spare."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Result, clean_env

import fake_files
from cluster.netns import Hosts, of_run, wait_for

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))
import fake_upstream

HF = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2,
      "head_dim": 32, "vocab_size": 640, "tie_word_embeddings": True, "model_type": "qwen3"}  # fmt: skip
Ms = Callable[..., Result]


class Bench:
    """A work folder and a fake tree below ``base``, and ms-recipe in it."""

    def __init__(self, base: Path) -> None:
        self.work = base / "work"
        self.work.mkdir(parents=True)
        fake_files.hf_folder(self.work / "hf", HF)
        (self.work / "raw.jsonl").write_text('{"text": "a"}\n')
        self.tree = fake_upstream.make(base, sys.executable)
        paths = [str(Path(__file__).parents[2] / "launcher")]
        self.env = clean_env(ASCEND_HOME_PATH="/none", PATH=os.environ["PATH"], PYTHONPATH=os.pathsep.join(paths))

    def words(self, *words: str) -> list[str]:
        sets = {"paths.hf": self.work / "hf", "paths.raw_data": self.work / "raw.jsonl", "cluster.tree": self.tree,
                "cluster.setup": f"export ASCEND_HOME_PATH=/none PATH='{self.tree.parent}/bin':$PATH",
                "cluster.npus_per_node": 1, "pretrain.global_batch_size": 8, "cluster.master_port": 29533}
        out = ["run", *words, "--recipe", "qwen3-0.6b", "--scale", "tiny", "--allow-drift"]
        return [*out, *(w for k, v in sets.items() for w in ("--set", f"{k}={v}"))]

    def ms(self, *argv: str) -> Result:
        done = subprocess.run([sys.executable, "-m", "ms_recipe", *argv], cwd=self.work, env=self.env, timeout=120,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return Result(done.returncode, done.stdout, done.stderr)

    def run(self, *words: str) -> Result:
        return self.ms(*self.words(*words))

    def faults(self, *words: str) -> None:
        (self.tree / "logs" / "sleeping").unlink(missing_ok=True)
        (self.tree / "logs" / "faults").write_text("\n".join(words))

    def calls(self) -> bool:
        return (self.tree / "logs" / "calls").exists()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ms("status", "--json").out)
        return found

    def record(self) -> dict[str, Any]:
        """The newest run's record."""
        runs = sorted((self.work / "runs").glob("*/run.json"), key=lambda p: json.loads(p.read_text())["created"])
        found: dict[str, Any] = json.loads(runs[-1].read_text())
        return found

    def ready(self, *words: str) -> None:
        for stage in ("hf2mcore", "data_convert"):
            done = self.run(stage, "--no-check", *words)
            assert done.code == 0, done.err


def sleeping(bench: Bench) -> bool:
    return (bench.tree / "logs" / "sleeping").exists()


def test_detach_supervises_in_the_background(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    refused = bench.run("pretrain", "--no-check", "--detach", "--set", "pretrain.micro_batch_size=x")
    assert refused.code == 2 and "micro_batch_size" in refused.err and not (bench.work / "runs").exists()
    bench.ready()
    bench.faults("sleep-at-3")
    started = bench.run("pretrain", "--no-check", "--detach")
    assert started.code == 0 and "runs in the background" in started.out, started.err
    wait_for("iteration 3", lambda: sleeping(bench))
    status = bench.status()
    assert status["state"] == "running" and status["newest"]["iteration"] == 3
    stopped = bench.ms("stop", "--grace", "1")
    assert stopped.code == 0 and "nothing of it is left on localhost" in stopped.out
    assert bench.status()["state"] == "interrupted"
    assert (bench.work / "runs" / status["run"] / "supervisor.log").is_file()
    bench.faults()
    assert bench.run("pretrain", "--no-check", "--detach").code == 0
    wait_for("the end", lambda: bench.status()["state"] == "succeeded", 60)


@pytest.mark.parametrize("alone", [False, True])
def test_the_background_supervisor_dies(tmp_path: Path, alone: bool) -> None:
    bench = Bench(tmp_path)
    bench.ready()
    bench.faults("sleep-at-3")
    assert bench.run("pretrain", "--no-check", "--detach", *(["--unsupervised"] if alone else [])).code == 0
    wait_for("iteration 3", lambda: sleeping(bench))
    status = bench.status()
    run_id = status["run"].rpartition("-")[2]
    os.kill(status["supervisor"]["pid"], signal.SIGKILL)
    if alone:
        wait_for("the run to be lost", lambda: bench.status()["state"] == "lost")
        assert of_run(run_id)  # it goes on
        assert bench.ms("stop", "--grace", "1").code == 0
        assert of_run(run_id) == []
    else:
        wait_for("the node to stop", lambda: not of_run(run_id), 20)
        assert bench.status()["state"] == "lost"


def running(bench: Bench, *words: str) -> subprocess.Popen[str]:
    """A run on two hosts, both at iteration 13."""
    process = subprocess.Popen([sys.executable, "-m", "ms_recipe", *bench.words("pretrain", *words, "--set", "run.restart_wait_seconds=0")],
                               cwd=bench.work, env=bench.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_for("iteration 13 on both", lambda: process.poll() is not None or len(
            [p for p in bench.work.glob("runs/*-pretrain-*/logs/*.log") if "iteration       13/" in p.read_text()]) == 2, 60)
        assert process.poll() is None, process.communicate()[1]
    except BaseException:
        process.kill()
        raise
    return process


def ended(process: subprocess.Popen[str], bench: Bench) -> tuple[dict[str, Any], str]:
    try:
        _, err = process.communicate(timeout=150)
    finally:
        process.kill()
    return json.loads(next((bench.work / "runs").glob("*-pretrain-*/run.json")).read_text()), err


@pytest.mark.netns
def test_a_dead_host_is_replaced_by_the_first_spare_that_is_fit(net: Hosts) -> None:
    bench = Bench(net.shared / "restart")
    one, two, three = net.hosts
    hostfile = bench.work / "hostfile"
    hostfile.write_text(f"{one.ip} slots=1\n{two.ip} slots=1\nspare {three.ip}:2299 slots=1\nspare {three.ip} slots=1\n")
    bench.ready()
    bench.faults("sleep-at-13")
    process = running(bench, "--nodes", str(hostfile), "--max-restarts", "1")
    bench.faults()
    two.cut()
    record, err = ended(process, bench)
    assert process.returncode == 0, err
    assert [(a["number"], a["state"], a["nodes"]) for a in record["attempts"]] == [
        (1, "failed", [one.ip, two.ip]), (2, "succeeded", [one.ip, three.ip])]
    assert f"{two.ip} may go on until it notices" in err and "going on from iteration 10" in err, err
    assert f"the spare {three.ip}:2299 is not used: reachable: " in err and "checked again: ok on 2 of 2" in err, err
    assert [n["host"] for n in record["nodes"]] == [one.ip, three.ip]
    wait_for("the end on the host that was cut off", lambda: not of_run(record["id"]), 40)


@pytest.mark.netns
def test_without_a_fit_spare_training_is_not_started_again(net: Hosts) -> None:
    bench = Bench(net.shared / "no-spare")
    one, two, three = net.hosts
    hostfile = bench.work / "hostfile"
    hostfile.write_text(f"{one.ip} slots=1\n{two.ip} slots=1\nspare {three.ip}:2299 slots=1\n")
    bench.ready()
    bench.faults("sleep-at-13")
    process = running(bench, "--nodes", str(hostfile), "--max-restarts", "2", "--set", "run.grace_seconds=1")
    two.kill_sshd()
    record, err = ended(process, bench)
    assert process.returncode == 4, err
    assert f"the spare {three.ip}:2299 is not used" in err and f"error: {two.ip}: not started again: reachable: " in err, err
    assert len(record["attempts"]) == 1 and record["nodes"][1]["host"] == two.ip
    wait_for("the end", lambda: not of_run(record["id"]), 40)


@pytest.mark.netns
def test_a_host_that_comes_back_is_checked_and_kept(net: Hosts) -> None:
    bench = Bench(net.shared / "back")
    one, two, three = net.hosts
    hostfile = bench.work / "hostfile"
    hostfile.write_text(f"{one.ip} slots=1\n{two.ip} slots=1\nspare {three.ip} slots=1\n")
    bench.ready()
    bench.faults("sleep-at-13")
    process = running(bench, "--nodes", str(hostfile), "--max-restarts", "1")
    bench.faults()
    next(p for p in of_run(json.loads(next(bench.work.glob("runs/*-pretrain-*/run.json")).read_text())["id"], two.namespace)).kill()
    record, err = ended(process, bench)
    assert process.returncode == 0 and "is replaced" not in err, err
    assert [a["nodes"] for a in record["attempts"]] == [[one.ip, two.ip]] * 2
    checked = [json.loads(line) for line in next(bench.work.glob("runs/*-pretrain-*/events.jsonl")).read_text().splitlines()]
    assert sum(e["event"] == "checked" for e in checked) == 2


@pytest.mark.netns
def test_the_live_view_shows_the_nodes_that_are_up(net: Hosts) -> None:
    bench = Bench(net.shared / "live")
    nodes = ("--nodes", str(net.hostfile(1, count=2)))
    bench.ready()
    bench.faults("sleep-at-13")
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "ms_recipe", *bench.words("pretrain", "--no-check", *nodes)], cwd=bench.work,
                               env={**bench.env, "TERM": "xterm", "COLUMNS": "200"}, stdin=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    os.set_blocking(ours, False)
    seen = bytearray()

    def shown(text: bytes) -> bool:
        with contextlib.suppress(OSError):
            seen.extend(os.read(ours, 1 << 16))
        return text in seen

    try:
        wait_for("the live line", lambda: shown(b"pretrain: nodes 2/2 up, iteration 13/20"), 60)
        status = bench.status()
        assert status["nodes_up"] == 2 and "nodes 2/2 up" in bench.ms("status").out
        process.send_signal(signal.SIGINT)
        wait_for("the end", lambda: shown(b"") and process.poll() is not None, 60)
        assert process.wait() == 130
    finally:
        process.kill()
        os.close(ours)
    bench.faults()
    done = bench.run("pretrain", "--no-check", *nodes)
    assert done.code == 0 and done.err.count("pretrain: nodes 2/2 up") == 1, done.err


@pytest.mark.netns
def test_the_checks_keep_a_run_from_starting(net: Hosts) -> None:
    bench = Bench(net.shared / "checks")
    net.hosts[0].configure("AuthorizedKeysFile /nonexistent")
    done = bench.run("hf2mcore", "--nodes", str(net.hostfile(1, count=2)))
    assert done.code == 3 and net.hosts[0].ip in done.err and "passwordless ssh failed" in done.err, done.err
    assert "Traceback" not in done.err and not bench.calls()
