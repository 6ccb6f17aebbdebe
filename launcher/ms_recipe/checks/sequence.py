"""Sequence length, sequence parallel, context parallel."""

from __future__ import annotations

from collections.abc import Iterator

from ms_recipe.checks.effective import Args, nearest
from ms_recipe.checks.registry import TORCHRUN, Found, check

SEQ, CP = "seq_length", "context_parallel_size"
_L = "L mindspeed_llm/training/arguments.py"
_M = "M megatron/training/arguments.py"
ASSERT = "stops with an AssertionError"


@check("seq-missing", "error", f"{_M}:402", "stops with a bare AssertionError", "no seq_length", TORCHRUN)
def missing(a: Args) -> Iterator[Found]:
    """The sequence length has no default."""
    if a.values.get(SEQ) is None:
        yield Found(SEQ, "is not set", "set seq_length")


@check("seq-max-position", "error", f"{_M}:406", "stops with a bare AssertionError, without a text",
       "seq_length 65536, max_position_embeddings 32768", TORCHRUN)
def max_position(a: Args) -> Iterator[Found]:
    """A sequence must fit into the positions."""
    n, m = a.whole(SEQ), a.whole("max_position_embeddings")
    if m and n > m:
        yield Found(SEQ, f"seq_length {n} is above max_position_embeddings {m}", "raise the one or lower the other")


@check("seq-parallel-tp1", "warning", f"{_M}:468", "switches sequence parallel off, silently",
       "sequence_parallel with tp 1", TORCHRUN)
def sp_tp1(a: Args) -> Iterator[Found]:
    """Sequence parallel works inside a tensor parallel group: with tp 1 there is none. (Rendered scripts leave the flag
    out then.)"""
    if a.given.get("sequence_parallel") and a.tp == 1:
        yield Found("sequence_parallel", "has no effect with tp 1", "leave it out, or set tp")


@check("seq-parallel-length", "error", "M megatron/core/tensor_parallel/mappings.py (scatter along the sequence)",
       "passes its validation and stops in the first step", "seq_length 4095, tp 2, sequence_parallel", TORCHRUN)
def sp_length(a: Args) -> Iterator[Found]:
    """With sequence parallel each tensor rank holds seq_length / tp tokens (of its share under context parallel)."""
    n = a.whole(SEQ)
    if a.get("sequence_parallel") and n and n % (a.tp * a.cp) and not a.get("variable_seq_lengths"):
        yield Found(SEQ, f"seq_length {n} is not a multiple of tp {a.tp} x cp {a.cp} with sequence parallel",
                    f"use {nearest(n, a.tp * a.cp)}")


@check("seq-connections", "error", f"{_M}:476-484", "stops with a RuntimeError", "env without CUDA_DEVICE_MAX_CONNECTIONS",
       TORCHRUN)
def connections(a: Args) -> Iterator[Found]:
    """CUDA_DEVICE_MAX_CONNECTIONS must be 1 with sequence parallel or the asynchronous tensor parallel all-reduce, which
    is on by default, even with tp 1."""
    if a.invocation.env.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1" and (
        a.get("sequence_parallel") or a.get("async_tensor_model_parallel_allreduce")
    ):
        now = a.invocation.env.get("CUDA_DEVICE_MAX_CONNECTIONS")
        yield Found("env.CUDA_DEVICE_MAX_CONNECTIONS", f"is {now or 'not set'} and must be 1",
                    f"set {_section(a)}.env.CUDA_DEVICE_MAX_CONNECTIONS: 1")


def _section(a: Args) -> str:
    return a.stage.replace("_", ".", 1) if a.stage.startswith("tune_") else a.stage


