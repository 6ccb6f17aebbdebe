"""A container prefix: what ``podman exec -i box`` does, with real namespaces on the hosts.

Each box has a pid, mount and uts namespace below its host's. The client that enters it (nsenter) has the process as a child
in another pid namespace: killing the client leaves it alone, as with podman and docker.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.live import Live, job_for
from cluster.netns import Hosts, NetHost, Process, of_run, processes, wait_for
from cluster.test_run_nodes import Bench, sleeping
from ms_recipe.cluster.hosts import parse_hostfile

pytestmark = pytest.mark.netns
STUB = """#!/bin/sh
[ "$1 $2 $3" = "exec -i box" ] || exit 125
shift 3
exec nsenter -t "$(cat /srv/box.pid)" -p -m -u -- "$@"
"""


def inits(host: NetHost) -> list[int]:
    """The boxes' first processes, by their ids on the host."""
    found = []
    for process in processes():
        if process.environ.get("MSR_BOX") == host.name and process.comm == "sleep":
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            ids = next(line for line in lines if line.startswith("NSpid")).split()[1:]
            if ids[-1] == "1":
                found.append(int(ids[-2]))
    return found


@pytest.fixture
def prefix(net: Hosts) -> Iterator[list[str]]:
    """A box on each of the first two hosts; the words that run a command in it."""
    stub = net.shared / "podman"
    stub.write_text(STUB)
    stub.chmod(0o755)
    boxes = [host.popen("env", f"MSR_BOX={host.name}", "unshare", "--pid", "--mount", "--uts", "--fork", "--kill-child",
                        "--mount-proc", "sh", "-c", "hostname box && exec sleep infinity") for host in net.hosts[:2]]
    try:
        for host in net.hosts[:2]:
            wait_for(f"the box of {host.name}", lambda h=host: inits(h))
            (host.dir / "work" / "box.pid").write_text(str(inits(host)[0]))
        yield [str(stub), "exec", "-i", "box"]
    finally:
        for process in processes():
            if process.environ.get("MSR_BOX"):
                process.kill()
        for box in boxes:
            box.wait()


def in_boxes(run_id: str) -> list[Process]:
    return [p for p in of_run(run_id) if len(next(line for line in Path(f"/proc/{p.pid}/status").read_text().splitlines()
                                                  if line.startswith("NSpid")).split()) == 4]


def start(net: Hosts, prefix: list[str]) -> Live:
    live = Live(job_for(parse_hostfile(net.hostfile(2, count=2)).hosts, prefix=prefix))
    live.training()
    assert all(e["hostname"] == "box" for e in live.events if e["event"] == "started")
    assert in_boxes(live.job.run_id)
    return live


def test_ctrl_c_and_a_killed_worker_leave_nothing_in_the_box(net: Hosts, prefix: list[str]) -> None:
    live = start(net, prefix)
    live.interrupt()
    outcome = live.end()
    live.nothing_left()
    assert outcome.interrupted and outcome.unverified == []
    live = start(net, prefix)
    next(p for p in in_boxes(live.job.run_id) if p.environ.get("LOCAL_RANK") == "0" and p.environ["MS_RECIPE_RUN"].endswith("/1")).kill()
    outcome = live.end()
    live.nothing_left()
    first = outcome.first_failure
    assert first is not None and (first.node, first.signal) == (1, signal.SIGKILL) and outcome.unverified == []


def test_the_client_is_killed_and_the_node_is_asked_again_inside(net: Hosts, prefix: list[str]) -> None:
    live = start(net, prefix)
    next(p for p in processes() if p.comm == "nsenter" and f"{live.job.run_id}/1" in p.argv).kill()
    outcome = live.end()
    live.nothing_left(15)
    assert outcome.first_failure is not None and outcome.first_failure.node == 1
    assert outcome.unverified == []


def test_stop_ends_what_is_in_the_box_after_the_supervisor_died(net: Hosts, prefix: list[str]) -> None:
    bench = Bench(net.shared / "box")
    hosts = ("--nodes", str(net.hostfile(1, count=2)), "--set", f"cluster.prefix={' '.join(prefix)}")
    bench.ready(*hosts)
    bench.faults("sleep-at-3")
    started = bench.run("pretrain", "--no-check", "--detach", "--unsupervised", *hosts)
    assert started.code == 0, started.err
    wait_for("iteration 3", lambda: sleeping(bench))
    record = bench.record()
    wait_for("both", lambda: {p.environ["MS_RECIPE_RUN"] for p in in_boxes(record["id"])} == {f"{record['id']}/{i}" for i in range(2)})
    os.kill(record["supervisor"]["pid"], signal.SIGKILL)
    wait_for("the run to be lost", lambda: bench.status()["state"] == "lost")
    assert in_boxes(record["id"])  # it goes on
    stopped = bench.ms("stop", "--grace", "1", "--json")
    assert stopped.code == 0, stopped.err
    assert json.loads(stopped.out)["unverified"] == [] and of_run(record["id"]) == []
