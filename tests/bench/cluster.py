"""Scale: command to last node started, memory, lines merged a second; next to ``clush`` with the same remote command.

Real ssh goes to one sshd on loopback (127.0.0.1, 127.0.0.2, ... are all this machine), so both ends share the cores; beyond
that a transport in memory takes the place of ssh, which leaves the supervisor's own cost. BENCH_SSH=1,16,64,256 asks for more
real connections: both ends of each take some 50 MiB here, and a core's time to log in.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ms_recipe.cluster.hosts import Host
from ms_recipe.cluster.job import Job, Node, make_nodes
from ms_recipe.cluster.launchers import Channel
from ms_recipe.cluster.launchers.ssh import SshLauncher
from ms_recipe.cluster.supervise import supervise

REAL = tuple(int(n) for n in os.environ.get("BENCH_SSH", "1,16,64").split(","))
FAKE = (1, 16, 64, 256, 1024, 4096)
LINES = 50  # a node


class FakeChannel:
    """An agent in memory: hello, started, LINES lines, exit 0, nothing left."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.queue.put_nowait({"event": "hello", "pid": 1, "hostname": "fake"})

    async def send(self, message: Mapping[str, Any]) -> None:
        if "go" in message:
            line = " iteration       10/    2000 | consumed samples:          320 | lm loss: 1.150000E+01 |"
            self.queue.put_nowait({"event": "started", "pid": 2, "hostname": "fake", "log": "/x"})
            for _ in range(LINES // 10):
                self.queue.put_nowait({"event": "lines", "lines": [line] * 10})
            self.queue.put_nowait({"event": "exit", "code": 0})
            self.queue.put_nowait({"event": "stopped", "left": []})
            self.queue.put_nowait(None)

    async def receive(self) -> dict[str, Any] | None:
        return await self.queue.get()

    async def ended(self) -> tuple[int, str]:
        return 0, ""

    async def finish(self) -> None:
        return

    def kill(self) -> None:
        return

    async def close(self) -> None:
        return


class FakeLauncher:
    """No transport at all."""

    name = "fake"
    parallel = 64
    retries = 0

    async def prepare(self, job: Job) -> Job:
        return job

    async def open(self, job: Job, node: Node, program: bytes | None = None) -> Channel:
        await asyncio.sleep(0)
        return FakeChannel()

    def again(self, code: int, error: str) -> bool:
        return False

    def explain(self, node: Node, code: int, error: str) -> tuple[str, str]:
        return "", ""

    async def close(self) -> None:
        return


def measure(job: Job, launcher: Any) -> tuple[float, float, int]:
    """Seconds to the last node started, seconds in all, lines."""
    begin = time.monotonic()
    last, lines = 0.0, 0

    def tell(event: dict[str, Any]) -> None:
        nonlocal last, lines
        if event["event"] == "started":
            last = time.monotonic() - begin
        elif event["event"] == "line":
            lines += 1

    outcome = asyncio.run(supervise(job, launcher, tell))
    assert outcome.ok, outcome.first_failure
    return last, time.monotonic() - begin, lines


def hosts(count: int, port: int | None = None) -> list[Host]:
    return [Host(f"127.0.{i // 250}.{i % 250 + 1}", None, port, 8) for i in range(count)]


def fake() -> None:
    print("in memory: nodes, s to last started, s in all, lines/s merged, us a node, MiB of the process")
    for count in FAKE:
        started, total, lines = measure(Job("b", "pretrain", "x", make_nodes(hosts(count), master_addr="10.0.0.1")),
                                        FakeLauncher())
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"  {count:5} {started:8.3f} {total:8.3f} {lines / total:10.0f} {started / count * 1e6:8.0f} {memory:7.0f}")


def real() -> None:
    sshd, clush = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin"), shutil.which("clush")
    if sshd is None:
        print("ssh: not measured, there is no sshd")
        return
    with tempfile.TemporaryDirectory(dir=Path.home()) as name, socket.socket() as sock:
        base = Path(name)
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        sock.close()
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(base / key)], check=True)
        (base / "sshd_config").write_text(
            f"Port {port}\nHostKey {base}/host\nAuthorizedKeysFile {base}/user.pub\nStrictModes no\nUsePAM no\n"
            "PidFile none\nMaxStartups 2000\nMaxSessions 2000\nUseDNS no\nPermitRootLogin yes\n")
        (base / "ssh_config").write_text(
            f"Host *\n  IdentityFile {base}/user\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
            "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n")
        (base / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {base}/ssh_config "$@"\n')
        (base / "ssh").chmod(0o755)
        Path("/run/sshd").mkdir(exist_ok=True)
        server = subprocess.Popen([sshd, "-D", "-f", str(base / "sshd_config")], stderr=subprocess.DEVNULL)
        os.environ["PATH"] = f"{base}:{os.environ['PATH']}"
        try:
            end = time.monotonic() + 10
            while time.monotonic() < end:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            # The scripts sleep: nodes that end early would look through /proc, which here holds the others' processes too.
            print("ssh to loopback: nodes, s to last started, s in all; clush -f N of `python3 -c pass`; ratio")
            for count in REAL:
                nodes = make_nodes(hosts(count, port), master_addr="10.0.0.1")
                job = Job("bench", "pretrain", "sleep 10", nodes, connect_timeout_s=120, node_dir=str(base / "node"))
                started, total, _ = measure(job, SshLauncher())
                line = f"  {count:5} {started:8.2f} {total:8.2f}"
                if clush:
                    begin = time.monotonic()
                    subprocess.run([clush, "-f", str(count), "-o", f"-F {base}/ssh_config -p {port}", "-w",
                                    ",".join(h.name for h in hosts(count)), "python3 -c pass"], check=True,
                                   stdin=subprocess.DEVNULL, capture_output=True)
                    other = time.monotonic() - begin
                    line += f" {other:8.2f} {started / other:6.2f}"
                print(line, flush=True)
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    fake()
    real()


if __name__ == "__main__":
    sys.exit(main())