@check("seq-tp-comm-overlap", "error", f"{_M}:200", ASSERT, "tp_comm_overlap without sequence_parallel")
def comm_overlap(a: Args) -> Iterator[Found]:
    """tp_comm_overlap needs sequence parallel (as asked for, before tp 1 switches it off)."""
    if a.get("tp_comm_overlap") and not a.given.get("sequence_parallel"):
        yield Found("tp_comm_overlap", "needs sequence_parallel", "set sequence_parallel, or leave it out")


@check("cp-length", "error", f"{_M}:394", ASSERT, "cp 3, seq_length 4096", TORCHRUN)
def cp_length(a: Args) -> Iterator[Found]:
    """With context parallel the sequence is cut into 2 x cp parts, whatever the algorithm."""
    n = a.whole(SEQ)
    if a.cp > 1 and n % (2 * a.cp):
        yield Found(CP, f"seq_length {n} is not a multiple of 2 x cp {a.cp} = {2 * a.cp}",
                    f"seq_length {nearest(n, 2 * a.cp)}, or another cp")


@check("cp-flash", "warning", f"{_L}:288", "switches use_flash_attn on", "cp 2 without use_flash_attn")
def cp_flash(a: Args) -> Iterator[Found]:
    """Context parallel works with flash attention only; upstream switches it on with a printed line."""
    if a.cp > 1 and not a.given.get("use_flash_attn"):
        yield Found("use_flash_attn", "is off, but cp needs it", "set use_flash_attn: true")


@check("cp-mcore", "error", f"{_L}:291", ASSERT, "cp 2 without use_mcore_models")
def cp_mcore(a: Args) -> Iterator[Found]:
    """Context parallel needs the mcore models."""
    if a.cp > 1 and not a.get("use_mcore_models"):
        yield Found("use_mcore_models", "is off, but cp needs it", "set model.use_mcore_models: true")


@check("cp-ulysses", "error", f"{_L}:264-267", ASSERT, "cp 8, tp 4, 16 heads")
def ulysses(a: Args) -> Iterator[Found]:
    """Ulysses exchanges heads: they must be a multiple of cp (or its ulysses part) x tp, groups a multiple of tp."""
    degree = _ulysses_degree(a)
    n = a.whole("num_attention_heads")
    if degree > 1 and n % (degree * a.tp):
        yield Found(CP, f"{n} heads are not a multiple of ulysses {degree} x tp {a.tp}", "lower cp or tp")


def _ulysses_degree(a: Args) -> int:
    algo = a.get("context_parallel_algo")
    if a.cp <= 1:
        return 1
    if algo == "ulysses_cp_algo":
        return a.cp
    return a.whole("ulysses_degree_in_cp") or 1 if algo == "hybrid_cp_algo" else 1


@check("cp-ring-window", "error", f"{_L}:300-302", ASSERT, "cp 2, megatron_cp_algo, cp_window_size 2")
def ring_window(a: Args) -> Iterator[Found]:
    """The inner ring of double ring attention is at least 1 and below cp (of the ring part), and divides it."""
    if a.cp > 1 and a.get("context_parallel_algo") == "megatron_cp_algo":
        window = a.whole("cp_window_size")
        if not 1 <= window < a.cp:
            yield Found("cp_window_size", f"{window} is not in 1..{a.cp - 1}", f"valid: a divisor of {a.cp} below it")
        elif a.cp % window:
            yield Found("cp_window_size", f"{window} does not divide cp {a.cp}", f"valid: a divisor of {a.cp}")


@check("cp-hybrid", "error", f"{_L}:310-312", ASSERT, "cp 4, hybrid_cp_algo, ulysses_degree_in_cp 3")
def hybrid(a: Args) -> Iterator[Found]:
    """The hybrid algorithm needs ulysses_degree_in_cp, a divisor of cp below cp."""
    if a.cp > 1 and a.get("context_parallel_algo") == "hybrid_cp_algo":
        degree = a.whole("ulysses_degree_in_cp")
        if not degree:
            yield Found("ulysses_degree_in_cp", "is not set, hybrid_cp_algo needs it", f"a divisor of cp {a.cp} below it")
        elif degree < 1 or a.cp % degree or a.cp // degree <= 1:
            yield Found("ulysses_degree_in_cp", f"{degree} is not a divisor of cp {a.cp} below it",
                        f"a divisor of {a.cp} below {a.cp}")


