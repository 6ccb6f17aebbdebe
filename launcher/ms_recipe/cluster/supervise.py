"""Start a job on its nodes, watch it, and stop it everywhere at the first failure.

All agents are connected first and only then told to start: a host that cannot be reached starts nothing anywhere. The
first failure, by arrival at the launcher (clocks differ), stops all nodes. Every node must then say that no process of
the run is left; one that does not is asked again over a new connection, and named as unverified if that fails too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ms_recipe.cluster import failure as failures
from ms_recipe.cluster.failure import Failure
from ms_recipe.cluster.job import Job, Node
from ms_recipe.cluster.launchers import Channel, Launcher
from ms_recipe.cluster.sweep import sweep

OnEvent = Callable[[dict[str, Any]], None]
Prepared = Callable[[Job], Awaitable[None]]
KEPT_LINES = 400
TORCHRUN_PATIENCE_S = 2.0  # from torchrun's first TERM to workers till deaf ones are killed (its own patience is 30 s)
VERIFY_S = 6.0  # beyond the grace, for a node's word that nothing is left


@dataclass
class NodeOutcome:
    """How one node ended. ``state``: done, failed, stopped, lost, never-started; ``verified``: no process is left."""

    rank: int
    host: str
    state: str = "never-started"
    code: int | None = None
    signal: int | None = None
    verified: bool = True
    left: list[int] = field(default_factory=list)
    log: str = ""


@dataclass
class Outcome:
    """How the job ended. ``unverified``: hosts where it is not known that nothing is left; ``failures``: all that
    arrived before the stop (hosts that could not be reached, above all), the first one first."""

    ok: bool
    first_failure: Failure | None
    nodes: list[NodeOutcome]
    interrupted: bool
    unverified: list[str]
    failures: list[Failure] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The outcome for records and ``--json``."""
        return {"ok": self.ok, "interrupted": self.interrupted, "unverified": self.unverified,
                "first_failure": self.first_failure.as_dict() if self.first_failure else None,
                "failures": [f.as_dict() for f in self.failures], "nodes": [asdict(n) for n in self.nodes]}


class Stop:
    """A request to stop, shared with signal handlers. The first asks, each further one takes the grace away."""

    def __init__(self) -> None:
        self.count = 0
        self.reason = ""
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def request(self, reason: str) -> None:
        """Ask for the stop. Call it in the loop's thread (``loop.add_signal_handler`` does)."""
        self.count += 1
        self.reason = self.reason or reason
        self._event.set()

    def again(self) -> None:
        """Let the next :meth:`wait` return at once: the last one's answer was not used."""
        self._event.set()

    async def wait(self) -> None:
        """Wait for the next request."""
        await self._event.wait()
        self._event.clear()


