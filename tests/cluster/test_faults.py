"""What happens when something dies: each row with real processes on hosts of their own, over real sshd.

Never a process left (by the run's mark, on every host), never a success, always the right first cause.
"""

from __future__ import annotations

import random
import signal
import time

import pytest

from cluster.live import Live, job_for, trainee_script
from cluster.netns import Hosts, wait_for
from ms_recipe.cluster.hosts import parse_hostfile
from ms_recipe.cluster.supervise import Outcome

pytestmark = pytest.mark.netns


def start(net: Hosts, **options: object) -> Live:
    live = Live(job_for(parse_hostfile(net.hostfile()).hosts, **options))  # type: ignore[arg-type]
    live.training()
    return live


def failed_first(outcome: Outcome, net: Hosts, node: int) -> None:
    assert not outcome.ok
    assert outcome.first_failure is not None
    assert (outcome.first_failure.node, outcome.first_failure.host) == (node, net.hosts[node].ip), outcome.as_dict()


def test_all_ends_well(net: Hosts) -> None:
    job = job_for(parse_hostfile(net.hostfile()).hosts, "echo rank $NODE_RANK of $NNODES at $MASTER_ADDR:$MASTER_PORT")
    live = Live(job)
    outcome = live.end()
    assert outcome.ok, outcome.as_dict()
    lines = {e["node"]: e["line"] for e in live.events if e["event"] == "line"}
    assert lines == {i: f"rank {i} of 3 at {net.hosts[0].ip}:6000" for i in range(3)}
    assert [n.state for n in outcome.nodes] == ["done"] * 3
    assert (net.hosts[1].dir / "work" / "ms-recipe" / job.run_id / "1" / "agent.log").is_file()


@pytest.mark.parametrize("node", [0, 2])
def test_the_nodes_process_is_killed(net: Hosts, node: int) -> None:
    live = start(net)
    begin = time.monotonic()
    victim = next(p for p in live.marked(net.hosts[node]) if any(a.endswith("trainee.py") for a in p.argv))
    victim.kill()
    outcome = live.end()
    live.nothing_left()
    assert time.monotonic() - begin < 15
    failed_first(outcome, net, node)
    assert outcome.first_failure is not None and outcome.first_failure.signal == signal.SIGKILL
    assert outcome.unverified == []


def test_one_worker_is_killed(net: Hosts) -> None:
    live = start(net)
    victim = next(p for p in live.marked(net.hosts[1]) if p.environ.get("LOCAL_RANK") == "0")
    victim.kill()
    begin = time.monotonic()
    outcome = live.end()
    live.nothing_left()
    assert time.monotonic() - begin < 15  # the other worker ignores TERM, and torchrun would wait 30 s for it
    failed_first(outcome, net, 1)
    assert outcome.first_failure is not None
    assert (outcome.first_failure.local_rank, outcome.first_failure.signal) == (0, signal.SIGKILL)


def test_a_script_that_ignores_term(net: Hosts) -> None:
    live = start(net, script=trainee_script("trap '' TERM"))
    next(p for p in live.marked(net.hosts[0]) if p.environ.get("LOCAL_RANK") == "1").kill(signal.SIGABRT)
    failed_first(live.end(), net, 0)
    live.nothing_left()


def test_a_whole_node_is_cut_off(net: Hosts) -> None:
    live = start(net)
    begin = time.monotonic()
    net.hosts[1].cut()
    outcome = live.end()
    assert time.monotonic() - begin < 30
    failed_first(outcome, net, 1)
    assert outcome.unverified == [net.hosts[1].ip]
    assert outcome.nodes[1].state == "lost"
    live.nothing_left(30)  # the node noticed by itself, with nobody to tell it


def test_sshd_is_killed(net: Hosts) -> None:
    live = start(net)
    net.hosts[2].kill_sshd()
    outcome = live.end()
    failed_first(outcome, net, 2)
    assert outcome.unverified == [net.hosts[2].ip]  # nobody answers there any more
    live.nothing_left(15)


def test_the_agent_is_killed(net: Hosts) -> None:
    live = start(net)
    agent = next(p for p in net.hosts[1].processes() if f"{live.job.run_id}/1" in p.argv)
    agent.kill()
    outcome = live.end()
    live.nothing_left()
    failed_first(outcome, net, 1)
    assert outcome.unverified == []  # asked again over a new connection


def test_an_agent_that_hangs_is_lost(net: Hosts) -> None:
    live = start(net)
    agent = next(p for p in net.hosts[1].processes() if f"{live.job.run_id}/1" in p.argv)
    agent.kill(signal.SIGSTOP)
    outcome = live.end()
    live.nothing_left(15)
    failed_first(outcome, net, 1)
    assert outcome.unverified == []


