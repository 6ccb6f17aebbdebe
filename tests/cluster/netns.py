"""Hosts for tests: each one is a net, mount, uts and pid namespace with an sshd, a /tmp and a work folder of its own.

They hang on a bridge in the caller's network namespace. /proc is mounted anew in each, so a host sees its own processes
only; the caller sees all of them, which is how tests prove that nothing is left. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

TOOLS = ("unshare", "nsenter", "ip", "sshd", "ssh-keygen", "ssh", "mount")
INIT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/host /run/sshd /run/shared
mount --bind "$DIR" /run/host
mount --bind "$DIR/../shared" /run/shared
n=0; for keep in $KEEP; do n=$((n + 1)); mkdir -p /run/keep/$n; mount --bind "$keep" /run/keep/$n; done
mount --bind /run/host/home /root
mount --bind /run/host/work /srv
mount --bind /run/host/tmp /tmp
mount -t tmpfs tmpfs /dev/shm
n=0; for keep in $KEEP; do n=$((n + 1)); mkdir -p "$keep"; mount --bind /run/keep/$n "$keep"; done
hostname "$NAME"
ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip addr add "$IP/24" dev eth0
ip link set eth0 up
cd /
/usr/sbin/sshd -f /run/host/sshd_config -E /run/host/sshd.log
exec sleep infinity
"""


# The checkout and the interpreter stay where they are on every host, also below /tmp and /root.
KEEP = [str(p) for p in dict.fromkeys(Path(p).resolve() for p in (Path(__file__).parents[2], sys.prefix, sys.base_prefix))
        if p.parts[1] in ("tmp", "root")]


