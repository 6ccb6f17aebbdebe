"""ssh: the user's OpenSSH (config, keys, agent, jump hosts), one process a node."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence

from ms_recipe.cluster import bootstrap
from ms_recipe.cluster.hosts import Host
from ms_recipe.cluster.job import Job, Node
from ms_recipe.cluster.launchers import Channel, Direct, ProcessChannel, last_line, program_line

# BatchMode: never a prompt, a password or an unknown host key is an error at once. ServerAlive: a dead link is seen
# after 15 s. ControlMaster=no: a master left in the background would hold our pipes (an existing one is used).
OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3", "ControlMaster=no",
           "RemoteCommand=none", "ClearAllForwardings=yes", "PermitLocalCommand=no")
# Connections being set up at once: ssh's key exchange is the launching machine's own work, and more of them than its
# cores can do at a time hold each other up (64 hosts from 2 cores: 16 s with 64 at once, 10 s with 16).
PARALLEL = min(64, 8 * (os.cpu_count() or 1))
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED",
     "ssh does not know the host's key (or the key has changed)",
     "log in once by hand with `ssh {target}` and accept the key, or add it with ssh-keyscan"),
    (r"Permission denied",
     "passwordless ssh failed: the host refused every key",
     "make `ssh -o BatchMode=yes {target} true` work (ssh-copy-id {target})"),
    (r"Too many authentication failures", "ssh tried too many keys", "name the key in ~/.ssh/config (IdentityFile)"),
    (r"Could not resolve hostname", "the name is unknown", "correct the hostfile or add the name to DNS or /etc/hosts"),
    (r"Connection refused", "nothing listens on its ssh port", "start sshd there, or give the port as host:port"),
    (r"timed out|No route to host|Network is unreachable", "the host is not reachable", "check that it is up"),
    (r"python 3.8 or later is needed on the node.*", "{match}", "name another one with cluster.python"),
)
_AGAIN = re.compile(r"kex_exchange_identification|Connection (closed|reset) by|ssh_exchange_identification", re.I)


def ssh_argv(host: Host, options: Sequence[str] = OPTIONS, extra: Sequence[str] = ()) -> list[str]:
    """The ssh words up to the host: the remote command follows as one word. ``extra`` are the user's own options, in
    front of ours since ssh takes the first value it sees."""
    argv = ["ssh", "-T", "-x", *extra, *(word for option in options for word in ("-o", option))]
    if host.port is not None:
        argv += ["-p", str(host.port)]
    if host.user is not None:
        argv += ["-l", host.user]
    return [*argv, "--", host.name]


def remote_command(words: Sequence[str]) -> str:
    """``words`` as one command for the remote user's shell (sshd hands it to the login shell with -c)."""
    return "exec " + shlex.join(words)


def resolve(host: Host) -> str:
    """The address that ssh connects to for ``host``: an alias of ~/.ssh/config is no name that other nodes know."""
    try:
        done = subprocess.run([*ssh_argv(host, ())[:-2], "-G", "--", host.name], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return host.name
    found = re.search(r"^hostname (\S+)$", done.stdout, re.M)
    return found.group(1) if found else host.name


class SshLauncher(Direct):
    """Start agents through ssh, at most ``parallel`` being set up at once. ``retries``: how often a connection that
    sshd dropped before login is tried again (its MaxStartups drops some when many come at once).
    """

    name = "ssh"

    def __init__(self, parallel: int = PARALLEL, retries: int = 5, options: Sequence[str] = ()) -> None:
        self.parallel = parallel
        self.retries = retries
        self.options = list(options)

    async def open(self, job: Job, node: Node, program: bytes | None = None) -> Channel:
        """Start the agent on ``node`` (behind ``job.prefix``)."""
        assert node.host is not None
        words = [*job.prefix, *bootstrap.command(f"{job.run_id}/{node.rank}", job.python)]
        return await ProcessChannel.spawn(
            [*ssh_argv(node.host, extra=self.options), remote_command(words)], program_line(program))

    def again(self, code: int, error: str) -> bool:
        """True when the connection was dropped before login, so that another try is harmless."""
        return code == 255 and bool(_AGAIN.search(error))

    def explain(self, node: Node, code: int, error: str) -> tuple[str, str]:
        """Name the usual causes of a connection that did not come up."""
        host = node.host
        target = node.label if host is None else (f"{host.user}@" if host.user else "") + host.name
        if host is not None and host.port is not None:
            target = f"-p {host.port} {target}"
        if code == 127 or "not found" in error:
            return (f"the agent did not start (exit {code}): {last_line(error)}",
                    "python3 must be on the PATH of a non-interactive shell, or name it with cluster.python")
        for pattern, what, fix in _CAUSES:
            match = re.search(pattern, error)
            if match:
                said = "" if "{match}" in what else f" ({last_line(error)})"
                return what.format(match=match.group(0)) + said, fix.format(target=target)
        return f"ssh ended with {code}: {last_line(error) or 'no message'}", f"try `ssh {target} true`"
