"""Open MPI starts the agents, over the same hosts."""

from __future__ import annotations

import shutil
import time

import pytest

from cluster.conftest import absent
from cluster.live import Live, job_for
from cluster.netns import Hosts, processes, wait_for
from cluster.test_run_nodes import Bench
from ms_recipe.cluster.hosts import parse_hostfile
from ms_recipe.cluster.launchers.mpirun import MpirunLauncher

pytestmark = [pytest.mark.mpi, pytest.mark.netns]


@pytest.fixture(autouse=True)
def mpirun() -> None:
    if shutil.which("mpirun") is None:
        absent("Open MPI is not installed")


def test_ranks_follow_the_hostfile_and_codes_come_back(net: Hosts) -> None:
    hosts = list(parse_hostfile(net.hostfile()).hosts)
    hosts = [hosts[2], hosts[0], hosts[1]]
    secret = "hf_ThisIsASecret"
    live = Live(job_for(hosts, "echo $NODE_RANK of $NNODES on $(hostname) ${OMPI_COMM_WORLD_RANK-none} $HF_TOKEN",
                        secrets={"HF_TOKEN": secret}), MpirunLauncher)
    assert live.end().ok
    assert {e["node"]: e["line"] for e in live.events if e["event"] == "line"} == {
        0: "0 of 3 on node3 none ***", 1: "1 of 3 on node1 none ***", 2: "2 of 3 on node2 none ***"}
    live = Live(job_for(hosts, "[ $NODE_RANK != 1 ] || exit 7; sleep 600"), MpirunLauncher)
    outcome = live.end()
    assert outcome.first_failure is not None
    assert (outcome.first_failure.node, outcome.first_failure.host, outcome.first_failure.code) == (1, hosts[1].label, 7)
    live.nothing_left()


def test_ctrl_c_and_a_killed_agent(net: Hosts) -> None:
    hosts = parse_hostfile(net.hostfile()).hosts
    live = Live(job_for(hosts), MpirunLauncher)
    live.training()
    live.interrupt()
    outcome = live.end()
    live.nothing_left()
    assert outcome.interrupted and outcome.unverified == []
    live = Live(job_for(hosts), MpirunLauncher)
    live.training()
    begin = time.monotonic()
    next(p for p in net.hosts[2].processes() if f"{live.job.run_id}/@" in p.argv and p.comm.startswith("python")).kill()
    outcome = live.end()
    assert outcome.first_failure is not None and outcome.first_failure.node == 2, outcome.as_dict()
    live.nothing_left(10)
    assert time.monotonic() - begin < 30


def test_the_mpirun_process_is_killed(net: Hosts) -> None:
    live = Live(job_for(parse_hostfile(net.hostfile()).hosts), MpirunLauncher)
    live.training()
    next(p for p in processes() if p.comm == "mpirun" and f"{live.job.run_id}/@" in p.argv).kill()
    outcome = live.end()
    assert not outcome.ok
    live.nothing_left(20)


def test_a_host_that_refuses(net: Hosts) -> None:
    net.hosts[1].configure("AuthorizedKeysFile /nonexistent")
    live = Live(job_for(parse_hostfile(net.hostfile()).hosts), MpirunLauncher)
    outcome = live.end(30)
    assert outcome.first_failure is not None and "Permission denied" in outcome.first_failure.what
    assert not live.seen("started")
    wait_for("nothing", lambda: not live.marked(net.hosts[0]))


def test_run_with_the_mpirun_launcher(net: Hosts) -> None:
    bench = Bench(net.shared / "mpirun")
    hostfile = net.hostfile(1, count=2)
    bench.ready("--nodes", str(hostfile), "--launcher", "mpirun")
    done = bench.run("pretrain", "--no-check", "--nodes", str(hostfile), "--launcher", "mpirun")
    assert done.code == 0, done.err
    status = bench.status()
    assert status["state"] == "succeeded" and [n["host"] for n in status["nodes"]] == [h.ip for h in net.hosts[:2]]
