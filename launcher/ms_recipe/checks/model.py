"""Recomputation and options of the model; flags whose absence changes the model without a word."""

from __future__ import annotations

from collections.abc import Iterator

from ms_recipe.checks.effective import Args
from ms_recipe.checks.registry import TORCHRUN, TRAINING, Found, check

_L = "L mindspeed_llm/training/arguments.py"
_M = "M megatron/training/arguments.py"
_T = "M megatron/core/transformer/transformer_config.py"
ASSERT = "stops with an AssertionError"
GRAN, METHOD, LAYERS = "recompute_granularity", "recompute_method", "recompute_num_layers"


@check("recompute-method", "error", f"{_T}:373", "stops with a ValueError", "recompute_granularity full alone")
def method(a: Args) -> Iterator[Found]:
    """Full recomputation needs a method and a number of layers."""
    if a.get(GRAN) == "full":
        if not a.get(METHOD):
            yield Found(METHOD, "is not set, recompute_granularity full needs it", "set block or uniform")
        elif a.values.get(LAYERS) is None:
            yield Found(LAYERS, "is not set, recompute_granularity full needs it", "set 1 or more")


@check("recompute-selective", "error", f"{_M}:461; {_T}:385", ASSERT, "selective with recompute_num_layers")
def selective(a: Args) -> Iterator[Found]:
    """Selective recomputation (also from recompute_activations) takes neither method nor number of layers."""
    if a.get(GRAN) == "selective":
        for name in (METHOD, LAYERS):
            if a.values.get(name) is not None:
                yield Found(name, "does not go with selective recomputation", "leave it out")


@check("recompute-overridden", "warning", f"{_M}:221", "uses selective, silently",
       "recompute_activations with recompute_granularity full")
def overridden(a: Args) -> Iterator[Found]:
    """recompute_activations means selective, whatever the granularity says."""
    if a.get("recompute_activations") and a.given.get(GRAN) == "full":
        yield Found("recompute_activations", "overrides recompute_granularity full", "leave it out")


@check("recompute-inert", "warning", f"{_M}:221", "recomputes nothing, silently", "recompute_method alone")
def inert(a: Args) -> Iterator[Found]:
    """A method without a granularity does nothing."""
    if a.get(METHOD) and not a.get(GRAN):
        yield Found(METHOD, "has no effect without recompute_granularity", "set recompute_granularity: full")


@check("recompute-layers-above", "warning", f"{_T}:378", "recomputes all layers of a stage",
       "recompute_num_layers 99, 28 layers a stage")
def above(a: Args) -> Iterator[Found]:
    """More layers than a stage has."""
    stage = a.whole("num_layers") // a.pp // a.chunks
    if a.get(GRAN) == "full" and a.whole(LAYERS) > stage > 0:
        yield Found(LAYERS, f"{a.whole(LAYERS)} is above the {stage} layers of a stage", f"use at most {stage}")


@check("recompute-distribute", "error", f"{_M}:446; {_T}:390", ASSERT, "distribute_saved_activations with tp 1")
def distribute(a: Args) -> Iterator[Found]:
    """distribute_saved_activations needs tp above 1, full recomputation and no sequence parallel."""
    name = "distribute_saved_activations"
    if a.get(name):
        if a.tp == 1:
            yield Found(name, "needs tp above 1", "leave it out")
        elif a.get(GRAN) != "full" or not a.get(METHOD):
            yield Found(name, "needs recompute_granularity full and a method", "set them")
        elif a.get("sequence_parallel"):
            yield Found(name, "does not go with sequence_parallel", "leave it out")


@check("recompute-function", "error", f"{_L}:1012-1020", ASSERT, "recompute_norm with recompute_method uniform")
def function(a: Args) -> Iterator[Found]:
    """Recomputing the activation function or the norms goes with method block, not with uniform or selective."""
    for name in ("recompute_activation_function", "recompute_norm"):
        if a.get(name) and (a.get(METHOD) == "uniform" or a.get(GRAN) == "selective"):
            with_ = "recompute_method uniform" if a.get(METHOD) == "uniform" else "selective recomputation"
            yield Found(name, f"does not go with {with_}", "use recompute_method: block")