def missing() -> str:
    """Why these hosts cannot be made here; empty when they can."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [tool for tool in TOOLS if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None]
    if absent:
        return "not installed: " + " ".join(absent)
    probe = subprocess.run(["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "true"],
                           capture_output=True, text=True)
    return "" if probe.returncode == 0 else "namespaces are not allowed here: " + probe.stderr.strip()


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def wait_for(what: str, condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until ``condition`` holds, or fail naming ``what``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


@dataclass(frozen=True)
class Process:
    pid: int
    comm: str
    argv: list[str]
    environ: dict[str, str]

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def processes(namespace: str | None = None) -> list[Process]:
    """Living processes, of one pid namespace (``/proc/<pid>/ns/pid``) or of all, as the caller sees them."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if namespace is not None and str((folder / "ns" / "pid").readlink()) != namespace:
                    continue
                if (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                    continue
                pairs = (item.partition(b"=") for item in (folder / "environ").read_bytes().split(b"\0") if item)
                found.append(Process(
                    int(folder.name), (folder / "comm").read_text().strip(),
                    [word.decode(errors="replace") for word in (folder / "cmdline").read_bytes().split(b"\0")[:-1]],
                    {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}))
    return found


def of_run(run_id: str, namespace: str | None = None) -> list[Process]:
    """Processes that carry the run's mark, on every host and here."""
    return [p for p in processes(namespace) if p.environ.get("MS_RECIPE_RUN", "").split("/")[0] == run_id]


@dataclass
class NetHost:
    """One host. ``dir/work`` is its /srv, ``dir/tmp`` its /tmp, ``dir/home`` its /root; all share /run/shared,
    which is ``Hosts.shared`` for the caller and on the hosts alike."""

    name: str
    ip: str
    dir: Path
    link: str
    process: subprocess.Popen[bytes]
    init: int = 0
    extra: list[str] = field(default_factory=list)

    @property
    def namespace(self) -> str:
        return str(Path(f"/proc/{self.init}/ns/pid").readlink())

    def processes(self) -> list[Process]:
        return processes(self.namespace)

    def enter(self, *argv: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command on the host (as a console would, without ssh)."""
        return subprocess.run(["nsenter", "-t", str(self.init), "-a", *argv], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload, no-any-return]

    def popen(self, *argv: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["nsenter", "-t", str(self.init), "-a", *argv], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self, process: subprocess.Popen[bytes], argument: str) -> None:
        """End what :meth:`popen` started: nsenter has a child, known by ``argument``."""
        for found in self.processes():
            if argument in found.argv:
                found.kill()
        process.wait()

    def cut(self) -> None:
        """Interface down: nothing comes through, and nobody is told."""
        run("ip", "link", "set", self.link, "down")

    def mend(self) -> None:
        run("ip", "link", "set", self.link, "up")

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.ip, 22), timeout=0.5) as link:
            return link.recv(4) == b"SSH-"
        return False

    def configure(self, *lines: str) -> None:
        """Give sshd more configuration lines (first value wins in sshd_config) and wait for it."""
        base = (self.dir / "sshd_base").read_text()
        (self.dir / "sshd_config").write_text("\n".join(lines) + "\n" + base)
        self.restart_sshd()

    def kill_sshd(self) -> None:
        """Kill sshd and its sessions with KILL, as an out-of-memory killer may."""
        for process in self.processes():
            if process.comm.startswith("sshd"):
                process.kill()

    def restart_sshd(self) -> None:
        """Start sshd anew."""
        self.kill_sshd()
        wait_for("the old sshd to go", lambda: not [p for p in self.processes() if p.comm.startswith("sshd")])
        self.enter("/usr/sbin/sshd", "-f", "/run/host/sshd_config", "-E", "/run/host/sshd.log")
        wait_for(f"sshd of {self.name}", self.answers)


class Hosts:
    """``count`` hosts under ``base``, reachable through ``ssh_bin`` first on PATH (an ssh with our config)."""

    def __init__(self, base: Path, count: int) -> None:
        self.base = base
        self.hosts: list[NetHost] = []
        tag = f"{os.getpid() % 0xFFFFF:05x}"
        self.bridge = f"msr{tag}"
        self.shared = base / "shared"
        self.net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250 + 1}"
        self.env = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        try:
            self._make(count, tag)
        except BaseException:
            self.close()
            raise

    def _make(self, count: int, tag: str) -> None:
        self.base.chmod(0o755)
        (self.base / "shared").mkdir()
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.net}.254/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.base / "key"))
        known = []
        for number in range(1, count + 1):
            host = self._host(number, tag)
            self.hosts.append(host)
            known.append(f"{host.name},{host.ip} {(host.dir / 'hostkey.pub').read_text()}")
        (self.base / "known_hosts").write_text("".join(known))
        aliases = "".join(f"Host {h.name}\n  HostName {h.ip}\n" for h in self.hosts)
        (self.base / "ssh_config").write_text(
            f"{aliases}Host *\n  IdentityFile {self.base}/key\n  IdentitiesOnly yes\n  User root\n"
            f"  UserKnownHostsFile {self.base}/known_hosts\n  GlobalKnownHostsFile /dev/null\n")
        (self.base / "bin").mkdir()
        wrapper = self.base / "bin" / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {self.base}/ssh_config "$@"\n')
        wrapper.chmod(0o755)
        for host in self.hosts:
            wait_for(f"sshd of {host.name}", host.answers)

    def _host(self, number: int, tag: str) -> NetHost:
        name, ip, folder = f"node{number}", f"{self.net}.{number}", self.base / f"node{number}"
        for part in ("home", "work", "tmp"):
            (folder / part).mkdir(parents=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "hostkey"))
        shutil.copy(self.base / "key.pub", folder / "authorized_keys")
        base = ("Port 22\nHostKey /run/host/hostkey\nAuthorizedKeysFile /run/host/authorized_keys\nUsePAM no\n"
                "StrictModes no\nPidFile none\nPermitRootLogin yes\nPasswordAuthentication yes\nMaxStartups 200\n"
                "UseDNS no\nPrintMotd no\n")
        (folder / "sshd_base").write_text(base)
        (folder / "sshd_config").write_text(base)
        # A shell stays the namespace's first process, so that killing sshd does not end the host.
        process = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
             "bash", "-c", INIT], env={**self.env, "DIR": str(folder), "NAME": name, "IP": ip, "KEEP": " ".join([*KEEP, str(self.base / "shared")])},
            stdin=subprocess.DEVNULL, stdout=(folder / "init.log").open("wb"), stderr=subprocess.STDOUT,
            start_new_session=True)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_for(f"{name} to start", lambda: children.read_text().split())
        init = int(children.read_text().split()[0])
        link = f"msr{tag}h{number}"
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(init))
        run("ip", "link", "set", link, "master", self.bridge, "up")
        return NetHost(name, ip, folder, link, process, init)

    def hostfile(self, slots: int = 2, *, names: bool = False, count: int | None = None) -> Path:
        """A hostfile with the hosts' addresses (or ssh_config's aliases)."""
        path = self.base / f"hostfile{slots}{names}{count}"
        path.write_text("".join(f"{h.name if names else h.ip} slots={slots}\n" for h in self.hosts[:count]))
        return path

    def close(self) -> None:
        """Kill the hosts and remove the bridge; the namespaces take links and mounts along."""
        for host in self.hosts:
            for pid in (host.init, host.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            host.process.wait()
            subprocess.run(["ip", "link", "del", host.link], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)
