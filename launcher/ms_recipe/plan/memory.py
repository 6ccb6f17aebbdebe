"""Bytes per NPU of a dense Qwen3 on Megatron core_r0.8.0, by pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ms_recipe.checks.effective import Args
from ms_recipe.plan import constants as c


@dataclass(frozen=True)
class Shape:
    """What the memory of a training depends on. Sizes in elements, ``seq`` in tokens; ``cp`` cuts the sequence.

    ``layer_list`` gives layers a stage when pp does not divide them; ``per_chunk`` is upstream's vpp (layers per virtual
    stage, 0 for none); ``recompute`` is none, selective or full; ``recompute_layers`` how many a chunk (full, block),
    or the size of a unit (full, uniform).
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    channels: int
    vocab: int
    tied: bool
    seq: int
    micro: int
    batch: int
    tp: int
    pp: int
    cp: int
    dp: int
    sp: bool = False
    per_chunk: int = 0
    layer_list: tuple[int, ...] = ()
    half: bool = True
    grads_fp32: bool = True
    distributed: bool = True
    flash: bool = True
    ulysses: bool = True
    qk_norm: bool = True
    recompute: str = "none"
    method: str = ""
    recompute_layers: int = 0

    @staticmethod
    def of(a: Args) -> Shape:
        """The shape that a training's arguments describe."""
        grain = str(a.get("recompute_granularity", "none"))
        listed = a.layer_list
        return Shape(
            layers=a.whole("num_layers"), hidden=a.whole("hidden_size"), ffn=a.whole("ffn_hidden_size"),
            heads=a.whole("num_attention_heads"), groups=a.whole("num_query_groups") or a.whole("num_attention_heads"),
            channels=a.whole("kv_channels"), vocab=a.padded_vocab,
            tied=not a.get("untie_embeddings_and_output_weights"), seq=a.whole("seq_length"),
            micro=a.whole("micro_batch_size"), batch=a.whole("global_batch_size") or a.whole("micro_batch_size") * a.dp,
            tp=a.tp, pp=a.pp, cp=a.cp, dp=a.dp, sp=bool(a.get("sequence_parallel")),
            per_chunk=a.whole("num_layers_per_virtual_pipeline_stage") if a.pp > 1 else 0,
            layer_list=tuple(listed or ()), half=bool(a.get("bf16") or a.get("fp16")),
            grads_fp32=not a.get("fp16") or bool(a.get("accumulate_allreduce_grads_in_fp32")),
            distributed=bool(a.get("use_distributed_optimizer")), flash=bool(a.get("use_flash_attn")),
            ulysses=a.get("context_parallel_algo") in ("ulysses_cp_algo", "hybrid_cp_algo"),
            qk_norm=bool(a.get("qk_layernorm")), recompute=grain, method=str(a.get("recompute_method", "")),
            recompute_layers=a.whole("recompute_num_layers"))  # fmt: skip

    def laid(self, tp: int, pp: int, cp: int, dp: int, recompute: str | None = None) -> Shape:
        """The same training in another layout (an uneven layer list and a virtual pipeline do not carry over)."""
        grain = self.recompute if recompute is None else recompute
        full = grain == "full"
        return replace(self, tp=tp, pp=pp, cp=cp, dp=dp, sp=tp > 1, per_chunk=0, layer_list=(), recompute=grain,
                       method="uniform" if full else "", recompute_layers=1 if full else 0)

    @cached_property
    def micro_batches(self) -> int:
        """Micro batches a step and data parallel rank."""
        return self.batch // (self.micro * self.dp) if self.micro and self.dp else 0

    def stage_layers(self, stage: int) -> int:
        """Layers of a pipeline stage (upstream drops a remainder)."""
        return self.layer_list[stage] if self.layer_list else self.layers // self.pp


