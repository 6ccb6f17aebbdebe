"""Agents that call back: what mpirun and Slurm start has no standard input of its own (Open MPI gives it to one
process and mixes the outputs), so each agent connects to the launcher over TCP and takes that as its input and output.

The token that lets it in travels in the environment of mpirun, srun or sbatch, never in arguments.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import secrets
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from ms_recipe.cluster.bootstrap import BOOT
from ms_recipe.cluster.job import Job, Node
from ms_recipe.cluster.launchers import LINE_LIMIT, Channel, last_line, program_line

TOKEN = "MS_RECIPE_TOKEN"
# Connect to one of the launcher's addresses, say who we are, put the connection in the place of descriptors 0 and 1.
CALL = (
    'import os,sys,socket,json;a=sys.argv;s=None\n'
    'for h in a[1].split(","):\n'
    '  try: s=socket.create_connection((h,int(a[2])),10);break\n'
    '  except OSError as e: print("ms-recipe: cannot reach the launcher at",h,a[2],e,file=sys.stderr)\n'
    'if s is None: sys.exit(9)\n'
    's.settimeout(None);g=os.environ.get;r=g("OMPI_COMM_WORLD_RANK") or g("SLURM_PROCID") or "0"\n'
    's.sendall(json.dumps(dict(token=os.environ.pop("MS_RECIPE_TOKEN"),rank=a[4].split("/")[1].replace("@",r),'
    'name=g("SLURMD_NODENAME") or socket.gethostname())).encode()+b"\\n")\n'
    'os.dup2(s.fileno(),0);os.dup2(s.fileno(),1);s.close()\n'
)


def call_command(addresses: Sequence[str], port: int, mark: str, python: str = "python3") -> list[str]:
    """The words that start an agent which calls back; ``mark`` is ``<run id>/<rank>``, rank ``@``: MPI's or Slurm's."""
    return [python, "-u", "-c", CALL + BOOT, ",".join(addresses), str(port), "ms-recipe-agent", mark]


def own_addresses(towards: Sequence[str]) -> list[str]:
    """This machine's addresses as hosts may reach it, first the one where the way to ``towards`` begins."""
    found: list[Any] = []
    for name in towards:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((name, 9))  # no packet is sent
            found.append(sock.getsockname()[0])
    with contextlib.suppress(OSError):
        found += sorted({info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)})
    return list(dict.fromkeys([*found, socket.gethostname()]))


