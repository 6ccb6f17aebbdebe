"""Is a training healthy? Findings for people and scripts: diverged, NaN, stuck, slower, impossible figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ms_recipe.logs.claims import contradictions
from ms_recipe.logs.metrics import duration, summarize
from ms_recipe.logs.series import START, Series
from ms_recipe.logs.shape import Shape


@dataclass(frozen=True)
class Finding:
    """``level`` is ``fail`` (exit 3), ``warn`` or ``note``; ``name`` is stable, for scripts."""

    level: str
    name: str
    text: str

    def as_dict(self) -> dict[str, str]:
        """For ``--json``."""
        return asdict(self)


@dataclass(frozen=True)
class Limits:
    """What counts as ill. ``slower`` and ``baseline_slower`` are ratios of step times, ``blow_up`` of losses (lowest
    smoothed loss to the newest), ``flat`` a number of lines, ``skipped`` a share; ``stuck_s`` seconds, or None: ten
    steps, at least 300 s."""

    slower: float = 1.2
    baseline_slower: float = 1.1
    blow_up: float = 1.5
    flat: int = 50
    skipped: float = 0.1
    stuck_s: float | None = None


def _loss(series: Series, limits: Limits) -> list[Finding]:
    found = []
    bad = series.bad()
    losses = series.finite("lm_loss")
    if bad:
        good = next(((i, v) for i, v in reversed(losses) if i < bad[0]), None)
        after = f"; the last good loss is {good[1]:g} at iteration {good[0]}" if good else ""
        found.append(
            Finding(
                "fail",
                "diverged",
                f"loss or gradient is not a finite number from iteration {bad[0]} on, "
                f"in {len(bad)} of {len(series)} lines{after}",
            )
        )
    values = [v for _, v in losses]
    if len(values) >= 40:
        window = max(5, len(values) // 20)
        smooth = [statistics.median(values[i : i + window]) for i in range(0, len(values) - window + 1, window)]
        tail = statistics.median(values[-window:])
        low = min(smooth)
        if low > 0 and tail > low * limits.blow_up and tail > low + 0.5:
            where = losses[smooth.index(low) * window][0]
            found.append(
                Finding("fail", "blown-up", f"the loss rose from {low:.4g} (about iteration {where}) to {tail:.4g}")
            )
    if len(values) >= limits.flat and len(set(values[-limits.flat :])) == 1:
        found.append(
            Finding(
                "fail",
                "flat",
                f"the loss has been exactly {values[-1]:g} for {limits.flat} lines: nothing "
                "is learned (learning rate 0, or frozen weights?)",
            )
        )
    return found


def _skips(series: Series, limits: Limits) -> list[Finding]:
    skipped = series.columns["skipped"]
    total = sum(v for v in skips if not math.isnan(v)) if (skips := list(skipped)) else 0
    count = sum(series.interval(i) for i in range(len(series)))
    tail = [v for v in skips[-20:] if not math.isnan(v)]
    if len(tail) == 20 and all(tail):
        return [
            Finding("fail", "all-skipped", "the last 20 lines are all skipped steps: the loss scale does not recover")
        ]
    if count >= 100 and total / count > limits.skipped:
        return [Finding("warn", "skipped", f"{total:.0f} of {count} iterations were skipped")]
    return []


def _speed(series: Series, limits: Limits, baseline: Series | None, warmup: int) -> list[Finding]:
    steady = [series.columns["elapsed_ms"][i] for i in series.steady(warmup)]
    found = []
    if len(steady) >= 20:
        quarter = len(steady) // 4
        first, last = statistics.median(steady[:quarter]), statistics.median(steady[-quarter:])
        if last > first * limits.slower:
            found.append(
                Finding(
                    "fail",
                    "slower",
                    f"steps take {last:.0f} ms in the last quarter and took {first:.0f} ms "
                    f"in the first: {last / first:.2f} times as long",
                )
            )
    if baseline is not None and steady:
        old = [baseline.columns["elapsed_ms"][i] for i in baseline.steady(warmup)]
        if old and statistics.median(steady) > statistics.median(old) * limits.baseline_slower:
            now, then = statistics.median(steady), statistics.median(old)
            found.append(
                Finding(
                    "fail",
                    "slower-than-baseline",
                    f"a step takes {now:.0f} ms, in {baseline.name} it took "
                    f"{then:.0f} ms: {now / then:.2f} times as long",
                )
            )
    return found


def _itself(series: Series, shape: Shape | None) -> list[Finding]:
    """Does the log agree with itself?"""
    found = []
    samples, batch = series.columns["consumed_samples"], series.columns["global_batch_size"]
    for i in range(1, len(series)):
        if series.flags[i] & START or math.isnan(samples[i] + samples[i - 1] + batch[i]) or batch[i] != batch[i - 1]:
            continue
        steps = series.iterations[i] - series.iterations[i - 1]
        if samples[i] - samples[i - 1] != steps * batch[i]:
            found.append(
                Finding(
                    "fail",
                    "samples",
                    f"from iteration {series.iterations[i - 1]} to {series.iterations[i]} "
                    f"{samples[i] - samples[i - 1]:.0f} samples are counted, {steps} x batch {batch[i]:.0f} "
                    f"= {steps * batch[i]:.0f}: the log is not of one run, or was edited",
                )
            )
            break
    if len(series) > 2 and not math.isnan(series.times[-1] - series.times[0]):
        clock = stepped = 0.0
        for i in range(1, len(series)):
            if not series.flags[i] & START and not math.isnan(gap := series.times[i] - series.times[i - 1]):
                clock += gap
                stepped += series.step_ms(i) * series.interval(i) / 1000
        if stepped > clock * 1.2 + 5:
            found.append(
                Finding(
                    "fail",
                    "clock",
                    f"the steps claim {duration(stepped)} and the clock on the lines says "
                    f"{duration(clock)}: the log was edited, or its clock was set",
                )
            )
    figures = summarize(series, shape)
    mine, printed = figures["model_tflops_per_npu"], figures["logged_tflops_per_npu"]
    if mine and printed and printed > 1 and max(mine / printed, printed / mine) > 1.1:
        found.append(
            Finding(
                "warn",
                "throughput",
                f"the log prints {printed:.1f} TFLOP/s per NPU, the model's sizes and "
                f"the step time give {mine:.1f}: recipe and log are not of the same run?",
            )
        )
    return found


def check(
    series: Series,
    *,
    shape: Shape | None = None,
    claims: Mapping[str, float] | None = None,
    baseline: Series | None = None,
    limits: Limits | None = None,
    idle_s: float | None = None,
    warmup: int = 1,
) -> list[Finding]:
    """All findings. ``idle_s``: seconds since the log last grew, given only for a run that should still be going."""
    limits = limits or Limits()
    found = _loss(series, limits) + _skips(series, limits) + _speed(series, limits, baseline, warmup)
    found += _itself(series, shape)
    figures = summarize(series, shape, warmup=warmup)
    if series.facts.random_start:
        found.append(
            Finding(
                "fail",
                "random-start",
                f'the run began from random weights, no checkpoint was loaded: "{series.facts.random_start}"',
            )
        )
    step = figures["step_ms"]
    if idle_s is not None and not series.facts.finished:
        limit = limits.stuck_s or max(300.0, 10 * (step or 0) / 1000)
        if idle_s > limit:
            found.append(
                Finding("fail", "stuck", f"no line for {duration(idle_s)}, a step takes {duration((step or 0) / 1000)}")
            )
    if figures["left_iterations"] and not series.facts.finished and idle_s is None:
        found.append(
            Finding(
                "warn",
                "unfinished",
                f"the log ends at iteration {figures['last_iteration']} of "
                f'{figures["train_iters"]}, without "after training is done"',
            )
        )
    if claims:
        found += claimed(claims, figures)
    return found


def claimed(claims: Mapping[str, float], figures: Mapping[str, Any] | None = None) -> list[Finding]:
    """Claims against each other, and against measured ``figures``."""
    found = [Finding("fail", "claim", f"{c.what}: {c.total}") for c in contradictions(claims)]
    measured = {
        "tokens_per_second": "tokens_per_second",
        "tokens_per_second_per_npu": "tokens_per_second_per_npu",
        "seq_length": "seq_length",
        "global_batch": "global_batch_size",
        "npus": "world_size",
        "utilisation": "mfu",
    }
    for name, key in measured.items():
        real = (figures or {}).get(key)
        if name in claims and real and max(claims[name] / real, real / claims[name]) > 1.1:
            found.append(Finding("fail", "claim", f"{name} {claims[name]:g} is claimed, the log says {real:g}"))
    step = (figures or {}).get("step_ms")
    if "step_seconds" in claims and step and max(r := claims["step_seconds"] * 1000 / step, 1 / r) > 1.1:
        found.append(
            Finding(
                "fail", "claim", f"step_seconds {claims['step_seconds']:g} is claimed, the log says {step / 1000:g}"
            )
        )
    return found