@check("recompute-in-advance", "error", f"{_L}:1406-1417", ASSERT, "recompute_in_advance without a virtual pipeline")
def in_advance(a: Args) -> Iterator[Found]:
    """recompute_in_advance needs block, a number of layers, and a virtual pipeline with vpp 1."""
    name = "recompute_in_advance"
    if not a.get(name):
        return
    if a.get(METHOD) == "uniform":
        yield Found(name, "does not go with recompute_method uniform", "use block")
    if a.get(METHOD) and a.values.get(LAYERS) is None:
        yield Found(name, "needs recompute_num_layers", "set it")
    if a.pp <= 1 or a.whole("num_layers_per_virtual_pipeline_stage") != 1:
        yield Found(name, "needs pp above 1 and vpp 1", "set parallel.vpp: 1, or leave it out")


@check("recompute-per-rank", "error", f"{_L}:1008", ASSERT, "enable_recompute_layers_per_pp_rank without vpp")
def per_rank(a: Args) -> Iterator[Found]:
    """enable_recompute_layers_per_pp_rank needs a virtual pipeline and recomputation."""
    name = "enable_recompute_layers_per_pp_rank"
    if a.get(name) and not (a.pp > 1 and a.whole("num_layers_per_virtual_pipeline_stage")):
        yield Found(name, "needs a virtual pipeline", "set parallel.vpp, or leave it out")
    elif a.get(name) and (not a.get(METHOD) or a.values.get(LAYERS) is None):
        yield Found(name, "needs recompute_method and recompute_num_layers", "set them")


@check("model-kv-channels", "warning", f"{_M}:389-391", "uses hidden_size / heads, silently",
       "0.6B without kv_channels: 64, HF has 128", TORCHRUN)
def kv_channels(a: Args) -> Iterator[Found]:
    """Qwen3's head width is a value of its own. Where the HF folder is there, hf-shape compares it."""
    h, n = a.whole("hidden_size"), a.whole("num_attention_heads")
    if not a.given.get("kv_channels") and h and n and h // n != 128:
        yield Found("kv_channels", f"is not set: {h // n} would be used", "set model.kv_channels (Qwen3: 128)")


@check("model-ffn", "warning", f"{_M}:378-385", "uses 4h x 2/3 rounded down to 64, silently",
       "no ffn_hidden_size: 2688 for 0.6B, HF has 3072", TORCHRUN)
def ffn(a: Args) -> Iterator[Found]:
    """The feed-forward width has a default that fits no Qwen3."""
    if not a.given.get("ffn_hidden_size") and a.whole("hidden_size"):
        yield Found("ffn_hidden_size", f"is not set: {a.whole('ffn_hidden_size')} would be used", "set it")


@check("model-groups", "warning", f"{_M}:770", "uses one group, or ignores the number, silently",
       "group_query_attention without num_query_groups", TORCHRUN)
def groups(a: Args) -> Iterator[Found]:
    """group_query_attention and num_query_groups work only together."""
    both = bool(a.given.get("group_query_attention")), "num_query_groups" in a.given
    if both == (True, False):
        yield Found("num_query_groups", "is not set: one group would be used", "set model.num_query_groups")
    elif both == (False, True):
        yield Found("group_query_attention", "is off, so num_query_groups is ignored", "set it to true")


@check("model-epsilon", "warning", f"{_M}:799", "uses 1e-5, silently", "no norm_epsilon (Qwen3 has 1e-6)", TORCHRUN)
def epsilon(a: Args) -> Iterator[Found]:
    """Qwen3's norms have 1e-6; upstream's 8B pretraining script leaves the flag out."""
    if "norm_epsilon" not in a.given:
        yield Found("norm_epsilon", f"is not set: {a.get('norm_epsilon')} would be used", "set model.norm_epsilon: 1e-6")


@check("model-rotary-base", "warning", f"{_M} (--rotary-base)", "uses 10000, silently", "no rotary_base", TORCHRUN)
def rotary_base(a: Args) -> Iterator[Found]:
    """Qwen3's rope theta is 1000000; converted checkpoints do not carry it."""
    if "rotary_base" not in a.given:
        yield Found("rotary_base", f"is not set: {a.get('rotary_base')} would be used", "set model.rotary_base: 1000000")


