"""A training log as columns: one value an iteration line, with resumed runs untangled.

A resumed run appended to the same log repeats iterations: the later value wins. What was printed twice in a row (two
``tee`` in a row) is taken once. Memory: about 80 bytes an iteration line.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from ms_recipe.errors import CheckError, Problem
from ms_recipe.logs.facts import LOADED, Facts
from ms_recipe.logs.parser import COLUMNS, Record, blocks, nonfinite, parse_block, strip_colours
from ms_recipe.logs.reader import open_log

NAN = math.nan
FLOATS = COLUMNS[3:]  # after time, iteration and train_iters
BAD, TORN, START = 1, 2, 4
_EPOCH = datetime(1970, 1, 1)


@dataclass
class Restart:
    """Training began again at ``iteration``: ``discarded`` lines are superseded, which took ``wasted_ms`` to compute;
    ``down_s`` passed between the last line before and the start of the first step after (None: no time on the lines).
    """

    iteration: int
    discarded: int
    wasted_ms: float
    down_s: float | None


class Series:
    """The columns of one run. Absent numbers are NaN in the arrays and None from :meth:`values`."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.iterations = array("q")
        self.times = array("d")
        self.flags = bytearray()
        self.columns: dict[str, array[float]] = {n: array("d") for n in FLOATS}
        self.other_losses: dict[str, dict[int, float]] = {}
        self.train_iters: int | None = None
        self.restarts: list[Restart] = []
        self.duplicates = 0
        self.facts = Facts()
        self.paths: list[Path] = []
        self._pending = True
        self._last_key: tuple[object, ...] = ()

    def __len__(self) -> int:
        return len(self.iterations)

    # -- filling

    def add(self, record: Record) -> None:
        """Append one line's record."""
        key = (record.iteration, record.time, record.consumed_samples, record.elapsed_ms, repr(record.lm_loss))
        if key == self._last_key:
            self.duplicates += 1
            return
        self._last_key = key
        time = (record.time.replace(tzinfo=None) - _EPOCH).total_seconds() if record.time else NAN
        if self.iterations and (record.iteration <= self.iterations[-1] or self._pending):
            self._restart(record.iteration, time, record.elapsed_ms)
        self.iterations.append(record.iteration)
        self.times.append(time)
        bad = nonfinite(
            record.lm_loss, record.grad_norm, record.skipped, record.nan, record.complete and not record.losses
        )
        self.flags.append((BAD if bad else 0) | (0 if record.complete else TORN) | (START if self._pending else 0))
        for name, column in self.columns.items():
            value = getattr(record, name)
            column.append(NAN if value is None else value)
        for label, loss in record.losses.items():
            if label != "lm loss":
                self.other_losses.setdefault(label, {})[record.iteration] = loss
        self.train_iters = record.train_iters
        self._pending = False

    def _restart(self, iteration: int, time: float, elapsed_ms: float | None) -> None:
        keep = bisect_left(self.iterations, iteration)
        wasted = sum(self.step_ms(i) * self.interval(i) for i in range(keep, len(self)))
        down = time - self.times[-1] - (elapsed_ms or 0.0) / 1000
        self.restarts.append(Restart(iteration, len(self) - keep, wasted, None if math.isnan(down) else max(0.0, down)))
        del self.iterations[keep:], self.times[keep:], self.flags[keep:]
        for column in self.columns.values():
            del column[keep:]
        self._pending = True

    def loaded(self) -> None:
        """A checkpoint was loaded: the next line begins a new attempt, wherever it counts from."""
        self._pending = True

    def read(self, stream: IO[bytes]) -> None:
        """Append a whole log."""
        for raw in blocks(stream):
            block = strip_colours(raw)
            self.facts.feed(block)
            parts = [block]
            if b"loaded checkpoint" in block:
                cuts = [m.start() for m in LOADED.finditer(block)]
                parts = [block[a:b] for a, b in zip([0, *cuts], [*cuts, len(block)], strict=True)]
            for number, part in enumerate(parts):
                if number:
                    self.loaded()
                batch = parse_block(part)
                for record in batch or ():
                    self.add(record)

    # -- reading

    def values(self, name: str) -> list[float | None]:
        """A column with None where a line does not have the number (or it is NaN)."""
        return [None if math.isnan(v) else v for v in self.columns[name]]

    def finite(self, name: str) -> list[tuple[int, float]]:
        """(iteration, value) of the finite values of a column."""
        return [(i, v) for i, v in zip(self.iterations, self.columns[name], strict=True) if math.isfinite(v)]

    def step_ms(self, index: int) -> float:
        """Milliseconds per iteration of a line, 0 where it is not said."""
        value = self.columns["elapsed_ms"][index]
        return 0.0 if math.isnan(value) else value

    def interval(self, index: int) -> int:
        """How many iterations the line at ``index`` stands for (upstream's --log-interval)."""
        if index and not self.flags[index] & START:
            return self.iterations[index] - self.iterations[index - 1]
        if index + 1 < len(self) and not self.flags[index + 1] & START:
            gap = self.iterations[index + 1] - self.iterations[index]
            return min(gap, self.iterations[index]) if self.iterations[index] else gap
        return 1

    def steady(self, warmup: int = 1) -> list[int]:
        """Indices of lines that are no warm-up: without the first ``warmup`` lines after each start, torn and skipped
        ones. All lines with a time when that leaves none."""
        kept, since = [], warmup
        elapsed, skipped = self.columns["elapsed_ms"], self.columns["skipped"]
        for index, flag in enumerate(self.flags):
            since = 0 if flag & START else since
            if since >= warmup and not flag & TORN and math.isfinite(elapsed[index]) and not skipped[index] > 0:
                kept.append(index)
            since += 1
        return kept or [i for i in range(len(self)) if math.isfinite(self.columns["elapsed_ms"][i])]

    def clock(self, index: int) -> datetime | None:
        """The line's own time (no zone)."""
        t = self.times[index]
        return None if math.isnan(t) else datetime.fromtimestamp(t, timezone.utc).replace(tzinfo=None)

    def bad(self) -> list[int]:
        """Iterations whose loss or gradient is not a finite number."""
        return [i for i, f in zip(self.iterations, self.flags, strict=True) if f & BAD]

    def rows(self) -> Iterator[dict[str, float | int | str | None]]:
        """One mapping a line: ``time`` (ISO 8601), ``iteration``, the columns, other losses, ``status``."""
        names = list(self.columns)
        labels = list(self.other_losses)
        for index, iteration in enumerate(self.iterations):
            when = self.clock(index)
            row: dict[str, float | int | str | None] = {
                "iteration": iteration,
                "train_iters": self.train_iters,
                "time": when.isoformat(sep=" ") if when else None,
            }
            for name in names:
                value = self.columns[name][index]
                whole = name in ("consumed_samples", "global_batch_size", "skipped", "nan")
                row[name] = None if not math.isfinite(value) else int(value) if whole else value
            for label in labels:
                row[label] = self.other_losses[label].get(iteration)
            flag = self.flags[index]
            row["status"] = (
                "torn"
                if flag & TORN
                else "nonfinite"
                if flag & BAD
                else "skipped"
                if row["skipped"] and row["lm_loss"] is None
                else "ok"
            )
            yield row


