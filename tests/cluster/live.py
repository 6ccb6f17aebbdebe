"""A job under supervision in a thread, with its events to wait for."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cluster.netns import NetHost, Process, of_run, wait_for
from ms_recipe.cluster.hosts import Host
from ms_recipe.cluster.job import Job, make_nodes
from ms_recipe.cluster.launchers import Launcher
from ms_recipe.cluster.launchers.ssh import SshLauncher
from ms_recipe.cluster.supervise import Outcome, Stop, supervise

TRAINEE = (Path(__file__).parent / "trainee.py").read_text()


def trainee_script(before: str = "") -> str:
    """A rendered script's shape: strict bash, output through tee, the status kept."""
    return (f"set -euo pipefail\n{before}\nlog=$(mktemp -d)\ncat > $log/trainee.py <<'PYTHON_END'\n{TRAINEE}PYTHON_END\n"
            "python3 -u $log/trainee.py 2>&1 | tee $log/train.log\n")


def job_for(hosts: Sequence[Host], script: str | None = None, **options: Any) -> Job:
    run_id = "t" + uuid.uuid4().hex[:10]
    settings: dict[str, Any] = {"grace_s": 2.0, "beat_s": 0.5, "beat_timeout_s": 6.0, "connect_timeout_s": 12.0,
                                "node_dir": "/srv/ms-recipe"}
    settings.update(options)
    return Job(run_id, "pretrain", trainee_script() if script is None else script,
               make_nodes(hosts, master_port=6000, npus_per_node=2), **settings)


class Live:
    """Supervises ``job`` in a thread from construction on."""

    def __init__(self, job: Job, launcher: Callable[[], Launcher] = SshLauncher) -> None:
        self.job = job
        self.events: list[dict[str, Any]] = []
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.stop: Stop | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.make = launcher
        self.begin = time.monotonic()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        async def main() -> Outcome:
            self.stop, self.loop = Stop(), asyncio.get_running_loop()
            return await supervise(self.job, self.make(), self.events.append, self.stop)

        try:
            self.outcome = asyncio.run(main())
        except BaseException as error:
            self.error = error

    def seen(self, event: str, node: int | None = None, text: str = "") -> bool:
        return any(e["event"] == event and node in (None, e["node"]) and text in str(e) for e in list(self.events))

    def training(self) -> None:
        """Wait until both workers of every node have printed iterations."""
        for node in self.job.nodes:
            for rank in (node.rank * 2, node.rank * 2 + 1):
                wait_for(f"iterations of rank {rank}: {self.events[-3:]}",
                         lambda n=node.rank, r=rank: self.error or self.seen("line", n, f"| rank {r}"), 30)

    def interrupt(self) -> None:
        assert self.loop is not None and self.stop is not None
        self.loop.call_soon_threadsafe(self.stop.request, "SIGINT")

    def marked(self, host: NetHost, argument: str = "") -> list[Process]:
        """The run's processes on ``host``; with ``argument`` those that have it among their arguments."""
        return [p for p in of_run(self.job.run_id, host.namespace) if not argument or argument in p.argv]

    def end(self, seconds: float = 60) -> Outcome:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), f"still supervised after {seconds} s: {self.events[-10:]}"
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome

    def nothing_left(self, seconds: float = 0.0) -> None:
        """No process of the run anywhere; with ``seconds``: not later than that."""
        wait_for(f"the end of {[(p.pid, p.argv) for p in of_run(self.job.run_id)]}",
                 lambda: not of_run(self.job.run_id), seconds)
