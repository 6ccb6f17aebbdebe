"""Do figures that somebody states agree with each other? With the sum that shows why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ms_recipe.errors import Problem, RecipeError

# name -> (unit, what it is)
CLAIMS = {
    "tokens_per_second": ("tokens/s", "all NPUs together"),
    "tokens_per_second_per_npu": ("tokens/s", "one NPU"),
    "step_seconds": ("s", "one iteration"),
    "batch": ("samples", "samples that one NPU (one data-parallel rank) takes at a time, at least once an iteration"),
    "global_batch": ("samples", "samples of one iteration over all NPUs"),
    "seq_length": ("tokens", "tokens of one sample"),
    "data_parallel": ("", "data-parallel size, 1 if not said"),
    "npus": ("", "number of NPUs"),
    "steps": ("", "iterations of the whole run"),
    "hours": ("h", "length of the whole run"),
    "params": ("", "parameters of the model, for model FLOPs = 6 x params x tokens"),
    "utilisation": ("", "share of the chip's peak, 0 to 1, or percent with a % sign"),
    "peak_tflops": ("TFLOP/s", "one chip's peak"),
    "bytes_per_param": ("bytes", "weights, gradients and optimizer state, 18 in mixed precision with Adam"),
    "memory_gb": ("GB", "one NPU's memory; with params and npus=1 it must hold the training state"),
}


@dataclass(frozen=True)
class Contradiction:
    """Two claims that cannot both be true; ``total`` is the sum as a line of text; ``factor``: how far apart."""

    what: str
    total: str
    factor: float


def parse(words: list[str]) -> dict[str, float]:
    """``["step_seconds=0.8", "utilisation=85%"]`` as numbers.

    Raises:
        RecipeError: an unknown name or not a positive number; all at once.
    """
    found: dict[str, float] = {}
    problems = []
    for word in words:
        name, _, text = word.partition("=")
        name = name.strip().replace("-", "_")
        if name not in CLAIMS:
            problems.append(Problem(f"unknown claim {name}", "--claim", f"one of {', '.join(CLAIMS)}"))
            continue
        try:
            plain = text.strip().replace(",", "").replace("_", "")
            value = float(plain[:-1]) / 100 if plain.endswith("%") else float(plain)
            if not value > 0:
                raise ValueError
            found[name] = value
        except ValueError:
            problems.append(Problem(f"{name} must be a positive number, got {text!r}", "--claim"))
    if problems:
        raise RecipeError(*problems)
    return found


def _far(a: float, b: float, tolerance: float) -> float:
    factor = max(a, b) / min(a, b)
    return factor if factor > 1 + tolerance else 0.0


def _n(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def contradictions(claims: Mapping[str, float], tolerance: float = 0.10) -> list[Contradiction]:
    """The pairs that disagree by more than ``tolerance``. A batch without a global batch is a lower bound only."""
    c = dict(claims)
    npus, dp = c.get("npus"), c.get("data_parallel", 1.0)
    if "tokens_per_second" not in c and npus and "tokens_per_second_per_npu" in c:
        c["tokens_per_second"] = c["tokens_per_second_per_npu"] * npus
    tps, step, seq = c.get("tokens_per_second"), c.get("step_seconds"), c.get("seq_length")
    found: list[Contradiction] = []
    exact = "global_batch" in c
    batch = c.get("global_batch") or (c["batch"] * dp if "batch" in c else None)
    if batch and seq:
        tokens = batch * seq
        least = "" if exact else "at least "
        sum_ = (
            f"{_n(batch)} x {_n(seq)} = {_n(tokens)} tokens an iteration"
            if exact or dp == 1
            else f"{_n(c['batch'])} x dp {_n(dp)} x {_n(seq)} = {_n(tokens)} tokens an iteration"
        )
        if step and tps:
            rate = tokens / step
            factor = _far(rate, tps, tolerance)
            if factor and (exact or rate > tps):
                found.append(
                    Contradiction(
                        f"{_n(tps)} tokens/s cannot be: batch, sequence length and step time give {least}{_n(rate)}",
                        f"{sum_}; {_n(tokens)} / {_n(step)} s = {_n(rate)} tokens/s, {_n(factor)} times the claim; at "
                        f"{_n(tps)} tokens/s an iteration takes {least}{_n(tokens)} / {_n(tps)} = {_n(tokens / tps)} s",
                        factor,
                    )
                )
        steps, hours = c.get("steps"), c.get("hours")
        if steps and hours and tps:
            needed = steps * tokens / tps / 3600
            factor = _far(needed, hours, tolerance)
            if factor and (exact or needed > hours):
                found.append(
                    Contradiction(
                        f"{_n(steps)} iterations in {_n(hours)} h cannot be at {_n(tps)} tokens/s",
                        f"{_n(steps)} x {_n(tokens)} tokens / {_n(tps)} tokens/s = {_n(needed)} h "
                        f"({_n(needed / 24)} days)",
                        factor,
                    )
                )
    if step and "steps" in c and "hours" in c:
        needed = c["steps"] * step / 3600
        factor = _far(needed, c["hours"], tolerance)
        if factor and needed > c["hours"]:
            found.append(
                Contradiction(
                    f"{_n(c['steps'])} iterations in {_n(c['hours'])} h cannot be at {_n(step)} s each",
                    f"{_n(c['steps'])} x {_n(step)} s = {_n(needed)} h",
                    factor,
                )
            )
    each = c.get("tokens_per_second_per_npu")
    if each and npus and "tokens_per_second" in claims:
        factor = _far(each * npus, c["tokens_per_second"], tolerance)
        if factor and c["tokens_per_second"] > each * npus:
            found.append(
                Contradiction(
                    f"{_n(c['tokens_per_second'])} tokens/s on {_n(npus)} NPUs is more than {_n(each)} each",
                    f"{_n(npus)} x {_n(each)} = {_n(each * npus)} tokens/s",
                    factor,
                )
            )
    params, share, peak = c.get("params"), c.get("utilisation"), c.get("peak_tflops")
    if params and share and peak and npus and tps:
        real = 6 * params * tps / npus / 1e12
        factor = _far(real / peak, share, 0.5)
        if factor:
            found.append(
                Contradiction(
                    f"a utilisation of {share:.0%} cannot be at {_n(tps)} tokens/s",
                    f"6 x {params:.3g} parameters x {_n(tps)} tokens/s / {_n(npus)} NPUs = {_n(real)} TFLOP/s each, "
                    f"{real / peak:.1%} of {_n(peak)}",
                    factor,
                )
            )
    if share and share > 1:
        found.append(Contradiction(f"a utilisation of {share:.0%} is more than all", f"{share:.0%} > 100%", share))
    per, memory = c.get("bytes_per_param"), c.get("memory_gb")
    if params and per and memory and npus == 1 and params * per / 1e9 > memory:
        found.append(
            Contradiction(
                f"one NPU of {_n(memory)} GB cannot hold the training state",
                f"{params:.3g} parameters x {_n(per)} bytes = {_n(params * per / 1e9)} GB",
                params * per / 1e9 / memory,
            )
        )
    return found