@check("model-qk-layernorm", "warning", "L mindspeed_llm/tasks/models/spec/qwen3_spec.py",
       "builds another set of modules", "no qk_layernorm", TORCHRUN)
def qk_layernorm(a: Args) -> Iterator[Found]:
    """Qwen3 normalizes queries and keys."""
    if not a.get("qk_layernorm"):
        yield Found("qk_layernorm", "is off, Qwen3 has it", "set model.qk_layernorm: true")


@check("model-legacy", "warning", f"{_L}:1499", "switches to the legacy model classes, silently",
       "no use_mcore_models", TORCHRUN)
def legacy(a: Args) -> Iterator[Found]:
    """Without use_mcore_models another implementation is trained."""
    if not a.get("use_mcore_models"):
        yield Found("use_mcore_models", "is off: the legacy classes would be used", "set model.use_mcore_models: true")


@check("model-fused", "error", f"{_L}:1459-1476", ASSERT, "use_fused_swiglu without swiglu", TORCHRUN)
def fused(a: Args) -> Iterator[Found]:
    """Each fused kernel needs what it fuses."""
    if a.get("use_fused_rmsnorm") and a.get("normalization") != "RMSNorm":
        yield Found("use_fused_rmsnorm", f"needs normalization RMSNorm, it is {a.get('normalization')}",
                    "set model.normalization: RMSNorm")
    if a.get("use_fused_swiglu") and not a.get("swiglu"):
        yield Found("use_fused_swiglu", "needs swiglu", "set model.swiglu: true")
    if a.get("use_fused_rotary_pos_emb") and a.get("position_embedding_type") != "rope":
        yield Found("use_fused_rotary_pos_emb",
                    f"needs position_embedding_type rope, it is {a.get('position_embedding_type')}",
                    "set model.position_embedding_type: rope")


@check("model-fused-mlp", "error", f"{_L}:1420-1428", ASSERT, "use_fused_mlp without sequence_parallel")
def fused_mlp(a: Args) -> Iterator[Found]:
    """use_fused_mlp needs swiglu, and sequence parallel (off at tp 1) or lora_fusion."""
    if a.get("use_fused_mlp"):
        if not a.get("swiglu"):
            yield Found("use_fused_mlp", "needs swiglu", "set model.swiglu: true")
        if not a.get("sequence_parallel") and not a.get("lora_fusion"):
            yield Found("use_fused_mlp", "needs sequence parallel with tp above 1, or lora_fusion", "leave it out")


@check("model-forced-off", "warning", f"{_L}:1498; {_L}:1339", "forces it off, silently", "use_mc2", TORCHRUN)
def forced_off(a: Args) -> Iterator[Found]:
    """Flags that the parser takes and upstream then switches off."""
    for name in ("use_mc2", "unaligned_linear"):
        if a.given.get(name):
            yield Found(name, "is switched off by upstream at this pin", "leave it out")


@check("model-rope", "warning", f"{_M}:515", "uses rope, silently", "use_rotary_position_embeddings without rope", TORCHRUN)
def rope(a: Args) -> Iterator[Found]:
    """use_rotary_position_embeddings sets the kind of positions, whatever position_embedding_type says."""
    given = a.given.get("position_embedding_type")
    if a.get("use_rotary_position_embeddings") and given != "rope":
        yield Found("position_embedding_type", f"is {given or 'not set'}: rope would be used",
                    "set model.position_embedding_type: rope")


@check("model-swap-attention", "warning", f"{_L}:1024", "fills in swap_modules", "swap_attention without swap_modules")
def swap_attention(a: Args) -> Iterator[Found]:
    """swap_attention moves activations to the host; what it moves has a default."""
    if a.get("swap_attention") and not a.get("swap_modules"):
        yield Found("swap_modules", "is not set: input_layernorm, self_attention and pre_cross_attn_layernorm are swapped",
                    "set swap_modules")


