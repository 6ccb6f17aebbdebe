"""The worker's JSON -> figures per kind of rank, their sum explained, and what upstream refused or changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ms_recipe.errors import Problem, UpstreamError
from ms_recipe.preflight.request import Request
from ms_recipe.upstream import argspec

#: Arguments that change what the optimizer keeps in a way that is not counted here.
UNCOUNTED = ("reuse_fp32_param", "o2_optimizer", "swap_optimizer", "o2_gradient", "swap_attention")
#: Given layout sizes that upstream cuts down without a word (megatron/training/arguments.py:158-166).
_LAYOUT = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
_REMOVED = "(removed)"


@dataclass(frozen=True)
class Change:
    """An argument before and after upstream's validation. ``given`` ones were written in the recipe, at ``origin``.

    ``flag`` is the flag as given; of arguments that the recipe leaves alone it is the argument's name (a flag such as
    ``--no-bias-gelu-fusion`` would read the wrong way round beside the value of ``bias_gelu_fusion``).
    """

    flag: str
    before: Any
    after: Any
    given: bool
    origin: str = ""

    def __str__(self) -> str:
        where = f"{self.origin}: " if self.origin else ""
        return f"{where}upstream changed {self.flag} from {_shown(self.before)} to {_shown(self.after)}"


@dataclass(frozen=True)
class Kind:
    """One kind of rank: its place, how many ranks are like it (data and context parallel), and its figures in bytes.

    ``activations`` (with --activations): kept per micro batch at the end of forward, the peak of one micro batch,
    micro batches in flight (with several model chunks: forwards of one chunk), the total at the worst moment.
    """

    pp: int
    tp: int
    rank: int
    ranks: int
    layers: tuple[int, ...]
    parameters: int
    replicated: int
    tied: int
    weights: int
    gradients: int
    optimizer_distributed: int
    optimizer_plain: int
    distributed: bool
    activations: dict[str, int] = field(default_factory=dict)

    @property
    def optimizer(self) -> int:
        """Bytes of optimizer state as the recipe asks for it."""
        return self.optimizer_distributed if self.distributed else self.optimizer_plain

    @property
    def total(self) -> int:
        """Weights, gradients, optimizer state, and activations where they were counted."""
        return self.weights + self.gradients + self.optimizer + self.activations.get("total", 0)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**asdict(self), "layers": list(self.layers), "optimizer": self.optimizer, "total": self.total}


@dataclass
class Report:
    """What preflight found. ``problems`` make it fail (exit 3); ``notes`` do not."""

    recipe: str
    pin: str
    tree: str
    entry: str
    nnodes: int
    local: int
    layout: dict[str, int] = field(default_factory=dict)
    kinds: list[Kind] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def sums(self) -> dict[str, int]:
        """All kinds added up, and what must come off to get the model's parameters, each counted once.

        ``replicated`` are the copies, on tensor positions above 0, of parameters that tensor parallelism does not
        split; ``tied`` are the last stage's copies of a tied embedding.
        """
        built = sum(kind.parameters for kind in self.kinds)
        replicated = sum(kind.replicated for kind in self.kinds if kind.tp)
        tied = sum(kind.tied for kind in self.kinds)
        return {"built": built, "replicated": replicated, "tied": tied, "parameters": built - replicated - tied}

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``; bytes everywhere."""
        return {
            "recipe": self.recipe, "pin": self.pin, "tree": self.tree, "entry": self.entry, "ok": not self.problems,
            "nnodes": self.nnodes, "npus_per_node": self.local, "world_size": self.nnodes * self.local,
            "layout": self.layout, "kinds": [kind.as_dict() for kind in self.kinds], "sums": self.sums,
            "changes": [asdict(change) for change in self.changes], "problems": [p.as_dict() for p in self.problems],
            "notes": self.notes, "seconds": self.seconds,
        }  # fmt: skip