@dataclass(frozen=True)
class Stage:
    """Bytes on each NPU of one pipeline stage; ``optimizer`` is the mean over data parallel ranks."""

    index: int
    layers: int
    parameters: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    in_flight: float

    @property
    def total(self) -> int:
        """All of it, without the reserve."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


def stage_parameters(s: Shape, stage: int) -> int:
    """Parameters on one tensor rank of a pipeline stage: exact.

    Linear layers, embedding and output layer are cut by tp, norms are not; with tied embeddings the last of several
    stages holds a copy (M megatron/core/models/common/language_module).
    """
    attention = s.hidden * s.channels * (s.heads + 2 * s.groups) + s.heads * s.channels * s.hidden
    norms = 2 * s.hidden + (2 * s.channels if s.qk_norm else 0)
    n = s.stage_layers(stage) * ((attention + 3 * s.hidden * s.ffn) // s.tp + norms)
    table = s.vocab // s.tp * s.hidden
    if stage == 0:
        n += table
    if stage == s.pp - 1:
        n += s.hidden
        if not s.tied or s.pp > 1:
            n += table
    return n


def optimizer_bytes(s: Shape, parameters: int) -> int:
    """Adam's states: fp32 weight (when weights are half) and two moments, over dp x cp ranks if distributed."""
    each = 12 if s.half else 8
    return -(-parameters * each // (s.dp * s.cp)) if s.distributed else parameters * each


def layer_bytes(s: Shape) -> int:
    """Activations that one layer keeps for one micro batch, on one NPU, without recomputation."""
    length = s.seq // s.cp
    tokens = length * s.micro
    norms = 2 / s.tp if s.sp else 2.0
    heads, groups = s.heads / s.tp, s.groups / s.tp
    width = c.HALF if s.half else c.FULL
    key_value = c.KEY_VALUE_KEPT - (1 if s.recompute == "selective" else 0)
    attention = (c.QUERY_KEPT + c.CONTEXT_KEPT) * heads + key_value * groups
    if s.cp > 1 and s.ulysses:
        attention += c.ULYSSES_HEADS * heads - c.ULYSSES_GROUPS * groups
    elements = c.HIDDEN_KEPT * _wide(s) + s.channels * attention + c.MLP_KEPT * s.ffn / s.tp
    softmax = c.SOFTMAX_BYTES * heads if s.flash else heads * length * (2 * width + 1)
    if s.recompute == "selective":
        softmax = 0
    rstd = c.RSTD_BYTES * (norms + (heads + groups if s.qk_norm else 0))
    return int(tokens * (elements * width + softmax + rstd) + length * c.ROTARY_KEPT * s.channels * width)


def _wide(s: Shape) -> float:
    """Width of the residual stream on one NPU: sequence parallel cuts the sequence, which comes to the same."""
    return s.hidden / s.tp if s.sp else float(s.hidden)


def input_bytes(s: Shape) -> int:
    """A layer's input for one micro batch: all that full recomputation keeps of it."""
    return int(s.seq // s.cp * s.micro * _wide(s) * (c.HALF if s.half else c.FULL))


def chunk_bytes(s: Shape, layers: int) -> int:
    """Activations of ``layers`` layers for one micro batch, kept between forward and backward."""
    if s.recompute != "full":
        return layers * layer_bytes(s)
    if s.method == "block":
        again = min(layers, s.recompute_layers)
        return again * input_bytes(s) + (layers - again) * layer_bytes(s)
    unit = max(1, s.recompute_layers)
    return -(-layers // unit) * input_bytes(s)


def in_flight(s: Shape, stage: int) -> float:
    """Micro batches (counted in whole stages) whose activations a stage holds at its peak.

    1F1B: pp - stage, at most the micro batches of a step; interleaved: M megatron/core/pipeline_parallel/schedules.py
    (num_warmup_microbatches), counted in chunks.
    """
    if s.per_chunk and s.pp > 1:
        chunks = max(1, s.stage_layers(stage) // s.per_chunk)
        warm = (s.pp - stage - 1) * 2 + (chunks - 1) * s.pp + 1
        return min(warm, s.micro_batches * chunks) / chunks
    return float(min(s.pp - stage, max(1, s.micro_batches)))


def kept_bytes(s: Shape, stage: int) -> tuple[int, int]:
    """Bytes kept of one micro batch on one NPU of a stage between forward and backward: without logits, and logits."""
    tokens = s.seq // s.cp * s.micro
    chunks = max(1, s.stage_layers(stage) // s.per_chunk) if s.per_chunk and s.pp > 1 else 1
    masks = chunks if s.flash and s.recompute != "selective" else 0
    kept = chunk_bytes(s, s.stage_layers(stage)) + masks * c.MASK_BYTES
    logits = 0
    if stage == 0:
        kept += tokens * c.TOKEN_BYTES
    if stage == s.pp - 1:
        kept += int(tokens * (c.LAST_HIDDEN_KEPT * _wide(s) * (c.HALF if s.half else c.FULL) + c.LOSS_BYTES))
        logits = tokens * (s.vocab // s.tp) * c.LOGIT_KEPT
    return kept, logits


def again_bytes(s: Shape, stage: int) -> int:
    """What recomputing one unit of layers adds to the peak. Its input is there already; with method block the layers
    that keep everything have been worked off by then, on the last stage the logits too."""
    if s.recompute != "full":
        return 0
    whole = layer_bytes(replace(s, recompute="none"))
    layers = s.stage_layers(stage)
    unit = 1 if s.method == "block" else min(max(1, s.recompute_layers), layers)
    gone = max(0, layers - s.recompute_layers) * whole if s.method == "block" else 0
    if stage == s.pp - 1:
        gone += s.seq // s.cp * s.micro * (s.vocab // s.tp) * c.LOGIT_KEPT
    return max(0, unit * whole - input_bytes(s) + (c.MASK_BYTES if s.flash else 0) - gone)


def stages(s: Shape) -> list[Stage]:
    """The memory of every pipeline stage."""
    width = c.HALF if s.half else c.FULL
    out = []
    for i in range(s.pp):
        n, held = stage_parameters(s, i), in_flight(s, i)
        kept, logits = kept_bytes(s, i)
        logits = logits // c.LOGIT_KEPT * (c.LOGIT_BYTES if s.half else 8)
        out.append(Stage(i, s.stage_layers(i), n, n * width, n * (4 if s.grads_fp32 or not s.half else 2),
                         optimizer_bytes(s, n), int(held * kept) + again_bytes(s, i), logits, held))
    return out


def peak(s: Shape) -> int:
    """Bytes of the fullest NPU, without the reserve."""
    return max(x.total for x in stages(s))


def total_parameters(s: Shape) -> int:
    """Parameters of the whole model, each once."""
    one = replace(s, tp=1, pp=1, layer_list=(), per_chunk=0)
    return stage_parameters(one, 0)