@check("model-output-slices", "error", f"{_L}:1169-1180", ASSERT, "output_layer_slice_num 3, vocabulary 151936")
def output_slices(a: Args) -> Iterator[Found]:
    """Slices of the output layer divide the padded vocabulary; tp is 1."""
    n = a.whole("output_layer_slice_num")
    if n > 1:
        if a.tp > 1:
            yield Found("output_layer_slice_num", f"needs tp 1, it is {a.tp}", "leave it out")
        if a.padded_vocab and a.padded_vocab % n:
            yield Found("output_layer_slice_num", f"{n} does not divide the vocabulary of {a.padded_vocab}", "use 2 or 4")


@check("model-yarn", "error", f"{_L}:1113-1123", ASSERT, "rope_scaling_type yarn alone", TORCHRUN)
def yarn(a: Args) -> Iterator[Found]:
    """YaRN needs the original positions, and its factor is max_position_embeddings divided by them."""
    if a.get("rope_scaling_type") == "yarn":
        original, m = a.whole("rope_scaling_original_max_position_embeddings"), a.whole("max_position_embeddings")
        factor = float(a.get("rope_scaling_factor", 0) or 0)
        if not original:
            yield Found("rope_scaling_original_max_position_embeddings", "is not set, yarn needs it", "set 32768")
        elif m / original != factor:
            yield Found("rope_scaling_factor", f"{factor:g} is not max_position_embeddings {m} / {original}",
                        f"set {m / original:g}")


@check("model-prompt", "error", f"{_L}:1044-1047", ASSERT, "prompt_type with hf_chat_template",
       (*TRAINING, "generate", "evaluate"))
def prompt(a: Args) -> Iterator[Found]:
    """A prompt template of upstream's or the tokenizer's own; history is not negative."""
    if a.get("prompt_type") and a.get("hf_chat_template"):
        yield Found("prompt_type", "and hf_chat_template are both set", "leave one of them out")
    if a.whole("history_turns") < 0:
        yield Found("history_turns", f"{a.whole('history_turns')} is below 0", "set 0 or more")


@check("data-neat-pack", "error", f"{_L}:977", "stops with a ValueError", "neat_pack without reset_position_ids")
def neat_pack(a: Args) -> Iterator[Found]:
    """neat_pack needs reset_position_ids."""
    if a.get("neat_pack") and not a.get("reset_position_ids"):
        yield Found("neat_pack", "needs reset_position_ids", "set it")


@check("data-missing", "error", f"{_L}:1279-1280", "does not notice before the dataset is built", "no data_path")
def data_missing(a: Args) -> Iterator[Found]:
    """Training needs data."""
    if not a.get("data_path") and not a.get("train_data_path"):
        yield Found("data_path", "is not set", "set paths.data")


@check("data-mock", "warning", f"{_L}:1281", "switches it off, silently", "mock_data")
def data_mock(a: Args) -> Iterator[Found]:
    """mock_data does nothing here."""
    if a.given.get("mock_data"):
        yield Found("mock_data", "has no effect", "leave it out")


@check("data-split", "warning", f"{_M}:238", "uses 969, 30, 1", "no split")
def data_split(a: Args) -> Iterator[Found]:
    """Without split, 3.1 per cent of the data are kept from training."""
    if not a.get("split") and not a.get("train_data_path"):
        yield Found("split", "is not set: 969, 30, 1 would be used", "set split: 100,0,0")


@check("generate-task", "warning", "L mindspeed_llm/tasks/inference/infer_base.py:37-69",
       "runs all tasks, then waits for input", "generate without task", ("generate",))
def generate_task(a: Args) -> Iterator[Found]:
    """Without task upstream ends in an interactive chat on standard input."""
    if not a.get("task"):
        yield Found("task", "is not set", "set generate.task: greedy")


@check("generate-sp", "error", "L inference.py (model_provider)", ASSERT, "use_kv_cache with sequence_parallel",
       ("generate",))
def generate_sp(a: Args) -> Iterator[Found]:
    """The KV cache does not go with sequence parallel."""
    if a.get("use_kv_cache") and a.get("sequence_parallel"):
        yield Found("use_kv_cache", "does not go with sequence_parallel", "leave one of them out")
