"""All layouts of a number of NPUs: which are valid, which fit, in what order, and why others are out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ms_recipe.checks.effective import divisors
from ms_recipe.checks.spaces import human
from ms_recipe.plan import constants as c
from ms_recipe.plan.memory import Shape, peak


@dataclass(frozen=True)
class Candidate:
    """One layout. ``reasons`` is empty for a valid one that fits; ``score`` is its relative speed by judgement."""

    tp: int
    pp: int
    cp: int
    dp: int
    recompute: str
    peak: int
    bubble: float
    score: float
    reasons: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The layout for ``--json``."""
        return {"tp": self.tp, "pp": self.pp, "cp": self.cp, "dp": self.dp, "recompute": self.recompute,
                "peak_bytes": self.peak, "bubble": round(self.bubble, 4), "score": round(self.score, 4),
                "reasons": list(self.reasons)}


@dataclass
class Layouts:
    """``good`` in order of score, ``out`` with their reasons, ``why`` counting each kind of reason."""

    good: list[Candidate] = field(default_factory=list)
    out: list[Candidate] = field(default_factory=list)
    why: Counter[str] = field(default_factory=Counter)


def _reasons(s: Shape, tp: int, pp: int, cp: int, dp: int, per_node: int) -> list[tuple[str, str]]:
    """(kind, sentence) of every rule that a layout breaks."""
    out = []
    for kind, n, part in (("heads", s.heads, tp), ("query groups", s.groups, tp), ("ffn_hidden_size", s.ffn, tp),
                          ("padded_vocab_size", s.vocab, tp), ("layers", s.layers, pp)):
        if n % part:
            by = "pp" if kind == "layers" else "tp"
            out.append((f"{kind} % {by}", f"{n} {kind} are not a multiple of {by} {part}"))
    if s.batch % (s.micro * dp):
        out.append(("global batch % dp", f"global batch {s.batch} is not a multiple of micro batch {s.micro} x dp {dp}"))
    if cp > 1 and s.seq % (2 * cp):
        out.append(("sequence % 2cp", f"seq_length {s.seq} is not a multiple of 2 x cp {cp}"))
    if cp > 1 and s.heads % (cp * tp):
        out.append(("heads % (cp x tp)", f"{s.heads} heads are not a multiple of ulysses cp {cp} x tp {tp}"))
    if tp > 1 and s.seq % (tp * cp):
        out.append(("sequence % tp", f"seq_length {s.seq} is not a multiple of tp {tp} x cp {cp} (sequence parallel)"))
    if tp > per_node or (tp > 1 and per_node % tp):
        out.append(("tp across nodes", f"tp {tp} does not fit into the {per_node} NPUs of a node"))
    return out


def _candidate(s: Shape, tp: int, pp: int, cp: int, dp: int, limit: int) -> Candidate:
    """The layout with the least recomputation that fits, or with full recomputation and the reason."""
    grains = ("none", "selective", "full")
    for grain in grains:
        laid = s.laid(tp, pp, cp, dp, grain)
        need = peak(laid)
        if need <= limit:
            break
    m = laid.micro_batches
    bubble = (pp - 1) / (m + pp - 1) if m else 1.0
    score = (1 - bubble) * c.TP_SPEED.get(tp, 0.7) * (c.CP_SPEED if cp > 1 else 1) * c.RECOMPUTE_SPEED[grain]
    reasons = (f"needs {human(need)} with full recomputation, {human(limit)} are there",) if need > limit else ()
    return Candidate(tp, pp, cp, dp, grain, need, bubble, score, reasons)


def rank(s: Shape, world: int, per_node: int, memory: int, reserve: int = c.RESERVE) -> Layouts:
    """All tp x pp x cp x dp of ``world`` NPUs for the training of ``s`` (micro and global batch stay as they are).

    Args:
        memory: bytes of an NPU; ``reserve`` of them are not the model's.
    """
    found = Layouts()
    for tp in divisors(world):
        for pp in divisors(world // tp):
            for cp in divisors(world // tp // pp):
                dp = world // (tp * pp * cp)
                broken = _reasons(s, tp, pp, cp, dp, per_node)
                if broken:
                    found.why.update(kind for kind, _ in broken)
                    found.out.append(Candidate(tp, pp, cp, dp, "", 0, 0.0, 0.0, tuple(t for _, t in broken)))
                    continue
                candidate = _candidate(s, tp, pp, cp, dp, memory - reserve)
                if candidate.reasons:
                    found.why["memory"] += 1
                    found.out.append(candidate)
                else:
                    found.good.append(candidate)
    found.good.sort(key=lambda x: (-x.score, x.tp, x.pp, x.cp))
    return found