class _Watched:
    """One node while the job runs."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.channel: Channel | None = None
        self.outcome = NodeOutcome(node.rank, node.label)
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.heard = time.monotonic()
        self.hello = False
        self.connected = False  # the connection is up and the agent has not yet said "stopped"
        self.finished = asyncio.Event()
        self.exited = asyncio.Event()  # the script has
        self.suspect: float | None = None  # when its torchrun began to end its workers


class _Supervisor:
    def __init__(self, job: Job, launcher: Launcher, on_event: OnEvent, stop: Stop) -> None:
        self.job, self.launcher, self.on_event, self.stop = job, launcher, on_event, stop
        self.watched = [_Watched(node) for node in job.nodes]
        self.failures: list[Failure] = []
        self.stopping = asyncio.Event()
        self.why = ""
        self.interrupted = False
        self.error: BaseException | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    # -- events

    def tell(self, w: _Watched, event: str, **fields: Any) -> None:
        try:
            self.on_event({"time": time.time(), "event": event, "node": w.node.rank, "host": w.node.label, **fields})
        except Exception as error:  # the caller cannot record any more: the nodes must not go on alone
            if self.error is None:
                self.error = error
                self.begin_stop("the launcher cannot record events")

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(self._guarded(work))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:  # an error of our own: stop the nodes, then raise it
            self.error = self.error or error
            self.begin_stop(f"internal error: {error}")

    def begin_stop(self, why: str) -> None:
        if not self.stopping.is_set():
            self.why = why
            self.stopping.set()

    def fail(self, w: _Watched, what: str, fix: str = "", **fields: Any) -> None:
        """Record a failure; the first one stops everything. Later ones are consequences and only told."""
        failure = Failure(w.node.rank, w.node.label, what, fix, time=time.time(), log=w.outcome.log, **fields)
        if not failure.last_lines:
            failure.last_lines = list(w.lines)
        if not self.stopping.is_set() or fields.get("kind") == "connect":
            self.failures.append(failure)
        self.tell(w, "failed", what=what, fix=fix, code=failure.code, signal=failure.signal,
                  local_rank=failure.local_rank, kind=failure.kind, first=self.failures[:1] == [failure])
        self.begin_stop(f"node {w.node.rank} ({w.node.label}): {what}")

    # -- connecting

    async def connect(self, w: _Watched, slots: asyncio.Semaphore) -> None:
        async with slots:
            for attempt in range(self.launcher.retries + 1):
                if self.stopping.is_set() and not self.failures:
                    return
                try:
                    event, ended = await asyncio.wait_for(self._hello(w), self.job.connect_timeout_s)
                except asyncio.TimeoutError:
                    self.fail(w, f"no answer for {self.job.connect_timeout_s:g} s", "check the host by hand",
                              kind="connect")
                    if w.channel:
                        w.channel.kill()
                    return
                except OSError as error:
                    self.fail(w, f"the {self.launcher.name} launcher cannot start: {error}", kind="connect")
                    return
                if event:
                    w.hello = w.connected = True
                    w.heard = time.monotonic()
                    self.tell(w, "connected", hostname=event.get("hostname"), pid=event.get("pid"))
                    self.spawn(self.read(w))
                    return
                assert ended is not None
                if attempt < self.launcher.retries and self.launcher.again(*ended):
                    await asyncio.sleep(0.3 * 2 ** attempt)
                    continue
                what, fix = self.launcher.explain(w.node, *ended)
                self.fail(w, what, fix, code=ended[0], kind="connect")
                return

    async def _hello(self, w: _Watched) -> tuple[dict[str, Any] | None, tuple[int, str] | None]:
        w.channel = await self.launcher.open(self.job, w.node)
        await w.channel.send(self.job.header(w.node))
        event = await w.channel.receive()
        return event, None if event else await w.channel.ended()

    # -- reading

    async def read(self, w: _Watched) -> None:
        assert w.channel is not None
        while (event := await w.channel.receive()) is not None:
            w.heard = time.monotonic()
            self.handle(w, event)
            if w.finished.is_set():
                return
        code, error = await w.channel.ended()
        self.lose(w, f"the connection ended (exit {code}" + (f": {error.splitlines()[-1]})" if error else ")"))

    def lose(self, w: _Watched, what: str) -> None:
        if not w.connected:
            return
        w.connected = False
        w.outcome.state, w.outcome.verified = "lost", False
        self.tell(w, "lost", what=what)
        if not self.stopping.is_set():
            self.fail(w, what, "check that the host is up", kind="lost")
        self.spawn(self.verify(w))

    def handle(self, w: _Watched, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if kind == "lines":
            for line in event["lines"]:
                w.lines.append(line)
                self.tell(w, "line", line=line)
                for text, meaning in self.job.fatal:
                    if text in line and not self.stopping.is_set():
                        self.fail(w, meaning, kind="said")
                if w.suspect is None and not self.stopping.is_set() and failures.TORCHRUN_ENDS.search(line):
                    w.suspect = time.monotonic()
                    self.spawn(self.suspect(w))
        elif kind == "started":
            w.outcome.state, w.outcome.log = "running", str(event.get("log", ""))
            self.tell(w, "started", pid=event.get("pid"), hostname=event.get("hostname"), log=w.outcome.log)
        elif kind == "exit":
            self.exited(w, int(event["code"]))
        elif kind == "failed":
            w.outcome.state = "failed"
            self.fail(w, str(event.get("reason")), kind="start")
        elif kind == "stopping":
            self.tell(w, "stopping", reason=event.get("reason"))
            if not self.stopping.is_set():  # the agent decided itself: it was signalled, or heard no heartbeat
                self.fail(w, f"the agent stopped the node: {event.get('reason')}", kind="lost")
        elif kind == "stopped":
            self.ended(w, list(event.get("left") or []), event)
        elif kind == "warning":
            self.tell(w, "warning", what=event.get("what"))

    def exited(self, w: _Watched, code: int) -> None:
        text, number = failures.exit_text(code)
        w.outcome.code, w.outcome.signal = code, number
        w.outcome.state = "done" if code == 0 else "stopped" if self.stopping.is_set() else "failed"
        self.tell(w, "exit", code=code, signal=number)
        w.exited.set()
        if code != 0 and not self.stopping.is_set():
            if any(o.suspect and o is not w and not o.exited.is_set() for o in self.watched):
                self.spawn(self.settle(w, code))
            else:
                self.fail(w, text, code=code, signal=number)

    async def suspect(self, w: _Watched) -> None:
        """torchrun ends its workers, since one has died: if it waits for deaf ones, end them, so that it reports."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(w.exited.wait(), TORCHRUN_PATIENCE_S)
        if w.exited.is_set() or self.stopping.is_set() or w.channel is None:
            return
        await w.channel.send({"end_workers": TORCHRUN_PATIENCE_S})
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(w.exited.wait(), 6)
        if not w.exited.is_set():
            w.suspect = None  # torchrun started them anew (--max-restarts)

    async def settle(self, w: _Watched, code: int) -> None:
        """``w`` has failed. If torchrun of another node had begun to end its workers before, that node comes first:
        wait for its exit, which tells why."""
        mine = w.suspect or time.monotonic()
        for other in sorted((o for o in self.watched if o.suspect and o is not w), key=lambda o: o.suspect or 0):
            if other.suspect and other.suspect < mine:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(other.exited.wait(), TORCHRUN_PATIENCE_S + 6)
        text, number = failures.exit_text(code)
        if not self.stopping.is_set():
            self.fail(w, text, code=code, signal=number)

    def ended(self, w: _Watched, left: list[int], event: dict[str, Any]) -> None:
        w.connected = False
        w.outcome.left, w.outcome.verified = left, not left
        if w.outcome.state in ("running", "never-started"):
            w.outcome.state = "stopped" if w.outcome.state == "running" else "never-started"
        self.tell(w, "stopped", left=left, killed=event.get("killed"), seconds=event.get("seconds"))
        if left:
            self.fail(w, f"processes {left} of the run do not end", "look at them on the host", kind="lost")
        w.finished.set()
        self.spawn(self.hang_up(w))

    async def hang_up(self, w: _Watched) -> None:
        """Give the connection a moment to end by itself."""
        assert w.channel is not None
        try:
            await asyncio.wait_for(w.channel.ended(), 5)
        except asyncio.TimeoutError:
            w.channel.kill()

    # -- while it runs

    async def beat(self) -> None:
        count = 0
        while True:
            count += 1
            for w in self.watched:
                if w.connected and w.channel is not None:
                    if time.monotonic() - w.heard > self.job.beat_timeout_s:
                        w.channel.kill()
                        self.lose(w, f"no sign of life for {self.job.beat_timeout_s:g} s")
                    else:
                        # not awaited: a node whose link is stuck must not keep the others' heartbeats back
                        self.spawn(w.channel.send({"beat": count}))
            await asyncio.sleep(self.job.beat_s)

    async def obey(self) -> None:
        """Carry stop requests to the nodes: the first with the job's grace, further ones without."""
        while True:
            await self.stop.wait()
            if not self.stopping.is_set():
                self.interrupted = True
                self.begin_stop(self.stop.reason)
            if self.stop.count > 1:
                for w in self.watched:
                    if w.connected and w.channel is not None:
                        self.spawn(w.channel.send({"stop": self.stop.reason, "grace": 0}))

    async def verify(self, w: _Watched) -> None:
        """Ask a node that was lost, over a new connection, to end what is left of the run."""
        try:
            left = await sweep(self.job, w.node, self.launcher)
            if left is not None:
                w.outcome.left, w.outcome.verified = left, not left
                self.tell(w, "stopped", left=left)
        finally:
            w.finished.set()

    async def finish(self) -> None:
        """Wait until every node has ended by itself, or the stop: then until every node is verified or given up."""
        everyone: asyncio.Future[Any] = asyncio.ensure_future(_all([w.finished for w in self.watched if w.hello]))
        stopping: asyncio.Future[Any] = asyncio.ensure_future(self.stopping.wait())
        await asyncio.wait({everyone, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not everyone.done():
            for w in self.watched:
                if w.connected and w.channel is not None:
                    grace = 0 if self.stop.count > 1 else self.job.grace_s
                    self.spawn(w.channel.send({"stop": self.why, "grace": grace}))
            await asyncio.wait({everyone}, timeout=self.job.grace_s + VERIFY_S)
        if not everyone.done():
            for w in self.watched:
                if w.hello and w.connected and w.channel is not None:
                    w.channel.kill()
                    self.lose(w, "the agent does not answer the stop")
            await everyone  # lose() has started verify(), which sets finished in bounded time

    async def run(self) -> Outcome:
        slots = asyncio.Semaphore(max(1, self.launcher.parallel))
        helpers = [asyncio.ensure_future(self._guarded(work)) for work in (self.beat(), self.obey())]
        try:
            connecting = [self.spawn(self.connect(w, slots)) for w in self.watched]
            interrupted: asyncio.Future[Any] = asyncio.ensure_future(self._interrupted())
            gathered: asyncio.Future[Any] = asyncio.gather(*connecting, return_exceptions=True)
            await asyncio.wait({gathered, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if not gathered.done():  # Ctrl-C while connecting: do not wait for slow hosts
                for task in connecting:
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await gathered
                for w in self.watched:
                    if w.channel is not None and not w.hello:
                        w.channel.kill()
            interrupted.cancel()
            if not self.stopping.is_set():
                for w in self.watched:
                    assert w.channel is not None
                    w.outcome.state = "running"
                    self.spawn(w.channel.send({"go": 1}))
            await self.finish()
            while any(not t.done() for t in self.tasks):
                await asyncio.wait(set(self.tasks), timeout=6)
                break
        finally:
            for task in [*helpers, *self.tasks]:
                task.cancel()
            await asyncio.gather(*(w.channel.close() for w in self.watched if w.channel is not None))
            await self.launcher.close()
        if self.error is not None:
            raise self.error
        return self.outcome()

    async def _interrupted(self) -> None:
        while True:
            await self.stopping.wait()
            if self.interrupted:
                return
            await asyncio.sleep(0.05)

    def outcome(self) -> Outcome:
        first = self._first()
        nodes = [w.outcome for w in self.watched]
        unverified = [w.node.label for w in self.watched if not w.outcome.verified]
        ok = not self.failures and not self.interrupted and all(n.state == "done" for n in nodes)
        if first is not None:
            w = next(w for w in self.watched if w.node.rank == first.node)
            code, local, rank = failures.torchrun_report(w.lines)
            number = failures.exit_text(code)[1] if code is not None else None
            lines = failures.lines_that_matter(list(w.lines)) if first.kind == "exit" else first.last_lines[-12:]
            first = replace(first, last_lines=lines, rank=rank)
            if local is not None and first.kind == "exit":
                what = f"{failures.exit_text(code)[0]}" if code is not None else first.what
                first = replace(first, local_rank=local, signal=number or first.signal, what=what, code=code)
        return Outcome(ok, first, nodes, self.interrupted, unverified,
                       [first, *(f for f in self.failures if f.node != first.node)] if first else [])

    def _first(self) -> Failure | None:
        return self.failures[0] if self.failures else None


async def _all(events: list[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


async def supervise(
    job: Job, launcher: Launcher, on_event: OnEvent, stop: Stop | None = None, prepared: Prepared | None = None
) -> Outcome:
    """Run ``job`` on its nodes and return how it ended. ``prepared`` is awaited when the nodes are known (Slurm chooses
    them), before anything is started; an exception it raises gives the nodes back and comes out here.

    ``on_event`` gets dicts {"time", "event", "node", "host", ...} with event connected, started, line, exit, failed,
    warning, stopping, stopped or lost. An exception it raises stops the nodes and is raised here afterwards.
    """
    stop = stop or Stop()

    async def prepare() -> Job:
        known = await launcher.prepare(job)
        if prepared is not None:
            await prepared(known)
        return known

    preparing = asyncio.ensure_future(prepare())
    asked: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    either: set[asyncio.Future[Any]] = {preparing, asked}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not preparing.done():  # Ctrl-C while a queue is waited for
            return Outcome(False, None, [NodeOutcome(n.rank, n.label) for n in job.nodes], True, [])
        known = preparing.result()
        if asked.done():
            stop.again()
    finally:
        ready = preparing.done() and not preparing.cancelled() and preparing.exception() is None
        for future in either:
            future.cancel()
        if not ready:
            await launcher.close()
    return await _Supervisor(known, launcher, on_event, stop).run()


def run_supervised(job: Job, launcher: Launcher, on_event: OnEvent, prepared: Prepared | None = None) -> Outcome:
    """:func:`supervise` from ordinary code: Ctrl-C, TERM and HUP stop the nodes, once with grace, twice without."""
    import signal

    async def main() -> Outcome:
        stop = Stop()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop.request, signal.Signals(number).name)
        return await supervise(job, launcher, on_event, stop, prepared)

    return asyncio.run(main())
