"""Which failure was the first, and which of its lines matter."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

# torch/distributed/elastic/multiprocessing/api.py: logged when a worker has died and the others are ended, up to 30 s
# before torchrun itself exits (it waits for workers that ignore TERM) and reports (FAILED, and the root cause below it).
TORCHRUN_ENDS = re.compile(r"Sending process \d+ closing signal|failed \(exitcode: ")
TORCHRUN_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_RANK = re.compile(r"\brank\s*: (\d+) \(local_rank: (\d+)\)")
_EXITCODE = re.compile(r"\bexitcode\s*: (-?\d+) \(pid: (\d+)\)")
_MATTERS = re.compile(r"error|exception|traceback|fail|abort|signal|killed|denied|no space|out of memory|not found|"
                      r"cannot|unable|fatal|assert|EI\d{4}|EE\d{4}", re.I)
_TORCHRUN_NOISE = re.compile(r"^[=-]{10,}$|error_file: <N/A>|^To enable traceback see|"
                             r"torch/distributed/(run|launcher|elastic)|ChildFailedError|^\s*(raise|return|result) ")


@dataclass
class Failure:
    """The first failure of a run. ``code`` is an exit code, ``signal`` the signal that ended a process; either may be
    unknown. ``time`` is the launching machine's clock (Unix seconds), at arrival."""

    node: int
    host: str
    what: str
    fix: str = ""
    code: int | None = None
    signal: int | None = None
    local_rank: int | None = None
    rank: int | None = None
    last_lines: list[str] = field(default_factory=list)
    log: str = ""
    time: float = 0.0
    kind: str = "exit"  # exit | said (a line of Job.fatal) | lost | connect | start | internal

    def __str__(self) -> str:
        text = f"node {self.node} ({self.host}): {self.what}"
        if self.local_rank is not None:
            text += f", local rank {self.local_rank}"
        return f"{text}; {self.fix}" if self.fix else text

    def as_dict(self) -> dict[str, Any]:
        """The failure for records and ``--json``."""
        return asdict(self)


def signal_name(number: int) -> str:
    """``9`` -> ``SIGKILL``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_text(code: int) -> tuple[str, int | None]:
    """An exit code in words, and the signal in it: negative, or 128 + n as shells give it."""
    if code < 0:
        return f"killed by {signal_name(-code)}", -code
    if 128 < code <= 128 + 64:
        return f"exit code {code} (a process was killed by {signal_name(code - 128)})", code - 128
    return f"exit code {code}", None


def torchrun_report(lines: Iterable[str]) -> tuple[int | None, int | None, int | None]:
    """(exit code, local rank, global rank) of the worker that torchrun names as the first to fail; None: not said."""
    code = local = rank = None
    root = False
    for line in lines:
        if (match := TORCHRUN_FAILED.search(line)) and local is None:
            code, local = int(match.group(1)), int(match.group(2))
        if "Root Cause (first observed failure)" in line:
            root = True
        elif root and (match := _RANK.search(line)):
            rank, local = int(match.group(1)), int(match.group(2))
        elif root and (match := _EXITCODE.search(line)):
            code, root = int(match.group(1)), False
    return code, local, rank


def lines_that_matter(lines: Sequence[str], count: int = 12) -> list[str]:
    """The last lines that say something about an error, before torchrun's own report; the last ones if none does."""
    end = next((i for i, line in enumerate(lines) if TORCHRUN_ENDS.search(line)), len(lines))
    useful = [line for line in lines[:end] if line.strip() and not _TORCHRUN_NOISE.search(line)]
    last = max((i for i, line in enumerate(useful) if _MATTERS.search(line)), default=None)
    if last is None:
        return useful[-count:] or list(lines[-count:])
    return useful[max(0, last + 3 - count):last + 3]