class SocketChannel:
    """A channel over the connection that an agent made; ``group`` is what started it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, group: Group) -> None:
        self.reader, self.writer, self.group = reader, writer, group

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message as a JSON line."""
        with contextlib.suppress(OSError):
            self.writer.write(json.dumps(message, ensure_ascii=True).encode() + b"\n")
            await self.writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """The next event."""
        with contextlib.suppress(OSError):
            while line := await self.reader.readline():
                with contextlib.suppress(ValueError):
                    event: dict[str, Any] = json.loads(line)
                    return event
        return None

    async def ended(self) -> tuple[int, str]:
        """0, or what the group ended with when it has."""
        return (self.group.process.returncode or 0) if self.group.process else 0, self.group.said()

    async def finish(self) -> None:
        """Half-close, and wait up to 5 s for the agent to close its side."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            self.writer.write_eof()
            await asyncio.wait_for(self.reader.read(), 5)

    def kill(self) -> None:
        """Drop the connection: the agent sees the end of its input and stops."""
        self.writer.transport.abort()

    async def close(self) -> None:
        """Drop the connection."""
        self.writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self.writer.wait_closed(), 2)


class DeadChannel:
    """The place of a connection that never came: ``receive`` gives None, ``ended`` says why."""

    def __init__(self, code: int, error: str) -> None:
        self.code, self.error = code, error

    async def send(self, message: Mapping[str, Any]) -> None:
        """Nobody listens."""

    async def receive(self) -> dict[str, Any] | None:
        """Nothing comes."""
        return None

    async def ended(self) -> tuple[int, str]:
        """Why there is no connection."""
        return self.code, self.error

    async def finish(self) -> None:
        """Nothing to end."""

    def kill(self) -> None:
        """Nothing to drop."""

    async def close(self) -> None:
        """Nothing to close."""


class Group:
    """One mpirun, srun or sbatch and the connections that come from it."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self.error = b""
        self.arrived: dict[int, asyncio.Future[SocketChannel]] = {}
        self.done = asyncio.Event()
        self.reading: asyncio.Task[None] | None = None

    def said(self) -> str:
        """The end of what it wrote."""
        return self.error.decode("utf-8", "replace").strip()

    async def start(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the process in a session of its own, with an empty standard input."""
        self.process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True, env={**os.environ, **env})
        self.reading = asyncio.create_task(self._read(self.process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while data := await process.stdout.read(4096):
            self.error = (self.error + data)[-8192:]
        await process.wait()
        self.done.set()

    async def close(self) -> None:
        """TERM (mpirun and srun then end what they started), and KILL if that does not help within 10 s."""
        if self.process is None:
            return
        for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
            if self.process.returncode is None:
                with contextlib.suppress(OSError):
                    os.killpg(self.process.pid, number)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.process.wait(), seconds)
        if self.reading is not None:
            self.reading.cancel()
        transport = getattr(self.process, "_transport", None)
        if transport is not None:
            transport.close()


class CallbackLauncher:
    """Start all agents of a job with one command, and one again for a node that must be swept."""

    name = "callback"
    parallel = 1 << 16
    retries = 0

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self.server: asyncio.Server | None = None
        self.port = 0
        self.first: Group | None = None
        self.groups: list[Group] = []
        self.lock = asyncio.Lock()
        self.ready = asyncio.Event()  # what is expected is known; agents that are early wait for it
        self.job: Job | None = None
        self.expected: dict[int, list[tuple[Group, asyncio.Future[SocketChannel]]]] = {}
        self.taken: set[tuple[Group, int]] = set()
        self.program = b""

    # -- what a launcher of this kind says

    def argv(self, job: Job, nodes: Sequence[Node], command: list[str]) -> list[str]:
        """The command that runs ``command`` once on each of ``nodes``."""
        raise NotImplementedError

    def towards(self, job: Job) -> list[str]:
        """Names of hosts that will call back."""
        return [n.host.name for n in job.nodes[:1] if n.host is not None]

    async def prepare(self, job: Job) -> Job:
        """The job with its nodes known (Slurm chooses them)."""
        return job

    # -- connections

    async def _serve(self) -> None:
        if self.server is None:
            self.server = await asyncio.start_server(self._arrive, "", 0, limit=LINE_LIMIT, backlog=4096)
            self.port = self.server.sockets[0].getsockname()[1]
            # one port for IPv4 and IPv6 alike is not promised: agents get the IPv4 one where there is one
            for sock in self.server.sockets:
                if sock.family == socket.AF_INET:
                    self.port = sock.getsockname()[1]

    async def _arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = json.loads(await asyncio.wait_for(reader.readline(), 10))
            if not hmac.compare_digest(str(hello["token"]).encode(), self.token.encode()):
                raise ValueError("token")
            await self.ready.wait()
            waiting = self.expected[self.rank_of(str(hello["name"]), int(hello["rank"]))]
            group, future = next((g, f) for g, f in waiting if not f.done())
        except (ValueError, KeyError, TypeError, StopIteration, OSError, asyncio.TimeoutError):
            writer.close()
            return
        writer.write(self.program)
        future.set_result(SocketChannel(reader, writer, group))

    def rank_of(self, name: str, rank: int) -> int:
        """The node rank of an agent, by what it says of itself."""
        return rank

    async def open(self, job: Job, node: Node, program: bytes | None = None) -> Channel:
        """The connection to ``node``'s agent. The first call starts all agents of the job; a call for a node that was
        opened before starts one more there."""
        loop = asyncio.get_running_loop()
        async with self.lock:
            await self._serve()
            self.program, self.job = program_line(program), job
            if self.first is None:
                self.first = await self._group(job, job.nodes, f"{job.run_id}/@")
            if not self.ready.is_set():
                for n in job.nodes:
                    self.expected.setdefault(n.rank, []).append((self.first, loop.create_future()))
                self.ready.set()
            found = next(((g, f) for g, f in self.expected[node.rank] if (g, node.rank) not in self.taken), None)
            if found is None:
                group = await self._group(job, [node], f"{job.run_id}/{node.rank}")
                found = (group, loop.create_future())
                self.expected[node.rank].append(found)
            group, future = found
            self.taken.add((group, node.rank))
        over: asyncio.Future[Any] = asyncio.ensure_future(group.done.wait())
        waiting: set[asyncio.Future[Any]] = {future, over}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            assert group.process is not None
            return DeadChannel(group.process.returncode or 0, group.said())
        finally:
            over.cancel()

    async def _group(self, job: Job, nodes: Sequence[Node], mark: str) -> Group:
        group = Group()
        self.groups.append(group)
        command = [*job.prefix, *call_command(own_addresses(self.towards(job)), self.port, mark, job.python)]
        await group.start(self.argv(job, nodes, command), {TOKEN: self.token})
        return group

    def again(self, code: int, error: str) -> bool:
        """Never: all agents come from one command."""
        return False

    def explain(self, node: Node, code: int, error: str) -> tuple[str, str]:
        """The command's own last words."""
        return f"{self.name} ended with {code}: {last_line(error) or 'no message'}", f"run {self.name} by hand"

    async def close(self) -> None:
        """End what was started, and stop listening."""
        self.ready.set()  # agents that wait for it are sent away: nothing is expected
        await asyncio.gather(*(g.close() for g in self.groups))
        if self.server is not None:
            self.server.close()