def last_error(path: Path) -> str:
    """The last line of a log that looks like an error, or its last line; empty for an empty log."""
    import re

    found = last = ""
    error = re.compile(rb"^(?:\[[^\]]*\]:? ?|[\w.-]+: )*(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b|.*\berror: )")
    with open_log(path) as stream:
        for block in blocks(stream):
            for line in strip_colours(block).splitlines():
                if line.strip():
                    last = line.decode("utf-8", "replace").strip()
                    if error.match(line):
                        found = last
    return found or last


def read_logs(paths: Sequence[Path], name: str = "") -> Series:
    """The logs of one run (one file a node) as one series: the file with most iteration lines, and every file's facts.

    Raises:
        RecipeError: a file cannot be read.
        CheckError: no file has an iteration line; the message has the last error line.
    """
    best: Series | None = None
    every: list[Series] = []
    for path in paths:
        series = Series(name or str(path))
        with open_log(path) as stream:
            series.read(stream)
        series.paths = [path]
        every.append(series)
        if best is None or len(series) > len(best):
            best = series
    if best is None or not len(best):
        problems = []
        for path in paths:
            error = last_error(path)
            problems.append(
                Problem(
                    "no training iterations in " + str(path) + (f": {error}" if error else " (empty)"),
                    fix="ms-recipe diagnose tells more" if error else "",
                )
            )
        raise CheckError(*(problems or [Problem("the run has no log yet", name)]))
    for series in every:
        if series is not best:
            best.facts.merge(series.facts)
    best.paths = list(paths)
    return best
