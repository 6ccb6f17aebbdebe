"""What a person sees while a stage runs: a line that moves on a terminal, plain lines in a pipe, nothing with --json."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ms_recipe.logs.parser import LineParser, Record


def duration(seconds: float) -> str:
    """``3725`` -> ``1 h 02 min``; ``62`` -> ``1 min 02 s``."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def summary(record: Record, first: Record | None) -> str:
    """``iteration 20/2000, loss 1.1049, 0.63 s an iteration, 20 min 47 s left``."""
    parts = [f"iteration {record.iteration}/{record.train_iters}"]
    if record.lm_loss is not None:
        parts.append(f"loss {record.lm_loss:.4f}")
    elif record.skipped:
        parts.append("skipped")
    else:
        parts.append("no loss (not finite)")
    if record.elapsed_ms:
        each = record.elapsed_ms / 1000.0
        parts.append(f"{each:.2f} s an iteration")
        if record.train_iters:
            parts.append(f"{duration((record.train_iters - record.iteration) * each)} left")
    return ", ".join(parts)


class Progress:
    """Fed with the run's events. ``mode``: "terminal", "plain" or "quiet"."""

    def __init__(self, mode: str | None = None, interval_s: float = 10.0) -> None:
        self.mode = mode or ("terminal" if sys.stderr.isatty() else "plain")
        self.interval_s = interval_s
        self._status: Any = None
        self._parser = LineParser()
        self._first: Record | None = None
        self._told = 0.0
        self._stage, self._shown = "", ""
        self.nodes, self._up, self._all_up = 1, set[int](), False
        self.folder: Path | None = None  # the run's, once it is there

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.mode == "quiet":
            return
        if self._status is not None:
            self._status.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def begin(self, stage: str, nodes: int) -> None:
        """A stage starts."""
        self._stage, self._parser, self._first, self._told = stage, LineParser(), None, time.monotonic()
        self.nodes, self._up, self._all_up, self._shown = nodes, set(), False, "..."
        self.say(f"{stage}: started" + (f" on {nodes} nodes" if nodes > 1 else ""))
        if self.mode == "terminal":
            from rich.console import Console

            self._status = Console(stderr=True).status(self._line())
            self._status.start()

    def _line(self) -> str:
        """What the moving line says."""
        up = f"nodes {len(self._up)}/{self.nodes} up, " if self.nodes > 1 else ""
        return f"{self._stage}: {up}{self._shown}"

    def node(self, event: str, node: int) -> None:
        """A node's script has started (up), or it has ended, or the node is lost."""
        if event == "started":
            self._up.add(node)
        elif event in ("exit", "stopped", "lost"):
            self._up.discard(node)
        else:
            return
        if self._status is not None:
            self._status.update(self._line())
        elif self.nodes > 1 and len(self._up) == self.nodes and not self._all_up:
            self._all_up = True
            self.say(f"{self._stage}: nodes {self.nodes}/{self.nodes} up")

    def line(self, text: str) -> None:
        """One line that a node printed."""
        record = self._parser.feed(text.encode("utf-8", "replace"))
        if record is None:
            return
        self._first = self._first or record
        if self._status is not None:
            self._shown = summary(record, self._first)
            self._status.update(self._line())
            return
        now = time.monotonic()
        last = record.train_iters is not None and record.iteration >= record.train_iters
        if record is self._first or last or now - self._told >= self.interval_s:
            self._told = now
            self.say(f"{self._stage}: {summary(record, self._first)}")

    def end(self) -> None:
        """The stage has ended."""
        if self._status is not None:
            self._status.stop()
            self._status = None
