"""A live view of a training, from the logs it writes: of a run, or of a script started by hand."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ms_recipe.logs.metrics import duration
from ms_recipe.logs.npu_smi import Report
from ms_recipe.logs.parser import LineParser, Record

if TYPE_CHECKING:
    from rich.console import RenderableType

_CHUNK = 1 << 20
_BARS = "▁▂▃▄▅▆▇█"


class Tail:
    """New whole lines of a growing file. It may not exist yet, be truncated, or be replaced."""

    def __init__(self, path: Path, from_end: int | None = None) -> None:
        self.path = path
        self.grown = 0.0
        self._from_end = from_end
        self._place = 0
        self._inode = 0
        self._carry = b""

    def lines(self) -> list[bytes]:
        """The lines written since the last call (at most about 1 MB of them)."""
        try:
            with self.path.open("rb") as file:
                status = self.path.stat()
                if status.st_ino != self._inode or status.st_size < self._place:
                    first = not self._inode
                    self._inode, self._carry = status.st_ino, b""
                    self._place = max(0, status.st_size - self._from_end) if first and self._from_end else 0
                file.seek(self._place)
                data = file.read(_CHUNK)
        except OSError:
            return []
        if not data:
            return []
        self.grown = time.time()
        self._place += len(data)
        *whole, self._carry = (self._carry + data).split(b"\n")
        if len(self._carry) > _CHUNK:
            self._carry = b""
        return whole


@dataclass
class State:
    """What is known so far. ``active`` is when a log last grew (Unix seconds, 0 for never)."""

    last: Record | None = None
    restarts: int = 0
    nonfinite: int = 0
    first_nonfinite: int | None = None
    skipped: int = 0
    done: bool = False
    active: float = 0.0
    lines: int = 0
    said: str = ""
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=400))
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=50))

    @property
    def step_ms(self) -> float | None:
        """Median of the last 50 lines' milliseconds per iteration."""
        return statistics.median(self.steps) if self.steps else None

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at that pace."""
        if self.last is None or self.step_ms is None:
            return None
        return max(0, self.last.train_iters - self.last.iteration) * self.step_ms / 1000


class Watcher:
    """Follows the logs of one training. ``paths`` gives them anew each time: a node's log may appear later."""

    def __init__(self, paths: Callable[[], Sequence[Path]], seq_length: int | None = None, from_end: int | None = None):
        self.state = State()
        self.seq_length = seq_length
        self._paths = paths
        self._from_end = from_end
        self._tails: dict[Path, Tail] = {}
        self._parser = LineParser()

    def poll(self) -> Iterator[Record]:
        """Read what is new, at most about 1 MB a file; the records in order, each as the newest of :attr:`state`."""
        state = self.state
        for path in self._paths():
            tail = self._tails.setdefault(path, Tail(path, self._from_end))
            for line in tail.lines():
                state.lines += 1
                state.active = max(state.active, tail.grown)
                if line.strip():
                    state.said = line.decode("utf-8", "replace").strip()
                if b"after training is done" in line:
                    state.done = True
                record = self._parser.feed(line)
                if record is not None:
                    self._take(record)
                    yield record

    def catch_up(self) -> Iterator[Record]:
        """:meth:`poll` until nothing is new."""
        before = -1
        while before != self.state.lines:
            before = self.state.lines
            yield from self.poll()

    def _take(self, record: Record) -> None:
        state = self.state
        back = state.last is not None and record.iteration <= state.last.iteration
        state.last, state.restarts, state.done = record, self._parser.restarts, False
        if back:
            state.steps.clear()
        if record.elapsed_ms is not None and not record.skipped:
            state.steps.append(record.elapsed_ms)
        if len(state.steps) == 2 and state.steps[0] > 3 * state.steps[1]:
            state.steps.popleft()  # the warm-up
        state.skipped += record.skipped or 0
        if record.nonfinite:
            state.nonfinite += 1
            state.first_nonfinite = state.first_nonfinite or record.iteration
        elif record.lm_loss is not None:
            state.losses.append(record.lm_loss)

    def tokens_per_second(self) -> float | None:
        """All NPUs together, at the pace of the last 50 lines."""
        state = self.state
        if state.last is None or not state.step_ms or not self.seq_length or not state.last.global_batch_size:
            return None
        return state.last.global_batch_size * self.seq_length * 1000 / state.step_ms


