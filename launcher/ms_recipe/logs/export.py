"""Parsed metrics as csv, jsonl, parquet and TensorBoard event files."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

from ms_recipe.errors import MsRecipeError, Problem
from ms_recipe.logs.series import Series

# Upstream's own TensorBoard tags (Megatron-LM core_r0.8.0 megatron/training/training.py training_log), so that curves
# of a log and of --tensorboard-dir lie over each other.
TAGS = {
    "lm_loss": "lm loss",
    "lr": "learning-rate",
    "global_batch_size": "batch-size",
    "loss_scale": "loss-scale",
    "grad_norm": "grad-norm",
    "num_zeros": "num-zeros",
    "params_norm": "params-norm",
    "tflops": "throughput",
}


def _missing(package: str, extra: str, what: str) -> MsRecipeError:
    return MsRecipeError(
        Problem(f"{what} needs {package}, which is not installed", fix=f"pip install 'ms-recipe[{extra}]'")
    )


def _parent(path: Path) -> None:
    if not path.parent.is_dir():
        raise MsRecipeError(Problem("its folder does not exist", str(path), f"mkdir -p {path.parent}"))


def columns(series: Series) -> list[str]:
    """The columns of every export, in order."""
    return ["iteration", "train_iters", "time", *series.columns, *series.other_losses, "status"]


def to_csv(series: Series, path: Path) -> int:
    """Write one row an iteration; an absent number is an empty field. Returns the number of rows."""
    _parent(path)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns(series), lineterminator="\n")
        writer.writeheader()
        for row in series.rows():
            writer.writerow(row)
    return len(series)


def to_jsonl(series: Series, path: Path) -> int:
    """Write one JSON object an iteration; an absent number is null, never NaN. Returns the number of rows."""
    _parent(path)
    with path.open("w", encoding="utf-8") as file:
        for row in series.rows():
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    return len(series)


def to_parquet(series: Series, path: Path) -> int:
    """Write a parquet file (pyarrow). Returns the number of rows.

    Raises:
        MsRecipeError: pyarrow is not installed.
    """
    _parent(path)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise _missing("pyarrow", "export", "--parquet") from None
    whole = {"iteration", "train_iters", "consumed_samples", "global_batch_size", "skipped", "nan"}
    fields = [
        (n, pa.int64() if n in whole else pa.string() if n in ("time", "status") else pa.float64())
        for n in columns(series)
    ]
    rows = list(series.rows())
    pq.write_table(pa.table({n: pa.array([r[n] for r in rows], t) for n, t in fields}, pa.schema(fields)), path)
    return len(rows)


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise _missing("torch with tensorboard", "cpu,export", "--tensorboard") from None
    return SummaryWriter(str(folder))


class _EventFile:
    """TensorBoard's own writer, without torch."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary, self._writer = Event, Summary, EventFileWriter(str(folder))

    def add_scalar(self, tag: str, value: float, step: int, walltime: float | None) -> None:
        summary = self._summary(value=[self._summary.Value(tag=tag, simple_value=value)])
        self._writer.add_event(self._event(summary=summary, step=step, wall_time=walltime or float(step)))

    def close(self) -> None:
        self._writer.close()


def to_tensorboard(series: Series, folder: Path) -> int:
    """Write event files with upstream's tags into ``folder``. Returns the number of points.

    Raises:
        MsRecipeError: neither tensorboard nor torch's writer is installed.
    """
    try:
        writer: Any = _EventFile(folder)
    except ImportError:
        writer = _writer(folder)
    points = 0
    for name, tag in TAGS.items():
        for index, (iteration, value) in enumerate(zip(series.iterations, series.values(name), strict=True)):
            if value is not None:
                when = series.times[index]
                writer.add_scalar(tag, value, iteration, None if math.isnan(when) else when)
                points += 1
    for index, (iteration, ms) in enumerate(zip(series.iterations, series.values("elapsed_ms"), strict=True)):
        if ms is not None:
            when = series.times[index]
            writer.add_scalar("iteration-time", ms / 1000, iteration, None if math.isnan(when) else when)
            points += 1
    for label, values in series.other_losses.items():
        for iteration, value in values.items():
            writer.add_scalar(label, value, iteration, None)
    for iteration, value in series.facts.validation.items():
        writer.add_scalar("lm loss validation", value, iteration, None)
    writer.close()
    return points + sum(map(len, series.other_losses.values())) + len(series.facts.validation)
