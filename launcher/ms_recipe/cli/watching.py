"""The loop of ``ms-recipe metrics watch``: files in, a live view or plain lines out, npu-smi asked beside it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ms_recipe.errors import MsRecipeError

if TYPE_CHECKING:
    from ms_recipe.cli.target import Target
    from ms_recipe.logs.npu_smi import Report
    from ms_recipe.logs.watch import Watcher
    from ms_recipe.runs.folder import RunFolder


def nodes_of(run: RunFolder | None) -> tuple[list[Any], Any] | str:
    """The nodes of a run (None: this machine) and the launcher to ask them over, or why they are not asked."""
    from ms_recipe.cluster.hosts import Host
    from ms_recipe.cluster.job import Node
    from ms_recipe.cluster.launchers.local import LocalLauncher
    from ms_recipe.cluster.launchers.ssh import SshLauncher

    if run is None:
        return [Node(0, None, "this machine")], LocalLauncher()
    record = run.record
    if record.launcher not in ("local", "ssh"):
        return f"npu-smi is not asked: the run's launcher is {record.launcher}, which takes one job at a time"
    nodes = []
    for n in record.nodes:
        host = Host(n["host"], n.get("user"), n.get("port"), n.get("slots") or 1, 0) if n.get("host") else None
        nodes.append(Node(int(n["rank"]), host, host.label if host else "localhost"))
    return nodes, SshLauncher(options=record.ssh_options) if record.launcher == "ssh" else LocalLauncher()


def npus_of(run: RunFolder | None) -> dict[str, Report] | str:
    """``npu-smi info`` of every node of a run, asked once; or why not."""
    from ms_recipe.logs.npu_smi import ask

    found = nodes_of(run)
    if isinstance(found, str):
        return found
    nodes, launcher = found
    prefix, setup = (run.record.prefix, run.record.setup) if run else ([], "")
    try:
        return asyncio.run(ask(nodes, launcher, prefix, setup))
    except (MsRecipeError, OSError) as error:
        return f"npu-smi is not asked: {error}"


class NpuPoller(threading.Thread):
    """Asks npu-smi on every node, again ``every`` seconds after the last answer."""

    def __init__(self, target: Target, every: float) -> None:
        super().__init__(daemon=True)
        self.reports: dict[str, Report] = {}
        self.note = ""
        self._target, self._every = target, every
        self._over = threading.Event()

    def run(self) -> None:
        """Ask until :meth:`stop`."""
        while not self._over.is_set():
            found = npus_of(self._target.run)
            if isinstance(found, str):
                self.note = found
                return
            self.reports = found
            if all(r.absent == "npu-smi is not there" for r in found.values()):
                return  # it will not appear
            self._over.wait(self._every)

    def stop(self) -> None:
        """No further question."""
        self._over.set()


def loop(
    target: Target, watcher: Watcher, *, every: float, npu_every: float, once: bool, idle_end: float | None
) -> None:
    """Watch until the run has ended (a run), "after training is done" (a log), or ``idle_end`` seconds of silence."""
    from ms_recipe.logs.watch import plain, render

    live = sys.stdout.isatty() and not once
    poller = NpuPoller(target, npu_every) if npu_every > 0 else None
    if poller:
        poller.start()

    def ended() -> bool:
        if target.run is not None:
            from ms_recipe.runs.folder import RunFolder

            with contextlib.suppress(MsRecipeError):
                target.run = RunFolder.load(target.run.path)
            return target.run.state.final or target.run.state.value == "lost"
        idle = time.time() - watcher.state.active if watcher.state.active else 0.0
        return watcher.state.done or (idle_end is not None and idle > idle_end)

    def view() -> Any:
        state = target.run.state.value if target.run else "done" if watcher.state.done else ""
        note = f"{state}  {poller.note}".strip() if poller and poller.note else state
        return render(target.name, watcher, note, poller.reports if poller else None)

    try:
        if not live:
            while True:
                over = ended()  # asked before the files are read, so that the last lines are not missed
                for record in watcher.catch_up():
                    print(plain(record, watcher), flush=True)
                if once or over:
                    break
                time.sleep(every)
            if poller:
                poller.join(25 if once else 0)
                for host, report in poller.reports.items():
                    for text in [n.line() for n in report.npus] or [report.absent]:
                        print(f"{host}: {text}")
            return
        from rich.live import Live

        with Live(view(), refresh_per_second=4, screen=False) as screen:
            while True:
                over = ended()
                for _ in watcher.catch_up():
                    pass
                screen.update(view())
                if over:
                    break
                time.sleep(every)
    finally:
        if poller:
            poller.stop()


def log_paths(target: Target) -> list[Path]:
    """The logs as they are now: a run's nodes may begin one later."""
    return target.run.log_files() if target.run else target.logs
