"""A model's and a run's sizes, from a recipe's flags or from the arguments that a log prints; model FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def _int(values: Mapping[str, Any], name: str) -> int | None:
    try:
        return int(str(values.get(name)))
    except ValueError:
        return None


@dataclass(frozen=True)
class Shape:
    """Sizes; None where unknown. ``world_size`` counts NPUs, ``seq_length`` tokens a sample."""

    seq_length: int | None = None
    world_size: int | None = None
    tp: int = 1
    pp: int = 1
    cp: int = 1
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    num_layers: int | None = None
    hidden_size: int | None = None
    ffn_hidden_size: int | None = None
    num_attention_heads: int | None = None
    num_query_groups: int | None = None
    kv_channels: int | None = None
    padded_vocab_size: int | None = None
    swiglu: bool = False
    untied: bool = False
    experts: int = 1

    @classmethod
    def read(cls, values: Mapping[str, Any], world_size: int | None = None) -> Shape:
        """From upstream's argument names in snake_case, values as printed or as given."""

        def truth(name: str) -> bool:
            return str(values.get(name)) in ("True", "true", "1")

        heads, hidden = _int(values, "num_attention_heads"), _int(values, "hidden_size")
        gqa = truth("group_query_attention")
        channels = _int(values, "kv_channels") or (hidden // heads if hidden and heads else None)
        return cls(
            seq_length=_int(values, "seq_length"),
            world_size=_int(values, "world_size") or world_size,
            tp=_int(values, "tensor_model_parallel_size") or 1,
            pp=_int(values, "pipeline_model_parallel_size") or 1,
            cp=_int(values, "context_parallel_size") or 1,
            micro_batch_size=_int(values, "micro_batch_size"),
            global_batch_size=_int(values, "global_batch_size"),
            num_layers=_int(values, "num_layers"),
            hidden_size=hidden,
            ffn_hidden_size=_int(values, "ffn_hidden_size"),
            num_attention_heads=heads,
            num_query_groups=_int(values, "num_query_groups") if gqa else heads,
            kv_channels=channels,
            padded_vocab_size=_int(values, "padded_vocab_size"),
            swiglu=truth("swiglu"),
            untied=truth("untie_embeddings_and_output_weights"),
            experts=(_int(values, "moe_router_topk") or 1) if _int(values, "num_experts") else 1,
        )

    @property
    def data_parallel(self) -> int | None:
        """World size over tp x pp x cp."""
        return self.world_size // (self.tp * self.pp * self.cp) if self.world_size else None

    def flops(self, samples: float) -> float | None:
        """Model FLOPs of forward and backward over ``samples`` sequences, recomputation not counted.

        The formula behind upstream's own "throughput per GPU" (Megatron-LM core_r0.8.0
        megatron/training/training.py:73-108): attention counts the full sequence, not half. None if a size is unknown.
        """
        s, n, h, f = self.seq_length, self.num_layers, self.hidden_size, self.ffn_hidden_size
        a, g, k, v = self.num_attention_heads, self.num_query_groups, self.kv_channels, self.padded_vocab_size
        if not (s and n and h and f and a and g and k and v):
            return None
        attention = (1 + g / a + s / h) * (k * a / h)
        mlp = f / h * self.experts * (1.5 if self.swiglu else 1)
        return 12 * samples * s * n * h * h * (attention + mlp + v / (2 * n * h))


def flags_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """An invocation's ``{"--num-layers": "36"}`` as ``{"num_layers": "36"}``."""
    return {name.lstrip("-").replace("-", "_"): value for name, value in args.items()}
