"""Rows of the fault table with the real torchrun: it gives each worker a session, and waits 30 s for a deaf one."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from cluster.live import Live, job_for
from cluster.netns import Hosts, wait_for
from ms_recipe.cluster.hosts import parse_hostfile

pytestmark = [pytest.mark.netns, pytest.mark.torch]
WORKER = """
import os, signal, sys, time
if os.environ["LOCAL_RANK"] == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    print(f" iteration {1:8d}/  100000 | rank {os.environ['RANK']}", flush=True)
    if os.path.exists(sys.argv[1]):
        raise RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB")
    time.sleep(0.1)
"""


def start(net: Hosts) -> Live:
    script = (
        f"set -euo pipefail\nmkdir -p /srv/t\ncat > /srv/t/worker.py <<'PYTHON_END'\n{WORKER}PYTHON_END\nrm -f /srv/t/break\n"
        "torchrun --nproc_per_node $NPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR "
        "--master_port $MASTER_PORT /srv/t/worker.py /srv/t/break 2>&1 | tee /srv/t/log\n")
    hosts = parse_hostfile(net.hostfile(2, count=2)).hosts
    live = Live(job_for(hosts, script, setup=f"export PATH='{Path(sys.executable).parent}':$PATH"))
    for node in range(2):
        for rank in (2 * node, 2 * node + 1):
            wait_for(f"rank {rank}: {live.events[-4:]}", lambda n=node, r=rank: live.seen("line", n, f"| rank {r}"), 120)
    return live


def test_a_worker_is_killed(net: Hosts) -> None:
    live = start(net)
    next(p for p in live.marked(net.hosts[1]) if p.environ.get("LOCAL_RANK") == "0").kill()
    begin = time.monotonic()
    outcome = live.end()
    live.nothing_left()
    assert time.monotonic() - begin < 20  # torchrun alone would wait 30 s for the other worker
    first = outcome.first_failure
    assert first is not None
    assert (first.node, first.local_rank, first.signal) == (1, 0, signal.SIGKILL), outcome.as_dict()
    assert outcome.unverified == []


def test_a_worker_raises(net: Hosts) -> None:
    live = start(net)
    (net.hosts[0].dir / "work" / "t" / "break").touch()
    outcome = live.end()
    live.nothing_left()
    first = outcome.first_failure
    assert first is not None and first.node == 0 and first.code == 1
    assert any("NPU out of memory" in line for line in first.last_lines), first.last_lines


def test_torchrun_is_killed(net: Hosts) -> None:
    live = start(net)
    torchrun = next(p for p in live.marked(net.hosts[1]) if any(a.endswith("torchrun") for a in p.argv))
    torchrun.kill()
    outcome = live.end()
    live.nothing_left()
    assert outcome.first_failure is not None
    assert (outcome.first_failure.node, outcome.first_failure.signal) == (1, signal.SIGKILL)


def test_ctrl_c(net: Hosts) -> None:
    live = start(net)
    live.interrupt()
    outcome = live.end()
    live.nothing_left()
    assert outcome.interrupted and outcome.unverified == []
