"""Arguments as the pinned entry points accept them, from the pin's argspec."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

# ms_recipe is installed beside this tree; by hand, with another interpreter, it is found from this file.
_PACKAGE = str(Path(__file__).resolve().parents[5])

TYPES = {"int": int, "float": float, "str": str, "loads": json.loads}

#: Flags that the stub acts on, for the entry points that build the model.
MODEL = """
 use-mcore-models spec num-layers hidden-size ffn-hidden-size num-attention-heads kv-channels group-query-attention
 num-query-groups max-position-embeddings make-vocab-size-divisible-by padded-vocab-size rotary-base disable-bias-linear
 swiglu tokenizer-type tokenizer-name-or-path tokenizer-not-use-fast normalization position-embedding-type norm-epsilon
 qk-layernorm untie-embeddings-and-output-weights attention-softmax-in-fp32 bf16 seed seq-length micro-batch-size
 tensor-model-parallel-size pipeline-model-parallel-size sequence-parallel load exit-on-missing-checkpoint
 no-load-optim no-load-rng use-rotary-position-embeddings init-method-std hidden-dropout attention-dropout
""".split()
TRAIN = """
 save save-interval train-iters global-batch-size lr min-lr lr-decay-style lr-decay-iters lr-warmup-iters
 lr-warmup-fraction weight-decay clip-grad adam-beta1 adam-beta2 adam-eps data-path split log-interval eval-interval
 eval-iters use-distributed-optimizer recompute-granularity recompute-method recompute-num-layers log-throughput
 no-save-optim no-save-rng finetune overlap-grad-reduce overlap-param-gather data-cache-path exit-interval
""".split()
GENERATE = "max-new-tokens task top-k top-p temperature".split()
#: Flags that change neither numbers nor files here: how upstream computes, not what.
NO_EFFECT = """
 use-flash-attn use-fused-rotary-pos-emb use-fused-swiglu use-fused-rmsnorm no-masked-softmax-fusion
 no-gradient-accumulation-fusion distributed-backend no-shared-storage initial-loss-scale context-parallel-algo
 expert-model-parallel-size context-parallel-size distributed-timeout-minutes num-workers tensorboard-dir
 no-bias-swiglu-fusion no-rope-fusion no-create-attention-mask-in-dataloader trust-remote-code
 log-timers-to-tensorboard
""".split()
CONVERT = """
 use-mcore-models model-type load-model-type save-model-type target-tensor-parallel-size target-pipeline-parallel-size
 spec load-dir save-dir tokenizer-model params-dtype model-type-hf make-vocab-size-divisible-by
""".split()
PREPROCESS = """
 input output-prefix tokenizer-type tokenizer-name-or-path tokenizer-not-use-fast handler-name json-keys append-eod
 workers log-interval seq-length n-subs cache-dir
""".split()
_KNOWN = {
    "pretrain_gpt.py": MODEL + TRAIN + NO_EFFECT,
    "inference.py": MODEL + GENERATE + NO_EFFECT,
    "convert_ckpt.py": CONVERT,
    "preprocess_data.py": PREPROCESS,
}
#: Flags that are accepted with these values only.
_ONLY = {
    "context-parallel-size": ("1",), "expert-model-parallel-size": ("1",), "eval-iters": ("0",),
    "tokenizer-type": ("PretrainedFromHF",), "normalization": ("RMSNorm",), "position-embedding-type": ("rope",),
    "handler-name": ("GeneralPretrainHandler",), "model-type": ("GPT",), "model-type-hf": ("qwen3",), "n-subs": ("1",),
    "hidden-dropout": ("0", "0.0"), "attention-dropout": ("0", "0.0"),
}  # fmt: skip


def _argspec(entry: str, variant: str | None):
    try:
        from ms_recipe.upstream import argspec
    except ImportError:
        sys.path.append(_PACKAGE)
        from ms_recipe.upstream import argspec
    spec = argspec.load(os.environ.get("MS_RECIPE_STUB_PIN", "mcore-0.8")).entry(entry)
    return spec.variant(variant) if variant else spec


def parser(entry: str, variant: str | None = None) -> tuple[argparse.ArgumentParser, dict]:
    """The entry point's parser at the pin, and its flags by dest."""
    spec = _argspec(entry, variant)
    out = argparse.ArgumentParser(prog=entry, allow_abbrev=spec.allow_abbrev, conflict_handler="resolve")
    for flag in spec.flags.values():
        options = [o for o in (flag.options or (flag.name,)) if o not in ("-h", "--help")]
        if not options:
            continue
        fields = {"dest": flag.dest, "default": flag.default}
        if flag.is_switch:
            if flag.action not in ("store_true", "store_false"):
                continue
            out.add_argument(*options, action=flag.action, **fields)
            continue
        if flag.nargs not in (None, 0):
            fields["nargs"] = flag.nargs
        if flag.choices:
            convert = TYPES.get(flag.type or "", str)
            fields["choices"] = [convert(c) if c is not None else c for c in flag.choices]
        out.add_argument(*options, type=TYPES.get(flag.type or "", str), required=flag.required, **fields)
    return out, dict(spec.flags)


def parse(entry: str, argv: list[str] | None = None, variant: str | None = None) -> argparse.Namespace:
    """Parse as the pin does; refuse by name what the stub does not implement (exit 2)."""
    argv = sys.argv[1:] if argv is None else argv
    made, flags = parser(entry, variant)
    args = made.parse_args(argv)
    options = {option: flag for flag in flags.values() for option in (flag.options or (flag.name,))}
    given = {}
    for at, word in enumerate(argv):
        name = word.split("=", 1)[0]
        if name in options:
            given[options[name].name.lstrip("-")] = argv[at + 1] if at + 1 < len(argv) else ""
    known = set(_KNOWN[entry])
    for name, value in given.items():
        flag = flags[f"--{name}"]
        if name not in known and getattr(args, flag.dest) != flag.default:
            made.error(f"the stub upstream does not implement --{name}: use the pinned upstream (ms-recipe vendor sync)")
        if name in _ONLY and value not in _ONLY[name]:
            made.error(f"the stub upstream implements --{name} {' or '.join(_ONLY[name][:1])} only, got {value}")
    return args