def read(asked: Request, raw: dict[str, Any]) -> Report:
    """The report of what the worker found for ``asked``.

    Raises:
        UpstreamError: upstream's entry point cannot be imported here, so nothing was asked of it.
    """
    error = raw.get("error")
    if error and error["phase"] == "import":
        words = " ".join(str(error["message"]).split())
        raise UpstreamError(
            Problem(f"{asked.stage.entry} cannot be imported: {error['type']}: {words} ({error['where']})", str(asked.tree),
                    "ms-recipe doctor and docs/install.md say what the cpu backend needs")
        )  # fmt: skip
    report = Report(
        recipe=asked.recipe.name, pin=asked.recipe.pin, tree=str(asked.tree), entry=asked.stage.entry,
        nnodes=asked.nnodes, local=asked.local, layout=raw.get("layout") or {}, seconds=float(raw.get("seconds") or 0),
    )  # fmt: skip
    after = raw.get("args") or {}
    report.changes = _changes(asked, raw.get("before") or {}, after)
    if error:
        report.problems.append(_refusal(asked, error))
    complete = not any(kind.get("error") for kind in raw.get("kinds", []))
    for kind in raw.get("kinds", []):
        if not kind.get("error"):
            report.kinds.append(_kind(kind, report.layout, after))
    report.problems += [p for c in report.changes if (p := _clamped(asked, c)) is not None]
    if complete and report.kinds:
        report.problems += _dropped(asked, report, after)
    report.notes = _notes(asked, report, raw, after)
    return report


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def _changes(asked: Request, before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    if not after:
        return []
    flags = argspec.load(asked.recipe.pin).entry(asked.stage.entry).flags
    given = {flag.dest: name for name, flag in flags.items() if name in asked.stage.args}
    found = []
    for dest, old in before.items():
        new = after.get(dest, _REMOVED)
        if new == old or (dest not in given and (old is None or new == _REMOVED)):
            continue
        name = given.get(dest, dest)
        origin = str(asked.stage.origins[name]) if name in asked.stage.origins else ""
        found.append(Change(name, old, new, dest in given, origin))
    return sorted(found, key=lambda change: (not change.given, change.flag))


def _clamped(asked: Request, change: Change) -> Problem | None:
    """A parallel size that upstream cut down to the world."""
    if change.flag.lstrip("-").replace("-", "_") not in _LAYOUT:
        return None
    return Problem(f"upstream silently cuts {change.flag} from {change.before} to {change.after}, since there are "
                   f"{asked.world} ranks", change.origin, "use a layout that fits the world")  # fmt: skip


def _refusal(asked: Request, error: dict[str, Any]) -> Problem:
    """Upstream's own words, with where the argument it speaks of was written if that is plain."""
    message = " ".join(str(error["message"]).split())
    rank = f", rank {error['rank']}" if "rank" in error else ""
    words = message.lower().replace("-", " ").replace("_", " ")
    origin = ""
    # The longest given flag that upstream's words name: "global batch size (12) is not divisible by ...".
    named = [f for f in asked.stage.args if f.lstrip("-").replace("-", " ") in words and len(f) > 6]
    if named:
        flag = min(named, key=lambda f: (words.index(f.lstrip("-").replace("-", " ")), -len(f)))
        origin = str(asked.stage.origins[flag])
    at = f" ({error['where']}{rank})" if error.get("where") else rank
    fix = "ms-recipe vendor status says whether the tree is whole" if error["phase"] == "process" else "correct the recipe"
    return Problem(f"upstream refuses the recipe: {error['type']}: {message}{at}", origin, fix)


def _kind(raw: dict[str, Any], layout: dict[str, int], args: dict[str, Any]) -> Kind:
    optimizer = {name: sum(raw["optimizer"][name].values()) for name in ("distributed", "plain")}
    return Kind(
        pp=raw["pp"], tp=raw["tp"], rank=raw["rank"], ranks=layout["dp"] * layout["cp"], layers=tuple(raw["layers"]),
        parameters=raw["parameters"], replicated=raw["replicated"], tied=raw["tied"], weights=raw["weights"],
        gradients=raw["gradients"], optimizer_distributed=optimizer["distributed"], optimizer_plain=optimizer["plain"],
        distributed=raw["optimizer"]["asked"] == "distributed",
        activations=_activations(raw, layout, args) if raw.get("activations") else {},
    )  # fmt: skip


def _activations(raw: dict[str, Any], layout: dict[str, int], args: dict[str, Any]) -> dict[str, int]:
    """Micro batches in flight as Megatron's schedules warm up (megatron/core/pipeline_parallel/schedules.py).

    Without virtual stages stage p of P starts P - p forwards before its first backward; with v of them
    2 * (P - p - 1) + (v - 1) * P + 1 forwards of one chunk.
    """
    chunks = raw["activations"]
    stages, chunk_count = layout["pp"], len(chunks)
    batches = max(1, args["global_batch_size"] // (args["micro_batch_size"] * args["data_parallel_size"]))
    kept = sum(chunk["kept"] for chunk in chunks)
    extra = max(chunk["peak"] - chunk["kept"] for chunk in chunks)
    if chunk_count == 1:
        flight = min(stages - raw["pp"], batches)
        total = kept * flight + extra
    else:
        flight = min(2 * (stages - raw["pp"] - 1) + (chunk_count - 1) * stages + 1, batches * chunk_count)
        total = _interleaved_peak(chunks, stages, batches, flight - 1)
    return {"per_micro_batch": kept, "peak": kept + extra, "in_flight": flight, "chunks": chunk_count, "total": total}


def _interleaved_peak(chunks: list[dict[str, int]], stages: int, batches: int, warm: int) -> int:
    """The most bytes held at once, going through one step of the interleaved schedule on one stage.

    The chunks take turns of ``stages`` micro batches, backwards in reverse order (schedules.py, get_model_chunk_id), so
    a chunk that keeps more than the others, the one with the logits, is held only as often as it is in flight.
    """
    turn = stages * len(chunks)
    held = peak = 0
    for step in range(batches * len(chunks) + warm):
        if step < batches * len(chunks):
            chunk = chunks[step % turn // stages]
            peak = max(peak, held + chunk["peak"])
            held += chunk["kept"]
        if step >= warm:
            chunk = chunks[-1 - (step - warm) % turn // stages]
            peak = max(peak, held + chunk["peak"] - chunk["kept"])
            held -= chunk["kept"]
    return peak


def _dropped(asked: Request, report: Report, args: dict[str, Any]) -> list[Problem]:
    """Layers that the pipeline does not divide are not built (megatron/core/transformer/transformer_block.py:50)."""
    built = sum(len(kind.layers) for kind in report.kinds if kind.tp == 0)
    wanted = args.get("num_layers")
    if not isinstance(wanted, int) or built == wanted:
        return []
    stages = report.layout["pp"]
    where = asked.stage.origins.get("--pipeline-model-parallel-size") or asked.stage.origins.get("--num-layers")
    return [Problem(
        f"upstream builds {built} of the {wanted} layers and says nothing: pp {stages} does not divide them",
        str(where or ""),
        f"use a pp that divides {wanted} ({', '.join(str(n) for n in range(1, wanted + 1) if wanted % n == 0)})",
    )]  # fmt: skip


def _notes(asked: Request, report: Report, raw: dict[str, Any], args: dict[str, Any]) -> list[str]:
    notes = [str(change) for change in report.changes if change.given and _clamped(asked, change) is None]
    tp = asked.recipe.get("parallel.tp", asked.recipe.get("parallel.tensor_model_parallel_size", 1))
    if asked.recipe.get("parallel.sequence_parallel") and tp == 1:
        notes.append(f"{asked.recipe.origin('parallel.sequence_parallel')}: sequence_parallel has no effect with tp 1: "
                     "upstream switches it off (megatron/training/arguments.py:468), so it is left out")  # fmt: skip
    if args.get("use_distributed_optimizer") and report.layout.get("dp", 2) * report.layout.get("cp", 1) == 1:
        origin = asked.stage.origins.get("--use-distributed-optimizer")
        notes.append(f"{origin}: the distributed optimizer shards nothing with one data-parallel rank")
    tokenizer = raw.get("tokenizer") or {}
    if tokenizer and not tokenizer.get("checked"):
        notes.append(f"not checked: the tokenizer (nothing at {tokenizer.get('path')})")
    why = next((kind["uncounted"] for kind in raw.get("kinds", []) if kind.get("uncounted")), None)
    if why is not None:
        notes.append(f"not counted: the activations, since upstream's code needs values that are not there: "
                     f"{' '.join(str(why['message']).split())} ({why['where']})")  # fmt: skip
    uncounted = [name for name in UNCOUNTED if args.get(name)]
    if uncounted and report.kinds:
        notes.append(f"not counted: what {', '.join(uncounted)} changes in memory")
    return notes