def test_ctrl_c_once_and_twice(net: Hosts) -> None:
    live = start(net)
    live.interrupt()
    outcome = live.end()
    live.nothing_left()
    assert outcome.interrupted and not outcome.ok and outcome.first_failure is None and outcome.unverified == []
    live = start(net, grace_s=60.0)
    begin = time.monotonic()
    live.interrupt()
    wait_for("the stop", lambda: live.seen("stopping", 1))
    live.interrupt()
    assert live.end().interrupted
    live.nothing_left()
    assert time.monotonic() - begin < 15


def test_ctrl_c_with_a_node_cut_off_names_it(net: Hosts) -> None:
    live = start(net)
    net.hosts[2].cut()
    live.interrupt()
    outcome = live.end()
    assert outcome.interrupted and outcome.unverified == [net.hosts[2].ip]
    live.nothing_left(15)


def test_remote_disk_full(net: Hosts) -> None:
    host = net.hosts[1]
    (host.dir / "work" / "full").mkdir(exist_ok=True)
    host.enter("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/srv/full")
    try:
        live = Live(job_for(parse_hostfile(net.hostfile()).hosts, "set -eu\nmkdir -p /srv/full\n"
                            "while :; do head -c 16384 /dev/zero >> /srv/full/data; sleep 0.2; done"))
        outcome = live.end()
        failed_first(outcome, net, 1)
        assert outcome.first_failure is not None
        assert "No space left on device" in "\n".join(outcome.first_failure.last_lines)
        # and the node's own folder on the full disk: the run starts all the same, with its log in /tmp
        live = Live(job_for(parse_hostfile(net.hostfile()).hosts, "echo here", node_dir="/srv/full/node"))
        assert live.end().ok
        assert "/tmp/ms-recipe-" in live.events[[e["event"] == "started" and e["node"] == 1 for e in live.events].index(True)]["log"]
    finally:
        host.enter("umount", "/srv/full")
        for other in net.hosts:
            other.enter("rm", "-rf", "/srv/full")


def test_password_prompt(net: Hosts) -> None:
    net.hosts[1].configure("AuthorizedKeysFile /nonexistent")
    live = Live(job_for(parse_hostfile(net.hostfile()).hosts))
    outcome = live.end(25)
    failed_first(outcome, net, 1)
    assert "passwordless ssh failed" in str(outcome.first_failure)
    assert not live.seen("started")


def test_unknown_host_key(net: Hosts) -> None:
    known = net.base / "known_hosts"
    text = known.read_text()
    try:
        known.write_text("".join(line + "\n" for line in text.splitlines() if net.hosts[2].ip not in line))
        outcome = Live(job_for(parse_hostfile(net.hostfile()).hosts)).end(25)
        failed_first(outcome, net, 2)
        assert "does not know the host's key" in str(outcome.first_failure)
    finally:
        known.write_text(text)


def test_others_processes_are_left_alone(net: Hosts) -> None:
    """A trainer of somebody else, and one of another run whose id begins alike, go on."""
    live = start(net)
    host, nap = net.hosts[0], "import time; time.sleep(300)  # torchrun"
    marks = [f"{live.job.run_id}/00", f"{live.job.run_id}/1", "other/0"]
    others = [host.popen("env", f"MS_RECIPE_RUN={mark}", "python3", "-c", nap) for mark in marks]
    try:
        wait_for("the others", lambda: len([p for p in host.processes() if nap in p.argv and p.comm != "env"]) == 3)
        live.interrupt()
        live.end()
        assert len([p for p in host.processes() if nap in p.argv]) == 3
    finally:
        for p in others:
            host.end(p, nap)


@pytest.mark.parametrize("seed", range(20))
def test_random_kill_times(net: Hosts, seed: int) -> None:
    """Kill anything of the run at any time, on one host: all ends, that host is named, nothing is left."""
    chance = random.Random(seed)
    node = chance.randrange(3)
    host = net.hosts[node]
    live = Live(job_for(parse_hostfile(net.hostfile()).hosts, grace_s=0.5))
    wait_for("the agents", lambda: all(live.seen("connected", i) for i in range(3)))
    wait_for("a process to kill", lambda: live.marked(host) or live.seen("started", node))
    time.sleep(chance.random() * 0.6)  # the time is what is drawn here
    wait_for("something to kill", lambda: [p for p in live.marked(host) if p.comm != "tee"])
    victims = [p for p in live.marked(host) if p.comm not in ("tee", "mktemp", "cat")]
    if victims:
        chance.choice(victims).kill()
    else:
        next(p for p in host.processes() if f"{live.job.run_id}/{node}" in p.argv).kill()
    outcome = live.end()
    live.nothing_left()
    failed_first(outcome, net, node)
    assert outcome.unverified == []
