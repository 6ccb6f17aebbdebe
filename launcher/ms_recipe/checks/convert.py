"""The conversion stages' arguments, and that stages agree with each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ms_recipe.checks.effective import Args, divisors, listed
from ms_recipe.checks.registry import Found, check

HF2M, M2HF = ("hf2mcore",), ("mcore2hf", "mcore2hf_lora")
TTP, TPP = "target_tensor_parallel_size", "target_pipeline_parallel_size"
#: MindSpeed-LLM mindspeed_llm/tasks/utils/file_utils.py:56 lets only these characters into a path.
_ALLOWED = re.compile(r"[./_\-\s~0-9a-zA-Z一-龥]+")


@check("convert-layers", "error", "L convert_ckpt.py, mindspeed_llm/tasks/checkpoint (D2)",
       "fails at the end and leaves a partial checkpoint with a tracker file", "28 layers with pp 8", HF2M)
def layers(a: Args) -> Iterator[Found]:
    """The converter needs layers that pp divides, unless num_layer_list is given."""
    n, pp = a.whole("num_layers"), a.whole(TPP) or 1
    if n and n % pp and not a.get("num_layer_list"):
        yield Found(TPP, f"{n} layers are not divisible by pp {pp}", f"valid pp for {n} layers: {listed(divisors(n))}")


@check("convert-heads", "error", "M megatron/core/transformer/transformer_config.py:297,312", "stops with a ValueError",
       "8 query groups with tp 16", HF2M)
def heads(a: Args) -> Iterator[Found]:
    """Query groups are dealt out to the tensor ranks of the converted checkpoint."""
    tp = a.whole(TTP) or 1
    for name in ("num_attention_heads", "num_query_groups"):
        n = a.whole(name)
        if n and n % tp:
            yield Found(TTP, f"{n} {name} are not a multiple of tp {tp}", f"valid tp: {listed(divisors(n))}")


@check("convert-dtype", "warning", "L mindspeed_llm/tasks/checkpoint/models.py:1105-1108",
       "uses fp16 by default, and fp32 for any other name, silently", "params_dtype bfloat16", (*HF2M, *M2HF))
def dtype(a: Args) -> Iterator[Found]:
    """Only bf16 and fp16 are known; bf16 weights written as fp16 and back lose values (D7)."""
    value = a.given.get("params_dtype")
    if value is None:
        yield Found("params_dtype", "is not set: fp16 would be used, Qwen3 is bf16", "set ckpt_convert.params_dtype: bf16")
    elif value not in ("bf16", "fp16"):
        yield Found("params_dtype", f"{value} is taken for fp32", "write bf16")
    elif value == "fp16":
        yield Found("params_dtype", "fp16 loses values of Qwen3's bf16 weights", "write bf16")


@check("convert-path", "error", "L mindspeed_llm/tasks/utils/file_utils.py:56", "stops: Invalid input path",
       "load_dir ./a+b", (*HF2M, *M2HF))
def path(a: Args) -> Iterator[Found]:
    """The converter takes only letters, digits, blanks and ./_-~ in its folders' names."""
    for name in ("load_dir", "save_dir"):
        text = str(a.get(name, ""))
        if text and not _ALLOWED.fullmatch(text):
            bad = "".join(sorted({c for c in text if not _ALLOWED.fullmatch(c)}))
            yield Found(name, f"{text} has characters that upstream refuses: {bad}", "use another folder")


@check("convert-same", "error", "this project", "overwrites what it reads", "save_dir equal to load_dir", HF2M)
def same(a: Args) -> Iterator[Found]:
    """Source and target of a conversion are different folders."""
    if a.get("load_dir") and a.get("load_dir") == a.get("save_dir"):
        yield Found("save_dir", f"is load_dir too: {a.get('save_dir')}", "set another paths.mcore")


@check("convert-moe-spec", "warning", "L convert_ckpt.py", "stops with AttributeError 'IdentityOp' has no 'weight'",
       "hf2mcore without spec", (*HF2M, *M2HF))
def spec(a: Args) -> Iterator[Found]:
    """Qwen3's spec brings the query and key norms."""
    if not a.get("spec"):
        yield Found("spec", "is not set", "set model.spec")


@check("data-append-eod", "warning", "L preprocess_data.py (D12)", "joins documents without an end mark",
       "data_convert without append_eod", ("data_convert",))
def append_eod(a: Args) -> Iterator[Found]:
    """None of upstream's pretraining data scripts passes append_eod; the shipped recipes do."""
    if not a.get("append_eod") and "Pretrain" in str(a.get("handler_name", "")):
        yield Found("append_eod", "is off", "set data_convert.pretrain.append_eod: true")


@check("data-pack", "error", "L preprocess_data.py", "stops with a ValueError or an AssertionError",
       "neat_pack without pack", ("data_convert", "data_convert_instruction"))
def pack(a: Args) -> Iterator[Found]:
    """neat_pack needs pack; packing and prompt templates are for instruction data."""
    pretrain = "Pretrain" in str(a.get("handler_name", ""))
    if a.get("neat_pack") and not a.get("pack"):
        yield Found("neat_pack", "needs pack", "set pack: true")
    for name in ("pack", "prompt_type"):
        if a.get(name) and pretrain:
            yield Found(name, f"does not go with {a.get('handler_name')}", "leave it out")