@check("cp-general-mask", "error", f"{_L}:307", ASSERT, "cp_attention_mask_type general, micro_batch_size 2")
def general_mask(a: Args) -> Iterator[Found]:
    """A general mask with ring attention takes one sequence at a time."""
    algo = a.get("context_parallel_algo")
    if (a.cp > 1 and algo in ("megatron_cp_algo", "hybrid_cp_algo") and a.get("cp_attention_mask_type") == "general"
            and a.whole("micro_batch_size") != 1):
        yield Found("micro_batch_size", f"is {a.whole('micro_batch_size')}, a general mask under cp takes 1", "set 1")


@check("cp-sliding-window", "error", f"{_L}:338", ASSERT, "cp 2 with sliding_window 128")
def sliding(a: Args) -> Iterator[Found]:
    """No sliding window under context parallel."""
    if a.cp > 1 and a.get("sliding_window"):
        yield Found("sliding_window", "does not go with cp above 1", "leave one of them out")


@check("cp-reset-mask", "error", f"{_L}:980", ASSERT, "cp 2, reset_attention_mask, ulysses_cp_algo")
def reset_mask(a: Args) -> Iterator[Found]:
    """Resetting attention at document ends under context parallel works with the ring algorithm only."""
    if (a.cp > 1 and a.get("reset_attention_mask") and a.get("context_parallel_algo") != "megatron_cp_algo"
            and a.get("attention_mask_type", "causal") == "causal"):
        yield Found("reset_attention_mask", f"does not go with {a.get('context_parallel_algo')} under cp {a.cp}",
                    "use context_parallel_algo: megatron_cp_algo")


@check("cp-fused-ring", "error", f"{_L}:284", ASSERT, "use_fused_ring_attention_update with cp 1")
def fused_ring(a: Args) -> Iterator[Found]:
    """The fused ring update needs context parallel."""
    if a.get("use_fused_ring_attention_update") and a.cp == 1:
        yield Found("use_fused_ring_attention_update", "needs cp above 1", "leave it out")


@check("seq-mask-type", "warning", f"{_L}:1321", "overwrites it by cp_attention_mask_type, silently",
       "attention_mask_type general")
def mask_type(a: Args) -> Iterator[Found]:
    """attention_mask_type is never used: cp_attention_mask_type takes its place."""
    given, used = a.given.get("attention_mask_type"), a.get("cp_attention_mask_type", "causal")
    if given and given != used:
        yield Found("attention_mask_type", f"{given} is overwritten by cp_attention_mask_type {used}",
                    "set cp_attention_mask_type")


@check("seq-variable-pad", "error", f"{_L}:1037", ASSERT, "variable_seq_lengths, cp 2, pad_to_multiple_of 1")
def variable_pad(a: Args) -> Iterator[Found]:
    """Sequences of varying length are padded to a multiple that tp x cp must divide."""
    pad = a.whole("pad_to_multiple_of")
    if a.get("variable_seq_lengths") and a.cp > 1 and pad % (a.tp * a.cp):
        yield Found("pad_to_multiple_of", f"{pad} is not a multiple of tp {a.tp} x cp {a.cp}", f"use {a.tp * a.cp}")


@check("seq-variable-throughput", "warning", f"{_L}:1034", "switches log_throughput off",
       "variable_seq_lengths with log_throughput")
def variable_throughput(a: Args) -> Iterator[Found]:
    """There are no TFLOP/s in the log of a run with sequences of varying length."""
    if a.get("variable_seq_lengths") and a.given.get("log_throughput"):
        yield Found("log_throughput", "has no effect with variable_seq_lengths", "leave it out")
