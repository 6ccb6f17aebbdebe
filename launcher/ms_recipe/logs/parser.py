"""Iteration lines of Megatron and MindSpeed-LLM training logs, as records.

The line is written by ``training_log`` (MindSpeed-LLM 2.1.0 mindspeed_llm/training/training.py:934-980, which follows
Megatron-LM core_r0.8.0 megatron/training/training.py); the last global rank alone prints it. Three things read it:

* :func:`parse_line` and :class:`LineParser` take one line and forgive nearly everything (prefixes, colours, glued or
  torn lines, fields of other versions);
* :func:`batches` reads a file in blocks with one bytes pattern and converts a column when it is asked for;
* :func:`scan` gives records from a file, in constant memory.

What a line does not say is ``None``, never 0. Numbers keep upstream's units: milliseconds, TFLOP/s per NPU.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, cast

from ms_recipe.logs.reader import open_log

MARK = b"elapsed time per iteration (ms):"
BLOCK = 1 << 19
# A line without an end that is longer than this is cut (a progress bar that never ends): memory stays constant.
LONGEST_LINE = 1 << 22

_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# A character class, not `\S`: a number torn by a line end must not match, and this is as fast.
_F, _I = rb"([-+.0-9eEnNaAiIfF]+)", rb"([0-9]+)"
_TAIL = (
    rb"iteration +"
    + _I
    + rb"/ *"
    + _I
    + rb" \| consumed samples: +"
    + _I
    + rb" \| elapsed time per iteration \(ms\): "
    + _F
    + rb" \|(?: throughput per GPU \(TFLOP/s/GPU\): "
    + _F
    + rb" \|)? learning rate: "
    + _F
    + rb" \| global batch size: +"
    + _I
    + rb" \|(?: lm loss: "
    + _F
    + rb" \|)? loss scale: "
    + _F
    + rb" \|(?: grad norm: "
    + _F
    + rb" \|)?(?: num zeros: "
    + _F
    + rb" \|)?(?: params norm: "
    + _F
    + rb" \|)? number of skipped iterations: +"
    + _I
    + rb" \| number of nan iterations: +"
    + _I
    + rb" \|"
)
# Both begin with literal text, which lets the matcher skip everything else quickly.
_TIMED = re.compile(rb"\[([-0-9: ]{19})\] " + _TAIL)
_UNTIMED = re.compile(rb"() " + _TAIL)
COLUMNS = (
    "time",
    "iteration",
    "train_iters",
    "consumed_samples",
    "elapsed_ms",
    "tflops",
    "lr",
    "global_batch_size",
    "lm_loss",
    "loss_scale",
    "grad_norm",
    "num_zeros",
    "params_norm",
    "skipped",
    "nan",
)
_INTS = {"iteration", "train_iters", "consumed_samples", "global_batch_size", "skipped", "nan"}

_HEAD = re.compile(rb"(?:\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)[^\]\n]{0,12}\] ?)?\biteration:? +(\d+) ?/ *(\d+) *\|")
_NUMBER = rb"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)\b"
_FIELD = re.compile(rb"\s*([^|:]*[^|:\s]) ?: *(" + _NUMBER + rb") *%?\s*$", re.IGNORECASE)
_LABELS = {
    "consumed samples": "consumed_samples",
    "elapsed time per iteration (ms)": "elapsed_ms",
    "throughput per gpu (tflop/s/gpu)": "tflops",
    "tflops": "tflops",
    "learning rate": "lr",
    "decoupled learning rate": "decoupled_lr",
    "global batch size": "global_batch_size",
    "batch size": "global_batch_size",
    "lm loss": "lm_loss",
    "loss scale": "loss_scale",
    "grad norm": "grad_norm",
    "num zeros": "num_zeros",
    "params norm": "params_norm",
    "number of skipped iterations": "skipped",
    "number of nan iterations": "nan",
}
_LOSS_LABEL = re.compile(r"(?:^|[ _/])loss(?:[ _/]|$)|_loss$|^loss")


@dataclass(slots=True)
class Record:
    """One iteration line.

    ``time`` is the line's own clock without a zone (local time up to MindSpeed-LLM 2.0, UTC in 2.1.0); ``elapsed_ms``
    is the mean milliseconds per iteration since the line before; ``tflops`` is model TFLOP/s per NPU; ``losses`` has
    every loss on the line by its label, ``lm loss`` among them; ``others`` has numbers of labels that this package
    gives no name; ``skipped`` and ``nan`` count iterations since the line before. ``complete`` is false when the line
    was torn: what is missing then means nothing.
    """

    iteration: int
    train_iters: int
    consumed_samples: int | None = None
    elapsed_ms: float | None = None
    tflops: float | None = None
    lr: float | None = None
    decoupled_lr: float | None = None
    global_batch_size: int | None = None
    lm_loss: float | None = None
    losses: dict[str, float] = field(default_factory=dict)
    loss_scale: float | None = None
    grad_norm: float | None = None
    num_zeros: float | None = None
    params_norm: float | None = None
    skipped: int | None = None
    nan: int | None = None
    time: datetime | None = None
    others: dict[str, float] = field(default_factory=dict)
    complete: bool = True

    @property
    def nonfinite(self) -> bool:
        """The step was taken with a loss or gradient that is not a finite number.

        Upstream omits ``lm loss`` when the mean is NaN (its test is ``avg > 0.0``) and counts NaN only on skipped
        steps, so a complete line without a loss and without a skipped iteration means NaN.
        """
        return nonfinite(self.lm_loss, self.grad_norm, self.skipped, self.nan, self.complete and not self.losses)


def nonfinite(loss: float | None, grad_norm: float | None, skipped: int | None, nan: int | None, whole: bool) -> bool:
    """The rule of :attr:`Record.nonfinite` on bare values; ``whole``: the line is complete and has no other loss."""
    if skipped and loss is None:
        return False
    if nan:
        return True
    if loss is None:
        return whole or (grad_norm is not None and not math.isfinite(grad_norm))
    return not math.isfinite(loss) or (grad_norm is not None and not math.isfinite(grad_norm))


def _time(text: bytes) -> datetime | None:
    try:
        return datetime.fromisoformat(text.decode("ascii").replace("T", " "))
    except ValueError:
        return None


def strip_colours(text: bytes) -> bytes:
    """``text`` without terminal escape sequences."""
    return _ANSI.sub(b"", text) if b"\x1b" in text else text


def _set(record: Record, label: str, value: float) -> None:
    name = _LABELS.get(label.lower())
    if name is None:
        if _LOSS_LABEL.search(label.lower()) and label.lower() != "loss scale":
            record.losses[label] = value
        else:
            record.others[label] = value
        return
    if name in _INTS and math.isfinite(value):
        value = int(value)
    setattr(record, name, value)
    if name == "lm_loss":
        record.losses[label] = value


def _from_match(head: re.Match[bytes], rest: bytes) -> Record:
    record = Record(int(head[2]), int(head[3]), time=_time(head[1]) if head[1] else None)
    end = False
    for part in rest.split(b"|"):
        match = _FIELD.match(part)
        if match is None:
            if part.strip():
                # Not a field: another process' text. What follows it on this line is not trusted.
                break
            continue
        label = match[1].decode("utf-8", "replace").strip()
        _set(record, label, float(match[2]))
        end = end or label in ("number of nan iterations", "number of skipped iterations")
    record.complete = end
    return record


def parse_records(line: bytes) -> list[Record]:
    """All iteration lines glued into one line of text, in order."""
    line = strip_colours(line)
    heads = list(_HEAD.finditer(line))
    if not heads:
        return []
    ends = [h.start() for h in heads[1:]] + [len(line)]
    return [_from_match(h, line[h.end() : e]) for h, e in zip(heads, ends, strict=True)]


def parse_line(line: bytes) -> Record | None:
    """The record on ``line``, whatever stands before or behind it, or None."""
    if b"iteration" not in line:
        return None
    found = parse_records(line)
    return found[0] if found else None


class LineParser:
    """Records from lines as they arrive (a live view): ``feed`` one line, get its record or None.

    ``last`` is the newest record, ``restarts`` how often the iteration number went back.
    """

    def __init__(self) -> None:
        self.last: Record | None = None
        self.restarts = 0

    def feed(self, line: bytes) -> Record | None:
        record = parse_line(line)
        if record is None:
            return None
        if self.last is not None and repr(record) == repr(self.last):  # repr: NaN is not equal to itself
            return None
        if self.last is not None and record.iteration <= self.last.iteration:
            self.restarts += 1
        self.last = record
        return record


class Batch:
    """The iteration lines of one block: rows of raw bytes, a column converted when it is asked for."""

    __slots__ = ("_columns", "records", "rows")

    def __init__(self, rows: list[tuple[bytes, ...]], records: list[Record] | None = None) -> None:
        self.rows = rows
        self.records = records
        self._columns: list[tuple[bytes, ...]] | None = None

    def __len__(self) -> int:
        return len(self.records if self.records is not None else self.rows)

    def column(self, name: str) -> list[float | None]:
        """The numbers of one of :data:`COLUMNS` but ``time``; None where a line does not have it."""
        if self.records is not None:
            return [getattr(r, name) for r in self.records]
        if self._columns is None:
            self._columns = list(zip(*self.rows, strict=True))
        if not self._columns:
            return []
        raw = self._columns[COLUMNS.index(name)]
        convert = int if name in _INTS else float
        first = raw[0]
        if raw[-1] == first and raw.count(first) == len(raw):
            return [convert(first) if first else None] * len(raw)
        try:
            if len(set(raw[:64])) < 32:  # few texts, again and again: each is converted once
                return list(map({x: convert(x) for x in set(raw)}.__getitem__, raw))
            return list(map(convert, raw))
        except ValueError:
            return [_number(x, convert) for x in raw]

    def __iter__(self) -> Iterator[Record]:
        if self.records is not None:
            yield from self.records
            return
        for row in self.rows:
            yield _record(row)


def _number(text: bytes, convert: Callable[[bytes], float]) -> float | None:
    try:
        return convert(text) if text else None
    except ValueError:
        return None


def _record(row: tuple[bytes, ...]) -> Record:
    time, it, total, samples, ms, tflops, lr, gbs, loss, scale, norm, zeros, params, skipped, nan = row
    value = _number(loss, float)
    return Record(
        int(it),
        int(total),
        int(samples),
        _number(ms, float),
        _number(tflops, float),
        _number(lr, float),
        None,
        int(gbs),
        value,
        {} if value is None else {"lm loss": value},
        _number(scale, float),
        _number(norm, float),
        _number(zeros, float),
        _number(params, float),
        int(skipped),
        int(nan),
        _time(time) if time else None,
    )


def blocks(stream: IO[bytes], size: int = BLOCK) -> Iterator[bytes]:
    """``stream`` in pieces that end with a line (LF or CR), each of about ``size`` bytes; the last may have no end."""
    carry = b""
    while True:
        block = stream.read(size)
        if not block:
            break
        block = carry + block if carry else block
        cut = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        if not cut:
            cut = len(block) - (1 << 16) if len(block) > LONGEST_LINE else 0
        carry = block[cut:]
        if cut:
            yield block[:cut]
    if carry:
        yield carry


def parse_block(block: bytes) -> Batch | None:
    """The iteration lines of a block of whole lines; None when there are none."""
    if MARK not in block and b"\x1b" not in block:
        return None
    block = strip_colours(block)
    expected = block.count(MARK)
    if not expected:
        return None
    for pattern in (_TIMED, _UNTIMED):
        rows = pattern.findall(block)
        if len(rows) == expected and (pattern is _TIMED or b"] iteration " not in block):
            return Batch(rows)
    return Batch([], _patiently(block))


def _patiently(block: bytes) -> list[Record]:
    found: list[Record] = []
    for line in re.split(rb"[\r\n]+", block):
        if b"iteration" in line:
            found.extend(parse_records(line))
    return found


def batches(stream: IO[bytes]) -> Iterator[Batch]:
    """The iteration lines of a log in batches, in file order and in constant memory."""
    for block in blocks(stream):
        batch = parse_block(block)
        if batch is not None and len(batch):
            yield batch


def scan(source: Path | IO[bytes] | Iterable[bytes]) -> Iterator[Record]:
    """Every record of a log (a path, a binary stream, or lines), in file order, repeated iterations included.

    Constant memory. Raises RecipeError when the path cannot be read.
    """
    if isinstance(source, Path):
        with open_log(source) as stream:
            yield from scan(stream)
    elif isinstance(source, (io.IOBase, io.BufferedReader)):
        for batch in batches(cast("IO[bytes]", source)):
            yield from batch
    else:
        for line in source:
            if b"iteration" in line:
                yield from parse_records(line)
