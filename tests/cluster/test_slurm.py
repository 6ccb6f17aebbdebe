"""A real Slurm with two nodes on this machine: slurmctld, two slurmd, munged, all of the test's own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.conftest import absent
from cluster.live import Live, job_for
from cluster.netns import of_run, processes, wait_for
from cluster.test_main_job import golden_job
from cluster.test_run_nodes import Bench
from ms_recipe.cluster.launchers.slurm import SlurmLauncher

pytestmark = pytest.mark.slurm
TOOLS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol")


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in socks:
            sock.bind(("", 0))
        return [sock.getsockname()[1] for sock in socks]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    gone = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    if gone or os.geteuid() != 0:
        absent("Slurm is not installed: " + " ".join(gone) if gone else "needs root")
    base = tmp_path_factory.mktemp("slurm")
    base.chmod(0o755)
    key = base / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    munge = base / "munge"
    munge.mkdir(mode=0o755)
    control, one, two = free_ports(3)
    host = socket.gethostname().split(".")[0]
    conf = base / "slurm.conf"
    for name in ("state", "spool-n1", "spool-n2"):
        (base / name).mkdir()
    conf.write_text(
        f"ClusterName=t\nSlurmctldHost={host}\nSlurmctldPort={control}\nSlurmUser=root\nSlurmdUser=root\n"
        f"AuthType=auth/munge\nAuthInfo=socket={munge}/socket\nCryptoType=crypto/munge\nStateSaveLocation={base}/state\n"
        f"SlurmdSpoolDir={base}/spool-%n\nSlurmctldPidFile={base}/ctld.pid\nSlurmdPidFile={base}/d-%n.pid\n"
        f"SlurmctldLogFile={base}/ctld.log\nSlurmdLogFile={base}/d-%n.log\nProctrackType=proctrack/linuxproc\n"
        "TaskPlugin=task/none\nSelectType=select/cons_tres\nReturnToService=2\nSlurmdTimeout=30\nKillWait=5\n"
        "MpiDefault=none\nSchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1\n"
        f"NodeName=n1 NodeHostname={host} Port={one} CPUs=2\n"
        f"NodeName=n2 NodeHostname={host} Port={two} CPUs=2\n"
        "PartitionName=p Nodes=n[1-2] Default=YES State=UP OverSubscribe=YES\n")
    env = {**os.environ, "SLURM_CONF": str(conf), "PATH": path}
    daemons = [["munged", "-F", "--force", "--key-file", str(key), "--socket", f"{munge}/socket", "--pid-file",
                f"{munge}/pid", "--log-file", f"{munge}/log", "--seed-file", f"{munge}/seed"],
               ["slurmctld", "-D", "-f", str(conf)], ["slurmd", "-D", "-N", "n1", "-f", str(conf)],
               ["slurmd", "-D", "-N", "n2", "-f", str(conf)]]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for argv in daemons:
            with (base / f"{argv[0]}{len(running)}.out").open("wb") as out:
                running.append(subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
            if argv[0] == "munged":
                wait_for("munged", (munge / "socket").exists)

        def idle() -> bool:
            done = subprocess.run(["sinfo", "-h", "-o", "%D %T"], env=env, capture_output=True, text=True)
            return done.stdout.strip() == "2 idle"

        wait_for(f"two idle nodes; see {base}", idle, 30)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", str(conf))
            patch.setenv("PATH", path)
            yield base
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def submit(folder: Path) -> Callable[[], SlurmLauncher]:
    return lambda: SlurmLauncher(2, folder=folder)


def queue() -> str:
    return subprocess.run(["squeue", "-h", "-o", "%i %T"], capture_output=True, text=True).stdout.strip()


def test_a_batch_job_runs_on_two_nodes(slurm: Path, tmp_path: Path) -> None:
    live = Live(job_for([], "echo $NODE_RANK of $NNODES $MASTER_ADDR:$MASTER_PORT $HF_TOKEN $SLURMD_NODENAME",
                        node_dir=str(tmp_path / "node"), secrets={"HF_TOKEN": "hf_ThisIsASecret"}), submit(tmp_path))
    outcome = live.end(60)
    assert outcome.ok, outcome.as_dict()
    lines = {e["node"]: e["line"] for e in live.events if e["event"] == "line"}
    assert {n: line.split()[0] for n, line in lines.items()} == {0: "0", 1: "1"}
    assert lines[1].endswith(" *** n2") and " of 2 " in lines[1]
    script = (tmp_path / "pretrain.sbatch").read_text()
    assert "#SBATCH --nodes=2" in script and "hf_This" not in script and "MS_RECIPE_TOKEN=" not in script
    wait_for("an empty queue", lambda: not queue())


def test_codes_come_back_and_ctrl_c_cancels(slurm: Path, tmp_path: Path) -> None:
    live = Live(job_for([], "[ $NODE_RANK != 1 ] || exit 9; sleep 600", node_dir=str(tmp_path / "node")),
                submit(tmp_path))
    outcome = live.end(60)
    assert outcome.first_failure is not None
    assert (outcome.first_failure.node, outcome.first_failure.host, outcome.first_failure.code) == (1, "n2", 9)
    live.nothing_left()
    live = Live(job_for([], node_dir=str(tmp_path / "node")), submit(tmp_path))
    wait_for("training", lambda: live.error or (live.seen("line", 0, "iteration") and live.seen("line", 1, "iteration")),
             40)
    live.interrupt()
    outcome = live.end(60)
    live.nothing_left()
    assert outcome.interrupted and outcome.unverified == []
    wait_for("an empty queue", lambda: not queue())


def test_ctrl_c_while_the_queue_is_full(slurm: Path, tmp_path: Path) -> None:
    hold = subprocess.Popen(["srun", "-N2", "--exclusive", "sleep", "60"])
    try:
        wait_for("the nodes to be taken", lambda: "RUNNING" in queue())
        live = Live(job_for([], "echo never", node_dir=str(tmp_path / "node")),
                    lambda: SlurmLauncher(2, ["--exclusive"], tmp_path))
        wait_for("the job to wait", lambda: "PENDING" in queue())
        live.interrupt()
        outcome = live.end(30)
        assert outcome.interrupted and not live.events
        wait_for("the job to leave the queue", lambda: "PENDING" not in queue())
    finally:
        hold.terminate()
        hold.wait()


def test_inside_an_allocation(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = subprocess.run(["salloc", "-N2", "--no-shell"], capture_output=True, text=True)
    number = holder.stderr.split("Granted job allocation ")[1].split()[0]
    monkeypatch.setenv("SLURM_JOB_ID", number)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    try:
        live = Live(job_for([], "echo $NODE_RANK $SLURMD_NODENAME", node_dir=str(tmp_path)), submit(tmp_path))
        assert live.end(60).ok
        assert {e["line"] for e in live.events if e["event"] == "line"} == {"0 n1", "1 n2"}
        assert not (tmp_path / "pretrain.sbatch").exists()
        assert of_run(live.job.run_id) == []
    finally:
        subprocess.run(["scancel", number])


def slurm_bench(tmp_path: Path) -> tuple[Bench, tuple[str, ...]]:
    bench = Bench(tmp_path)
    bench.env.update(SLURM_CONF=os.environ["SLURM_CONF"], PATH=os.environ["PATH"])
    words = ("--launcher", "slurm", "--set", "cluster.nnodes=2")
    bench.ready(*words)
    return bench, words


def test_run_with_the_slurm_launcher(slurm: Path, tmp_path: Path) -> None:
    bench, words = slurm_bench(tmp_path)
    done = bench.run("pretrain", *words)
    assert done.code == 0, done.err
    assert "the nodes are checked when Slurm has given them" in done.err and "environment  ok on 2 of 2" in done.err, done.err
    status = bench.status()
    assert status["state"] == "succeeded" and [n["host"] for n in status["nodes"]] == ["n1", "n2"]
    bench.faults("die-at-13")
    failed = bench.run("pretrain", *words, "--no-check", "--rerun", "--set", f"paths.save={tmp_path}/save")
    assert failed.code == 4 and "exit code 7" in failed.err and "ok on 2" not in failed.err, failed.err


def test_a_node_of_the_allocation_that_fails_a_check(slurm: Path, tmp_path: Path) -> None:
    bench, words = slurm_bench(tmp_path)
    done = bench.run("pretrain", *words, "--set", "cluster.interface=nope0")
    assert done.code == 3 and "error: n1: interface: there is no interface nope0" in done.err and "error: n2: " in done.err, done.err
    assert "Traceback" not in done.err, done.err
    wait_for("an empty queue", lambda: not queue())
    assert "pretrain_gpt.py" not in (bench.tree / "logs" / "calls").read_text()


@pytest.mark.parametrize("queued", [False, True])
def test_stop_cancels_the_job_after_the_launcher_died(slurm: Path, tmp_path: Path, queued: bool) -> None:
    bench, words = slurm_bench(tmp_path)
    bench.faults("sleep-at-3")
    hold = subprocess.Popen(["srun", "-N2", "--exclusive", "sleep", "120"]) if queued else None
    process = None
    try:
        if hold is not None:
            wait_for("the nodes to be taken", lambda: "RUNNING" in queue())
        process = subprocess.Popen(
            [sys.executable, "-m", "ms_recipe", *bench.words("pretrain", *words, "--no-check", "--set", "cluster.slurm_options=--exclusive")],
            cwd=bench.work, env=bench.env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for("the job", lambda: "PENDING" in queue() if queued else (bench.tree / "logs" / "sleeping").exists(), 60)
        wait_for("its number in the record", lambda: bench.record().get("slurm_job"))
        number = bench.record()["slurm_job"]
        assert number in queue()
        process.kill()
        process.wait()
        stopped = bench.ms("stop", "--grace", "1")
        assert stopped.code == 0, stopped.err
        assert f"interrupted; Slurm job {number} is not in the queue" in stopped.out and "were not asked" in stopped.out
        assert number not in queue()
        wait_for("the end of all processes", lambda: not of_run(bench.record()["id"]), 20)
        assert bench.ms("stop").code == 0
    finally:
        for one in (process, hold):
            if one is not None:
                one.terminate()
                one.wait()
        for left in processes():  # it outlives the launcher that was killed, and Slurm's end
            if left.comm == "sbatch" and any(str(tmp_path) in word for word in left.argv):
                left.kill()
    wait_for("an empty queue", lambda: not queue())


def test_a_job_that_slurm_refuses(slurm: Path, tmp_path: Path) -> None:
    live = Live(job_for([], "echo never", node_dir=str(tmp_path)), lambda: SlurmLauncher(2, ["--partition=nope"], tmp_path))
    with pytest.raises(Exception, match="sbatch refused the job"):
        live.end(30)


@pytest.mark.torch
def test_the_main_job_gives_the_golden_losses(slurm: Path, tmp_path: Path) -> None:
    golden_job(tmp_path / "work", "slurm", ["n1", "n2"], None, 29517,
               **{"cluster.nnodes": 2, "cluster.npus_per_node": 2, "cluster.interface": "lo"})
