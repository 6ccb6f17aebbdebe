"""Figures derived from a log, each with one definition (:data:`DEFINITIONS`, printed in docs/metrics.md)."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from ms_recipe.logs.series import Series
from ms_recipe.logs.shape import Shape


@dataclass(frozen=True)
class Definition:
    """A figure: its key in ``--json``, its unit, and what it is."""

    key: str
    unit: str
    text: str


DEFINITIONS = (
    Definition(
        "records", "lines", "Iteration lines kept: one an iteration, the later one where a resumed run repeats it."
    ),
    Definition(
        "first_iteration", "", "Iteration of the first kept line (2 after a converted checkpoint, which counts as 1)."
    ),
    Definition("last_iteration", "", "Iteration of the last kept line."),
    Definition("train_iters", "", "Iterations that the run was asked for (behind the slash)."),
    Definition("finished", "", 'The log has upstream\'s "after training is done".'),
    Definition(
        "restarts", "", "How often the iteration number went back, or a checkpoint was loaded after the first line."
    ),
    Definition("discarded", "lines", "Lines that a restart supersedes."),
    Definition("duplicates", "lines", "Lines printed twice in a row, taken once."),
    Definition("first_loss", "", "lm loss of the first line that has a finite one."),
    Definition("last_loss", "", "lm loss of the last line that has a finite one."),
    Definition("min_loss", "", "Lowest finite lm loss."),
    Definition("mean_loss", "", "Mean of the finite lm losses, every line weighing the same."),
    Definition(
        "nonfinite", "lines", "Lines whose loss or gradient norm is not a finite number. Upstream omits the loss then."
    ),
    Definition("first_nonfinite", "", "Iteration of the first such line."),
    Definition("skipped", "iterations", 'Sum of "number of skipped iterations" (fp16 overflow): no update was made.'),
    Definition(
        "step_ms",
        "ms",
        'Median of "elapsed time per iteration", without warm-up: without the first line after each start '
        "(--warmup N: the first N), torn lines and skipped steps.",
    ),
    Definition(
        "step_ms_mean_all",
        "ms",
        'Mean of "elapsed time per iteration" over all kept lines, warm-up included, weighted by the '
        "iterations a line stands for.",
    ),
    Definition("samples_per_second", "1/s", "global batch size x 1000 / step_ms."),
    Definition(
        "tokens_per_second", "tokens/s", "samples_per_second x sequence length (padding counts, as upstream counts it)."
    ),
    Definition("tokens_per_second_per_npu", "tokens/s", "tokens_per_second / world size."),
    Definition(
        "model_tflops_per_npu",
        "TFLOP/s",
        "Model FLOPs of one iteration / step_ms / world size; upstream's formula, recomputation not counted, "
        "attention over the full sequence.",
    ),
    Definition("logged_tflops_per_npu", "TFLOP/s", 'Median of "throughput per GPU" over the same lines as step_ms.'),
    Definition(
        "mfu",
        "",
        "model_tflops_per_npu (or logged_tflops_per_npu) / the chip's peak, which must be given: --peak- "
        "tflops, or cluster.npu_peak_tflops in the recipe.",
    ),
    Definition("samples", "samples", '"consumed samples" of the last line.'),
    Definition("tokens", "tokens", "samples x sequence length."),
    Definition("lost_to_skipped_s", "s", "Sum over lines of skipped iterations x elapsed time per iteration."),
    Definition(
        "lost_to_restarts_s",
        "s",
        "Computing time of superseded lines, and the clock time between the last line before a restart and "
        "the first step after it (not known without times on the lines).",
    ),
    Definition("wall_s", "s", "Clock time from the first to the last kept line."),
    Definition(
        "outside_steps_s", "s", "wall_s less the elapsed time of the steps in between: saving, evaluation, restarts."
    ),
    Definition("left_iterations", "", "train_iters - last_iteration."),
    Definition("left_s", "s", "left_iterations x step_ms; nothing for saving or evaluation."),
    Definition("max_memory_mb", "MB", 'Highest "max allocated" that a rank printed (2**20 bytes).'),
    Definition("validation_loss", "", 'The last "validation loss".'),
    Definition("seq_length", "tokens", "Sequence length, from the recipe, the log's arguments, or --seq-length."),
    Definition("global_batch_size", "samples", "Global batch size of the last line."),
    Definition("world_size", "NPUs", "World size, from the log, the recipe, or --npus."),
)


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _round(value: Any) -> Any:
    """Figures with at most 9 significant digits: what floating point adds behind is no information."""
    return float(f"{value:.9g}") if isinstance(value, float) and math.isfinite(value) else value


def summarize(
    series: Series, shape: Shape | None = None, peak_tflops: float | None = None, warmup: int = 1
) -> dict[str, Any]:
    """All figures of :data:`DEFINITIONS`; None where the log (and ``shape``) do not say enough.

    ``shape`` wins over what the log's own arguments say. ``peak_tflops`` is one NPU's peak in TFLOP/s.
    """
    facts = series.facts
    shape = shape or Shape.read(facts.args, facts.world_size)
    steady = series.steady(warmup)
    elapsed = [series.columns["elapsed_ms"][i] for i in steady]
    step = _median(elapsed)
    losses = series.finite("lm_loss")
    bad = series.bad()
    batches = [v for v in series.values("global_batch_size") if v is not None]
    batch = batches[-1] if batches else shape.global_batch_size
    samples = next((v for v in reversed(series.values("consumed_samples")) if v is not None), None)
    logged = _median([v for i in steady if math.isfinite(v := series.columns["tflops"][i]) and v > 0])
    world, seq = shape.world_size, shape.seq_length
    sps = batch * 1000 / step if batch and step else None
    tps = sps * seq if sps and seq else None
    flops = shape.flops(batch) if batch else None
    tflops = flops / (step / 1000) / world / 1e12 if flops and step and world else None
    best = tflops or logged
    total = series.train_iters
    left = max(0, total - series.iterations[-1]) if total is not None else None
    weights = [series.interval(i) for i in range(len(series))]
    timed = [(series.step_ms(i), w) for i, w in enumerate(weights) if series.step_ms(i)]
    wall = series.times[-1] - series.times[0] if len(series) > 1 else math.nan
    skips = series.columns["skipped"]
    downs = [r.down_s for r in series.restarts]
    lost = sum(r.wasted_ms for r in series.restarts) / 1000 + sum(d or 0.0 for d in downs)
    figures: dict[str, Any] = {
        "records": len(series),
        "first_iteration": series.iterations[0],
        "last_iteration": series.iterations[-1],
        "train_iters": total,
        "finished": facts.finished,
        "restarts": len(series.restarts),
        "discarded": sum(r.discarded for r in series.restarts),
        "duplicates": series.duplicates,
        "first_loss": losses[0][1] if losses else None,
        "last_loss": losses[-1][1] if losses else None,
        "min_loss": min((v for _, v in losses), default=None),
        "mean_loss": statistics.fmean(v for _, v in losses) if losses else None,
        "nonfinite": len(bad),
        "first_nonfinite": bad[0] if bad else None,
        "skipped": int(sum(v for v in skips if not math.isnan(v))),
        "step_ms": step,
        "step_ms_mean_all": sum(v * w for v, w in timed) / sum(w for _, w in timed) if timed else None,
        "samples_per_second": sps,
        "tokens_per_second": tps,
        "tokens_per_second_per_npu": tps / world if tps and world else None,
        "model_tflops_per_npu": tflops,
        "logged_tflops_per_npu": logged,
        "mfu": best / peak_tflops if best and peak_tflops else None,
        "samples": int(samples) if samples is not None else None,
        "tokens": int(samples) * seq if samples is not None and seq else None,
        "lost_to_skipped_s": sum(n * series.step_ms(i) for i, n in enumerate(skips) if n > 0) / 1000,
        "lost_to_restarts_s": lost if not downs or any(d is not None for d in downs) or lost else None,
        "wall_s": None if math.isnan(wall) else wall,
        "outside_steps_s": None,
        "left_iterations": left,
        "left_s": left * step / 1000 if left is not None and step else None,
        "max_memory_mb": facts.memory_mb,
        "validation_loss": list(facts.validation.values())[-1] if facts.validation else None,
        "seq_length": seq,
        "global_batch_size": int(batch) if batch else None,
        "world_size": world,
    }
    if figures["wall_s"] is not None:
        inside = sum(series.step_ms(i) * weights[i] for i in range(1, len(series))) / 1000
        figures["outside_steps_s"] = max(0.0, wall - inside)
    return {k: _round(v) for k, v in figures.items()}


def duration(seconds: float) -> str:
    """``93784`` -> ``1 d 2 h 3 min``; two or three of the largest units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    days, rest = divmod(round(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    parts = [
        f"{days} d" if days else "",
        f"{hours} h" if hours else "",
        f"{minutes} min" if minutes else "",
        f"{secs} s" if secs and not days and not hours else "",
    ]
    return " ".join(p for p in parts if p)


def shown(key: str, value: Any) -> str:
    """A figure for people, with its unit."""
    unit = next((d.unit for d in DEFINITIONS if d.key == key), "")
    if value is None:
        return "not known"
    if key.endswith("_s") or key == "left_s":
        return duration(value)
    if key == "mfu":
        return f"{value:.1%}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    number = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    return f"{number} {unit}".strip()


def table() -> str:
    """The definitions as a Markdown table, for docs/metrics.md."""
    rows = ["| figure | unit | definition |", "|---|---|---|"]
    return "\n".join(rows + [f"| `{d.key}` | {d.unit or '-'} | {d.text} |" for d in DEFINITIONS]) + "\n"
