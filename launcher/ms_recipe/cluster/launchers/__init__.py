"""How a node's agent is started: one small interface, one file a way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ms_recipe.cluster import bootstrap
from ms_recipe.cluster.job import Job, Node

LINE_LIMIT = 16 << 20  # bytes of one event line


class Channel(Protocol):
    """The connection to one node's agent."""

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; an agent that has gone is no error here (``receive`` tells)."""

    async def receive(self) -> dict[str, Any] | None:
        """The agent's next event, or None when the connection has ended."""

    async def ended(self) -> tuple[int, str]:
        """After ``receive`` gave None: the exit code of what carried the connection, and its last error text."""

    def kill(self) -> None:
        """Drop the connection now."""

    async def finish(self) -> None:
        """End the agent's input, and wait up to 5 s for it to end by itself."""

    async def close(self) -> None:
        """Drop the connection, and return when what carried it has gone."""


class Launcher(Protocol):
    """A way to start agents. ``parallel``: how many connections may be set up at once; ``retries``: see ``again``."""

    name: str
    parallel: int
    retries: int

    async def prepare(self, job: Job) -> Job:
        """The job with its nodes known: Slurm chooses them, others return ``job``."""

    async def open(self, job: Job, node: Node, program: bytes | None = None) -> Channel:
        """Start the agent (or another bootstrap.program) on ``node``; the caller sends the header."""

    def again(self, code: int, error: str) -> bool:
        """True when a connection that ended before hello may be tried again."""

    def explain(self, node: Node, code: int, error: str) -> tuple[str, str]:
        """(what, fix) for a connection that ended before the agent said hello."""

    async def close(self) -> None:
        """Nothing of the launcher's own is left running."""


class ProcessChannel:
    """A channel over one child process: its standard input and output are the agent's."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.error = b""
        self._errors = asyncio.create_task(self._read_errors())

    @classmethod
    async def spawn(
        cls, argv: Sequence[str], program: bytes, env: Mapping[str, str] | None = None
    ) -> ProcessChannel:
        """Start ``argv`` in a session of its own (a terminal's Ctrl-C must not reach it) and send it the program."""
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT, start_new_session=True, env=None if env is None else dict(env))
        channel = cls(process)
        await channel.write(program)
        return channel

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(4096):
            self.error = (self.error + data)[-4096:]

    async def write(self, data: bytes) -> None:
        """Write raw bytes, ignoring a process that has gone. Blocks at most while the pipe is full and read."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self.process.stdin.write(data)
            await self.process.stdin.drain()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message as a JSON line."""
        await self.write(json.dumps(message, ensure_ascii=True).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """The next event; text that is no event (a login banner) is skipped."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if line.startswith(b"{"):
                with contextlib.suppress(ValueError):
                    event: dict[str, Any] = json.loads(line)
                    return event
        return None

    async def ended(self) -> tuple[int, str]:
        """The exit code of the process, and the end of what it wrote on standard error."""
        code = await self.process.wait()
        with contextlib.suppress(asyncio.TimeoutError):  # somebody else may hold the pipe (an ssh master)
            await asyncio.wait_for(asyncio.shield(self._errors), 1)
        self._errors.cancel()
        return code, self.error.decode("utf-8", "replace").strip()

    def kill(self) -> None:
        """Kill the process and its session."""
        if self.process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def finish(self) -> None:
        """Close standard input and wait up to 5 s for the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.process.wait(), 5)

    async def close(self) -> None:
        """Kill the process, reap it and close its pipes."""
        self.kill()
        self._errors.cancel()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.process.wait(), 5)
        transport = getattr(self.process, "_transport", None)  # else closed by the collector, after the loop's end
        if transport is not None:
            transport.close()


def program_line(program: bytes | None) -> bytes:
    """The agent unless another program is given."""
    return bootstrap.agent() if program is None else program


def last_line(text: str) -> str:
    """The last line of ``text`` that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


class Direct:
    """What launchers with one process a node have in common."""

    async def prepare(self, job: Job) -> Job:
        """The hostfile has named the nodes."""
        return job

    async def close(self) -> None:
        """Nothing to do: each connection is a process of its own."""
