"""Batch, iterations, learning rate, saving, precision, optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from ms_recipe.checks.effective import Args, nearest
from ms_recipe.checks.registry import TORCHRUN, TRAINING, Found, check

_L = "L mindspeed_llm/training/arguments.py"
_M = "M megatron/training/arguments.py"
_S = "M megatron/core/optimizer_param_scheduler.py"
ASSERT, BARE = "stops with an AssertionError", "stops with a bare AssertionError, without a text"
MBS, GBS, ITERS = "micro_batch_size", "global_batch_size", "train_iters"


def _number(a: Args, name: str) -> float | None:
    value = a.values.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@check("batch-micro", "error", f"{_M}:246-247", BARE, "micro_batch_size 0", TORCHRUN)
def micro(a: Args) -> Iterator[Found]:
    """The micro batch is a whole number above 0 and has no default."""
    if a.whole(MBS) < 1:
        value = a.values.get(MBS)
        yield Found(MBS, "is not set" if value is None else f"{value} is not above 0", "set 1 or more")


@check("batch-global", "error", "M megatron/core/num_microbatches_calculator.py:182; megatron/training/arguments.py:253",
       "stops on every rank after it has started", "global_batch_size 30, micro_batch_size 1, 8 NPUs", TORCHRUN)
def global_batch(a: Args) -> Iterator[Found]:
    """A step's samples are dealt out to the data parallel ranks in micro batches: the global batch is a multiple of
    micro batch x dp."""
    value = a.values.get(GBS)
    if value is None:
        return
    gbs, mbs = a.whole(GBS), a.whole(MBS)
    if gbs < 1:
        yield Found(GBS, f"{value} is not above 0", f"use a multiple of {max(mbs, 1) * max(a.dp, 1)}")
    elif mbs > 0 and a.dp and gbs % (mbs * a.dp):
        yield Found(GBS, f"{gbs} is not divisible by micro batch {mbs} x dp {a.dp} = {mbs * a.dp} "
                         f"(dp = {a.world} NPUs / tp {a.tp} / pp {a.pp} / cp {a.cp})",
                    f"nearest valid: {nearest(gbs, mbs * a.dp)}")


@check("batch-global-default", "warning", f"{_M}:248", "uses micro batch x dp, silently", "no global_batch_size")
def global_default(a: Args) -> Iterator[Found]:
    """Without global_batch_size a step has one micro batch a rank, so that it changes with the number of NPUs."""
    if a.values.get(GBS) is None and a.whole(MBS) > 0 and a.dp:
        yield Found(GBS, f"is not set: {a.whole(MBS) * a.dp} would be used", "set it")


@check("batch-bubble", "note", "this project", "trains, with stages that wait", "pp 4 and 4 micro batches")
def bubble(a: Args) -> Iterator[Found]:
    """A pipeline of p stages waits (p - 1) / (m + p - 1) of a step with m micro batches."""
    m = a.micro_batches
    if a.pp > 1 and 0 < m < 2 * a.pp:
        share = (a.pp - 1) / (m * a.chunks + a.pp - 1)
        yield Found(GBS, f"{m} micro batches for pp {a.pp}: {share:.0%} of a step is spent waiting",
                    f"use {2 * a.pp * a.whole(MBS) * a.dp} or more")


@check("batch-rampup", "error", f"{_M}:341", ASSERT, "rampup_batch_size with train_iters")
def rampup(a: Args) -> Iterator[Found]:
    """A batch that grows needs train_samples."""
    if a.get("rampup_batch_size") and a.get(ITERS):
        yield Found("rampup_batch_size", "does not go with train_iters", "leave it out, or use train_samples")


@check("deprecated", "error", f"{_M}:203-219", "stops; --checkpoint-activations even exits 0", "batch_size 4", TORCHRUN)
def deprecated(a: Args) -> Iterator[Found]:
    """Flags that the parser still knows and that validation refuses."""
    for name, instead in (("batch_size", MBS), ("warmup", "lr_warmup_fraction"),
                          ("model_parallel_size", "tensor_model_parallel_size"),
                          ("checkpoint_activations", "recompute_granularity")):
        if a.given.get(name):
            yield Found(name, "is no longer valid", f"use {instead}")


@check("iters-missing", "error", "M megatron/training/training.py:508", "builds the model first, then stops",
       "neither train_iters nor train_samples")
def iters_missing(a: Args) -> Iterator[Found]:
    """A run needs its length."""
    if not a.get(ITERS) and not a.get("train_samples"):
        yield Found(ITERS, "neither train_iters nor train_samples is set", "set train_iters")


@check("iters-samples", "error", f"{_M}:335-339", ASSERT, "train_iters with train_samples")
def iters_samples(a: Args) -> Iterator[Found]:
    """Lengths are in iterations or in samples, not both."""
    if a.get(ITERS):
        for name in ("train_samples", "lr_decay_samples", "lr_warmup_samples"):
            if a.get(name):
                yield Found(name, "does not go with train_iters", f"use {name.replace('samples', 'iters')}")
    elif a.get("train_samples"):
        for name in ("lr_decay_iters", "lr_warmup_iters"):
            if a.get(name):
                yield Found(name, "does not go with train_samples", f"use {name.replace('iters', 'samples')}")


@check("lr-missing", "error", f"{_S}:24", "builds the model first, then stops with a TypeError", "no lr")
def lr_missing(a: Args) -> Iterator[Found]:
    """The learning rate has no default."""
    if _number(a, "lr") is None:
        yield Found("lr", "is not set", "set lr")


@check("lr-min", "error", f"{_M}:410", BARE, "min_lr 1e-5, lr 1.25e-6")
def lr_min(a: Args) -> Iterator[Found]:
    """The floor of the learning rate is not above it (nor below 0)."""
    lr, low = _number(a, "lr"), _number(a, "min_lr")
    if lr is not None and low is not None and (low > lr or low < 0):
        yield Found("min_lr", f"{low:g} is not between 0 and lr {lr:g}", f"set it to at most {lr:g}")


@check("lr-warmup-both", "error", f"{_M}:344", ASSERT, "lr_warmup_fraction with lr_warmup_iters")
def warmup_both(a: Args) -> Iterator[Found]:
    """The warm-up is a fraction or a number of iterations."""
    if a.values.get("lr_warmup_fraction") is not None and a.get("lr_warmup_iters"):
        yield Found("lr_warmup_fraction", "and lr_warmup_iters are both set", "leave one of them out")


@check("lr-warmup-length", "error", f"{_S}:36", "builds the model first, then stops with a bare AssertionError",
       "lr_warmup_iters 5000, train_iters 2000")
def warmup_length(a: Args) -> Iterator[Found]:
    """The warm-up ends before the decay does."""
    decay = a.whole("lr_decay_iters") or a.whole(ITERS)
    fraction, warm = _number(a, "lr_warmup_fraction"), a.whole("lr_warmup_iters")
    if fraction is not None and fraction >= 1:
        yield Found("lr_warmup_fraction", f"{fraction:g} is not below 1", "use 0.01")
    elif warm and decay and warm >= decay:
        yield Found("lr_warmup_iters", f"{warm} is not below the {decay} iterations of the decay",
                    f"use at most {decay - 1}")


@check("lr-warmup-init", "error", f"{_S}:28", ASSERT, "lr_warmup_init 1, lr 1e-5")
def warmup_init(a: Args) -> Iterator[Found]:
    """The warm-up starts at or below the learning rate."""
    lr, start = _number(a, "lr"), _number(a, "lr_warmup_init")
    if lr is not None and start is not None and start > lr:
        yield Found("lr_warmup_init", f"{start:g} is above lr {lr:g}", f"use at most {lr:g}")


@check("lr-wsd", "error", f"{_S}:40", ASSERT, "lr_decay_style WSD without lr_wsd_decay_iters")
def wsd(a: Args) -> Iterator[Found]:
    """The WSD schedule needs the length of its decay."""
    if a.get("lr_decay_style") == "WSD" and not (a.get("lr_wsd_decay_iters") or a.get("lr_wsd_decay_samples")):
        yield Found("lr_wsd_decay_iters", "is not set, lr_decay_style WSD needs it", "set it")


@check("lr-scheduler-both", "error", f"{_S}:52", ASSERT, "override_ and use_checkpoint_opt_param_scheduler")
def scheduler_both(a: Args) -> Iterator[Found]:
    """The scheduler comes from the arguments or from the checkpoint."""
    if a.get("override_opt_param_scheduler") and a.get("use_checkpoint_opt_param_scheduler"):
        yield Found("override_opt_param_scheduler", "and use_checkpoint_opt_param_scheduler are both set",
                    "leave one of them out")


@check("weight-decay-style", "error", f"{_M}:431", BARE, "weight_decay_incr_style linear alone")
def weight_decay(a: Args) -> Iterator[Found]:
    """A weight decay that changes needs its start and end; a constant one must not have them."""
    given = [n for n in ("start_weight_decay", "end_weight_decay") if a.values.get(n) is not None]
    style = a.get("weight_decay_incr_style", "constant")
    if style != "constant" and len(given) < 2:
        yield Found("weight_decay_incr_style", f"{style} needs start_weight_decay and end_weight_decay", "set them")
    elif style == "constant" and given:
        yield Found(given[0], "does not go with a constant weight decay", "set weight_decay_incr_style: linear")


@check("save-interval", "error", f"{_M}:412", BARE, "save without save_interval")
def save_interval(a: Args) -> Iterator[Found]:
    """Saving needs its interval."""
    if a.get("save") and not a.whole("save_interval") > 0:
        yield Found("save_interval", "is not set, but save is", "set save_interval")


@check("save-missing", "warning", "this project", "trains and discards the result", "no save")
def save_missing(a: Args) -> Iterator[Found]:
    """Without a save folder nothing is left of a training."""
    if not a.get("save"):
        yield Found("save", "is not set: the result is discarded", "set paths.save")


@check("load-scratch", "note", "this project", "starts from random weights", "no paths.mcore", ("pretrain",))
def load_scratch(a: Args) -> Iterator[Found]:
    """Training from scratch, as the recipe says by naming no checkpoint."""
    if not a.get("load"):
        yield Found("load", "is not set: training starts from random weights", "set paths.mcore if that is not meant")


@check("load-finetune", "warning", "M megatron/training/checkpointing.py (load_checkpoint)",
       "starts at iteration 0 without optimizer states, also when it resumes", "finetune in pretrain", ("pretrain",))
def load_finetune(a: Args) -> Iterator[Found]:
    """With finetune a resumed run begins anew."""
    if a.get("finetune"):
        yield Found("finetune", "makes a resumed run start at iteration 0", "leave it out")


@check("dtype-both", "error", f"{_M}:290", BARE, "fp16 with bf16", TORCHRUN)
def dtype_both(a: Args) -> Iterator[Found]:
    """One of fp16 and bf16."""
    if a.get("fp16") and a.get("bf16"):
        yield Found("fp16", "and bf16 are both set", "leave one of them out")


@check("dtype-none", "warning", f"{_M}:288", "computes in fp32, silently: twice the memory", "neither fp16 nor bf16",
       TORCHRUN)
def dtype_none(a: Args) -> Iterator[Found]:
    """Without bf16 or fp16 everything is fp32."""
    if not a.get("fp16") and not a.get("bf16"):
        yield Found("bf16", "neither bf16 nor fp16 is set", "set model.bf16: true")


@check("dtype-nan", "warning", f"{_M}:294", "switches check_for_nan_in_loss_and_grad off", "fp16")
def dtype_nan(a: Args) -> Iterator[Found]:
    """fp16 with a dynamic loss scale does not stop at a NaN loss."""
    if a.get("fp16") and not a.get("bf16") and not a.get("loss_scale"):
        yield Found("fp16", "with a dynamic loss scale does not stop at NaN", "use bf16, or watch the log")


@check("loss-scale-inert", "note", f"{_M}:288-300", "ignores it", "initial_loss_scale with bf16")
def loss_scale(a: Args) -> Iterator[Found]:
    """Loss scaling belongs to fp16 (upstream's own scripts set it with bf16 nevertheless)."""
    for name in ("initial_loss_scale", "loss_scale"):
        if name in a.given and not a.get("fp16"):
            yield Found(name, "has no effect without fp16", "leave it out if you like")


@check("overlap-gather", "error", f"{_M}:280-285", ASSERT, "overlap_param_gather without use_distributed_optimizer")
def overlap(a: Args) -> Iterator[Found]:
    """overlap_param_gather needs the distributed optimizer, overlap_grad_reduce and the mcore models."""
    if a.get("overlap_param_gather"):
        for name in ("use_distributed_optimizer", "overlap_grad_reduce", "use_mcore_models"):
            if not a.get(name):
                yield Found("overlap_param_gather", f"needs {name}", f"set {name}: true")


@check("optimizer-dp1", "note", "M megatron/core/optimizer/distrib_optimizer.py", "shards nothing",
       "use_distributed_optimizer with dp 1")
def dp1(a: Args) -> Iterator[Found]:
    """The distributed optimizer shards over data (and context) parallel ranks."""
    if a.get("use_distributed_optimizer") and a.dp * a.cp == 1:
        yield Found("use_distributed_optimizer", "has no effect: dp x cp is 1", "")


@check("optimizer-replicated", "warning", "this project", "holds 12 bytes a parameter on every NPU",
       "dp 8 without use_distributed_optimizer")
def replicated(a: Args) -> Iterator[Found]:
    """Without the distributed optimizer each data parallel rank holds all optimizer states."""
    if not a.get("use_distributed_optimizer") and a.dp > 1:
        yield Found("use_distributed_optimizer", f"is off with dp {a.dp}", "set it to share the optimizer's states")


@check("optimizer-reuse", "error", f"{_L}:1219-1221", ASSERT, "reuse_fp32_param with fp16")
def reuse(a: Args) -> Iterator[Found]:
    """reuse_fp32_param needs bf16 and does not go with swap_optimizer."""
    if a.get("reuse_fp32_param"):
        if not a.get("bf16"):
            yield Found("reuse_fp32_param", "needs bf16", "set model.bf16: true")
        if a.get("swap_optimizer"):
            yield Found("reuse_fp32_param", "does not go with swap_optimizer", "leave one of them out")


@check("optimizer-o2", "error", f"{_L}:1449-1456", "stops with a ValueError", "o2_gradient without bf16")
def o2(a: Args) -> Iterator[Found]:
    """o2_gradient and o2_optimizer need bf16; o2_gradient needs no_gradient_accumulation_fusion."""
    for name in ("o2_gradient", "o2_optimizer"):
        if a.get(name) and not a.get("bf16"):
            yield Found(name, "needs bf16", "set model.bf16: true")
    if a.get("o2_gradient") and a.get("gradient_accumulation_fusion"):
        yield Found("o2_gradient", "needs no_gradient_accumulation_fusion", "set no_gradient_accumulation_fusion: true")


@check("deterministic-flash", "error", f"{_M}:557", ASSERT, "deterministic_mode with use_flash_attn")
def deterministic(a: Args) -> Iterator[Found]:
    """Deterministic mode refuses flash attention."""
    if a.get("deterministic_mode") and a.get("use_flash_attn"):
        yield Found("deterministic_mode", "does not go with use_flash_attn", "leave one of them out")


@check("high-availability", "error", "L mindspeed_llm/training/training.py", ASSERT, "enable_high_availability", TRAINING)
def high_availability(a: Args) -> Iterator[Found]:
    """Not with core_r0.8.0."""
    if a.get("enable_high_availability"):
        yield Found("enable_high_availability", "is not there with Megatron core_r0.8.0", "leave it out")
