"""``run --detach``: the supervisor goes to the background once training has started, and still supervises.

What is wrong before the start is said in the foreground, with its exit code, as without --detach.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from ms_recipe.runs.progress import Progress

LOG = "supervisor.log"


class Background(Progress):
    """In the background process: at the first stage's start it lets the terminal go and tells the waiting parent."""

    def __init__(self, tell: int) -> None:
        super().__init__("plain")
        self._tell: int | None = tell

    def begin(self, stage: str, nodes: int) -> None:
        """The first call redirects what is printed to ``<run>/supervisor.log``."""
        if self._tell is not None and self.folder is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            null = os.open(os.devnull, os.O_RDONLY)
            log = os.open(self.folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            for fd, to in ((null, 0), (log, 1), (log, 2)):
                os.dup2(fd, to)
            os.write(self._tell, os.fsencode(str(self.folder)))
            os.close(self._tell)
            self._tell = None
        super().begin(stage, nodes)


def to_background() -> Background | tuple[int, Path | None]:
    """Fork. In the child: the progress to run with. In the parent, once that has started or ended: (exit code, run)."""
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return Background(write)
    os.close(write)
    said = b""
    while True:
        try:
            data = os.read(read, 4096)
        except KeyboardInterrupt:  # not started yet: take it along
            os.kill(pid, signal.SIGTERM)
            continue
        if not data:
            break
        said += data
    os.close(read)
    if said:
        return 0, Path(os.fsdecode(said))
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) % 256, None