def spark(values: Sequence[float], width: int = 48) -> str:
    """A row of bars, newest last."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    return "".join(_BARS[round((v - low) / (high - low or 1) * (len(_BARS) - 1))] for v in shown)


def plain(record: Record, watcher: Watcher) -> str:
    """One record as one line, for a pipe or a file."""
    parts = [f"iteration {record.iteration}/{record.train_iters}"]
    if record.nonfinite:
        parts.append("loss NOT FINITE")
    elif record.lm_loss is not None:
        parts.append(f"loss {record.lm_loss:.6g}")
    elif record.skipped:
        parts.append("skipped")
    if record.lr is not None:
        parts.append(f"lr {record.lr:.3g}")
    if record.grad_norm is not None:
        parts.append(f"grad norm {record.grad_norm:.3f}")
    if record.elapsed_ms is not None:
        parts.append(f"{record.elapsed_ms:.1f} ms")
    if (rate := watcher.tokens_per_second()) is not None:
        parts.append(f"{rate:,.0f} tokens/s")
    if (left := watcher.state.left_s) is not None:
        parts.append(f"left {duration(left)}")
    return "  ".join(parts)


def render(
    name: str, watcher: Watcher, state_text: str = "", npus: dict[str, Report] | None = None, now: float | None = None
) -> RenderableType:
    """The live view."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    state, now = watcher.state, now or time.time()
    last = state.last
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    rows: list[Any] = []
    if last is None:
        grid.add_row("waiting", Text(state.said[-150:] if state.said else "no line yet"))
    else:
        grid.add_row("", ProgressBar(total=max(1, last.train_iters), completed=last.iteration, width=48))
        grid.add_row("iteration", f"{last.iteration} of {last.train_iters}")
        loss = "not finite" if last.nonfinite else "skipped" if last.lm_loss is None else f"{last.lm_loss:.6g}"
        grid.add_row("loss", Text(loss, style="bold red" if last.nonfinite else ""))
        grid.add_row("", Text(spark(state.losses)))
        figures = {
            "learning rate": f"{last.lr:.4g}" if last.lr is not None else None,
            "gradient norm": f"{last.grad_norm:.3f}" if last.grad_norm is not None else None,
            "step": f"{state.step_ms:.1f} ms" if state.step_ms else None,
            "throughput": f"{rate:,.0f} tokens/s" if (rate := watcher.tokens_per_second()) else None,
            "left": duration(state.left_s) if state.left_s is not None else None,
            "restarts": str(state.restarts) if state.restarts else None,
            "skipped": f"{state.skipped} iterations" if state.skipped else None,
        }
        for key, value in figures.items():
            if value is not None:
                grid.add_row(key, value)
        if state.nonfinite:
            grid.add_row("NaN", Text(f"{state.nonfinite} lines, first at {state.first_nonfinite}", style="bold red"))
    if state.active:
        grid.add_row("last line", f"{duration(max(0.0, now - state.active))} ago")
    if state_text:
        grid.add_row("run", state_text)
    rows.append(grid)
    for host, report in (npus or {}).items():
        rows.append(Text(f"\n{host}" + (f" (npu-smi {report.version})" if report.version else ""), style="bold"))
        if report.absent:
            rows.append(Text(f"  {report.absent}"))
        rows += [Text("  " + n.line(), style="red" if n.ill else "") for n in report.npus]
    return Panel(Group(*rows), title=name, title_align="left", width=None)
