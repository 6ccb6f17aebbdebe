"""The arguments of an entry point as upstream sees them: defaults filled in, then what it changes silently."""

from __future__ import annotations

import math
from typing import Any

from ms_recipe.render import Invocation
from ms_recipe.upstream.argspec import Entry, Flag

_BOOL = {"true": True, "false": False, "1": True, "0": False}


def _convert(flag: Flag, text: Any) -> Any:
    try:
        if flag.type == "int":
            return int(text)
        if flag.type == "float":
            return float(text)
    except ValueError:
        return text  # the argspec's own check names it
    if flag.type in ("bool", "str2bool"):
        return _BOOL.get(str(text).lower(), text)
    return text


def parse(entry: Entry, args: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All values by argparse's dest, and those given."""
    values: dict[str, Any] = {}
    for flag in entry.flags.values():
        values.setdefault(flag.dest, flag.default)
        if flag.is_switch and values[flag.dest] is None:
            values[flag.dest] = flag.action == "store_false"
    given: dict[str, Any] = {}
    for name, value in args.items():
        if (known := entry.flags.get(name)) is None:
            continue
        flag = known
        if flag.is_switch:
            given[flag.dest] = flag.action != "store_false"
        elif isinstance(value, list):
            given[flag.dest] = [_convert(flag, v) for v in value]
        elif flag.many:
            given[flag.dest] = [_convert(flag, value)]
        else:
            given[flag.dest] = _convert(flag, value)
    return {**values, **given}, given


class Args:
    """Effective values of a training, inference or conversion entry point.

    Attributes are argparse's dests. ``given`` are the values as written; ``world`` the number of processes; ``dp`` the
    data parallel size (0 when the layout does not fit). Silent changes (Megatron-LM arguments.py validate_args,
    MindSpeed-LLM training/arguments.py) are applied in upstream's order, as far as other rules look at them.
    """

    def __init__(self, invocation: Invocation, entry: Entry, world: int) -> None:
        self.invocation, self.entry, self.world, self.stage = invocation, entry, world, invocation.stage
        self.values, self.given = parse(entry, invocation.args)
        self.tp, self.pp, self.cp, self.dp, self.padded_vocab = 1, 1, 1, 0, 0
        if "tensor_model_parallel_size" in self.values:
            self._settle()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a dest; ``default`` when the entry point has no such flag or it is None."""
        value = self.values.get(name)
        return default if value is None else value

    def whole(self, name: str) -> int:
        """The value of a dest as a whole number, 0 when it is unset or no number."""
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    def flag(self, dest: str) -> str:
        """The flag of a dest, the one given if there are several."""
        names = [f.name for f in self.entry.flags.values() if f.dest == dest]
        return next((n for n in names if n in self.invocation.args), names[0] if names else dest)

    def _settle(self) -> None:
        v = self.values
        self.tp = max(1, min(self.whole("tensor_model_parallel_size"), self.world))
        self.pp = max(1, min(self.whole("pipeline_model_parallel_size"), max(1, self.world // self.tp)))
        self.cp = max(1, self.whole("context_parallel_size"))
        model = self.tp * self.pp * self.cp
        self.dp = self.world // model if self.world % model == 0 and self.world % self.tp == 0 else 0
        if v.get("recompute_activations"):
            v["recompute_granularity"] = "selective"
        if v.get("use_rotary_position_embeddings"):
            v["position_embedding_type"] = "rope"
        if self.tp == 1:
            v["sequence_parallel"] = False
        heads, hidden = self.whole("num_attention_heads"), self.whole("hidden_size")
        if not v.get("kv_channels") and heads and hidden % heads == 0:
            v["kv_channels"] = hidden // heads
        if not v.get("ffn_hidden_size") and hidden:
            v["ffn_hidden_size"] = int(hidden * 4 * 2 / 3 / 64) * 64 if v.get("swiglu") else 4 * hidden
        if not v.get("group_query_attention"):
            v["num_query_groups"] = heads or None
        if self.cp > 1:
            v["use_flash_attn"] = True
        layers = self.whole("num_layers_per_virtual_pipeline_stage")
        total = self.whole("num_layers")
        self.chunks = max(1, total // self.pp // layers) if layers > 0 and self.pp > 1 else 1
        self.padded_vocab = self.whole("padded_vocab_size")

    @property
    def micro_batches(self) -> int:
        """Micro batches a step, 0 when they cannot be told."""
        mbs, gbs = self.whole("micro_batch_size"), self.whole("global_batch_size")
        if mbs <= 0 or not self.dp:
            return 0
        if not gbs:
            return 1
        return gbs // (mbs * self.dp) if gbs % (mbs * self.dp) == 0 else 0

    @property
    def layer_list(self) -> list[int] | None:
        """``--num-layer-list`` as numbers; None when it is absent or not numbers."""
        text = self.values.get("num_layer_list")
        try:
            return None if not text else [int(x) for x in str(text).split(",")]
        except ValueError:
            return None


def divisors(n: int) -> list[int]:
    """All divisors of ``n`` in ascending order."""
    small = [d for d in range(1, math.isqrt(max(n, 0)) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def listed(numbers: list[int]) -> str:
    """``1, 2, 4``."""
    return ", ".join(map(str, numbers))


def nearest(value: int, step: int) -> str:
    """The multiples of ``step`` around ``value``: ``24 or 32``."""
    below = value // step * step
    return f"{below} or {below + step}" if below > 0 else str(step)
