"""Two runs side by side: speed-up, scaling efficiency, where the losses part, what the recipes set differently."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from ms_recipe.logs.metrics import summarize
from ms_recipe.logs.series import Series
from ms_recipe.logs.shape import Shape

# Argument names whose values always differ between two runs and say nothing.
_NOISE = {"rank", "local_rank", "master_addr", "master_port", "node_rank"}


def parting(a: Series, b: Series, tolerance: float = 0.01) -> dict[str, Any]:
    """Where the losses of two runs part.

    ``common``: iterations that both have a finite loss for; ``max_difference``: the largest relative difference and the
    iteration where it is; ``parts_at``: the first iteration from which the smoothed relative difference (median of 9
    iterations) is above ``tolerance``, or None.
    """
    other = dict(b.finite("lm_loss"))
    pairs = [(i, v, other[i]) for i, v in a.finite("lm_loss") if i in other]
    if not pairs:
        return {"common": 0, "parts_at": None, "max_difference": None, "max_difference_at": None, "identical": None}
    relative = [abs(x - y) / max(abs(x), abs(y), 1e-12) for _, x, y in pairs]
    worst = max(range(len(pairs)), key=relative.__getitem__)
    width = min(9, len(pairs))
    first = None
    for start in range(len(pairs) - width + 1):
        if statistics.median(relative[start : start + width]) > tolerance:
            over = (k for k in range(start, start + width) if relative[k] > tolerance)
            first = pairs[next(over)][0]
            break
    return {
        "common": len(pairs),
        "parts_at": first,
        "max_difference": relative[worst],
        "max_difference_at": pairs[worst][0],
        "identical": all(x == y for _, x, y in pairs),
    }


def settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(name, value in a, value in b) of every setting that differs; None where one does not have it."""
    names = sorted((a.keys() | b.keys()) - _NOISE)
    return [(n, a.get(n), b.get(n)) for n in names if str(a.get(n)) != str(b.get(n))]


def compare(
    a: Series,
    b: Series,
    shapes: tuple[Shape | None, Shape | None] = (None, None),
    flags: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
    warmup: int = 1,
    tolerance: float = 0.01,
) -> dict[str, Any]:
    """B against A.

    ``speed_up`` is B's throughput over A's, in tokens/s (or samples/s without a sequence length, or steps);
    ``scaling_efficiency`` is speed_up over the ratio of the NPUs, None if a world size is not known or they are equal.
    """
    one, two = summarize(a, shapes[0], warmup=warmup), summarize(b, shapes[1], warmup=warmup)
    speed = basis = None
    for key in ("tokens_per_second", "samples_per_second"):
        if one[key] and two[key]:
            speed, basis = two[key] / one[key], key
            break
    else:
        if one["step_ms"] and two["step_ms"]:
            speed, basis = one["step_ms"] / two["step_ms"], "step_ms"
    worlds = one["world_size"], two["world_size"]
    scaling = None
    if speed and worlds[0] and worlds[1] and worlds[0] != worlds[1]:
        scaling = speed / (worlds[1] / worlds[0])
    left, right = flags or (a.facts.args, b.facts.args)
    return {
        "a": one,
        "b": two,
        "speed_up": speed,
        "speed_up_basis": basis,
        "scaling_efficiency": scaling,
        "losses": parting(a, b, tolerance),
        "settings": [{"name": n, "a": x, "b": y} for n, x, y in settings(left, right)] if left and right else None,
    }
