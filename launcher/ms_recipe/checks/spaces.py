"""Parameters of a dense Qwen3 and the bytes of its checkpoints, exactly."""

from __future__ import annotations

import math

from ms_recipe.checks.effective import Args
from ms_recipe.recipe import Recipe

#: Bytes a parameter in a training checkpoint: bf16 weight; fp32 weight and Adam's two moments in distrib_optim.pt
#: (M megatron/core/optimizer/distrib_optimizer.py).
WEIGHT, OPTIMIZER = 2, 12


def layer_parameters(hidden: int, ffn: int, heads: int, groups: int, channels: int, qk_norm: bool = True) -> int:
    """Parameters of one transformer layer (no biases, SwiGLU)."""
    attention = hidden * channels * (heads + 2 * groups) + heads * channels * hidden
    return attention + 3 * hidden * ffn + 2 * hidden + (2 * channels if qk_norm else 0)


def parameters(a: Args) -> int:
    """Parameters of the whole model: what an HF file of it holds."""
    h, v = a.whole("hidden_size"), a.padded_vocab or a.whole("padded_vocab_size")
    heads = a.whole("num_attention_heads")
    channels = a.whole("kv_channels") or (h // heads if heads else 0)
    one = layer_parameters(h, a.whole("ffn_hidden_size"), heads, a.whole("num_query_groups") or heads, channels)
    head = v * h if a.get("untie_embeddings_and_output_weights") else 0
    return a.whole("num_layers") * one + v * h + head + h


def needs(a: Args, stage: str, recipe: Recipe) -> tuple[int, int]:
    """Bytes of one checkpoint of a stage, and of all it makes (run.keep_last limits training's)."""
    n = parameters(a)
    if stage not in ("pretrain", "tune_full", "tune_lora"):
        return WEIGHT * n, WEIGHT * n
    if stage == "tune_lora":  # its optimizer holds the adapters only; with lora_ckpt_filter so does the checkpoint
        one = 0 if a.get("lora_ckpt_filter") else n * WEIGHT
    else:
        one = n * WEIGHT + (0 if a.get("no_save_optim") else n * OPTIMIZER)
    every = a.whole("save_interval") or 1
    times = math.ceil(a.whole("train_iters") / every) or 1
    keep = recipe.get("run.keep_last")
    return one, one * (min(times, int(keep) + 1) if keep else times)


def human(n: float) -> str:
    """Bytes as people read them: ``15.3 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(n) < 1024 or unit == "TiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError
