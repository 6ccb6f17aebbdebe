"""World size, tensor, pipeline and context parallel, against the model's shape."""

from __future__ import annotations

from collections.abc import Iterator

from ms_recipe.checks.effective import Args, divisors, listed
from ms_recipe.checks.registry import TORCHRUN, Found, check

TP, PP, CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
VPP = "num_layers_per_virtual_pipeline_stage"


@check("layout-tp-clamped", "warning", "M megatron/training/arguments.py:158", "uses the world size as tp, silently",
       "tp 16 on 8 NPUs", TORCHRUN)
def tp_clamped(a: Args) -> Iterator[Found]:
    """A tensor parallel size above the number of NPUs is cut down to it without a word."""
    if a.whole(TP) > a.world:
        yield Found(TP, f"tp {a.whole(TP)} is above the world size {a.world}", f"set tp to at most {a.world}")


@check("layout-pp-clamped", "warning", "M megatron/training/arguments.py:165", "uses world size / tp as pp, silently",
       "pp 16 on 8 NPUs with tp 1", TORCHRUN)
def pp_clamped(a: Args) -> Iterator[Found]:
    """A pipeline parallel size above world size / tp is cut down to it; layers may then be lost (layout-layers)."""
    room = a.world // a.tp
    if a.whole(PP) > room:
        yield Found(PP, f"pp {a.whole(PP)} is above world size {a.world} / tp {a.tp} = {room}",
                    f"set pp to at most {room}")


@check("layout-world", "error", "M megatron/training/arguments.py:160,177", "stops on every rank with an AssertionError",
       "tp 2, pp 3 on 8 NPUs", TORCHRUN)
def world(a: Args) -> Iterator[Found]:
    """The world size (nodes x NPUs a node) must be a multiple of tp x pp x cp; what is left over is data parallel."""
    if a.world % a.tp:
        yield Found(TP, f"the world size {a.world} is not a multiple of tp {a.tp}",
                    f"valid tp: {listed(divisors(a.world))}")
    elif a.world % (a.tp * a.pp * a.cp):
        yield Found(PP if a.cp == 1 else CP,
                    f"the world size {a.world} is not a multiple of tp {a.tp} x pp {a.pp} x cp {a.cp} = "
                    f"{a.tp * a.pp * a.cp}", f"valid tp x pp x cp: {listed(divisors(a.world))}")


@check("layout-positive", "error", "M megatron/training/arguments.py:158-182", "stops or divides by zero",
       "tp 0", TORCHRUN)
def positive(a: Args) -> Iterator[Found]:
    """Parallel sizes start at 1."""
    for name in (TP, PP, CP):
        if a.whole(name) < 1:
            yield Found(name, f"{a.values.get(name)} is not a whole number above 0", "set 1 to switch it off")


@check("layout-layers", "error", "M megatron/core/transformer/transformer_block.py:50",
       "drops the remaining layers without a word and trains a shorter model; hf2mcore fails at its end",
       "28 layers with pp 8: 24 are built", TORCHRUN)
def layers(a: Args) -> Iterator[Found]:
    """Layers must be a multiple of pp, unless num_layer_list says how many each stage has. Upstream builds
    num_layers // pp a stage and never looks at the remainder."""
    n = a.whole("num_layers")
    if n and a.pp > 1 and n % a.pp and not a.get("num_layer_list") and not a.whole(VPP):
        built = n // a.pp * a.pp
        yield Found(PP, f"{n} layers are not divisible by pp {a.pp}: {built} would be built",
                    f"valid pp for {n} layers: {listed(divisors(n))}; or give num_layer_list")


@check("layout-layer-list", "error", "L mindspeed_llm/training/arguments.py:1143-1208", "stops with a ValueError",
       "pp 4, num_layer_list 7,7,7,6 with 28 layers", TORCHRUN)
def layer_list(a: Args) -> Iterator[Found]:
    """num_layer_list holds one whole number a pipeline stage; they sum up to num_layers; not with pp 1, a virtual
    pipeline or noop layers."""
    text = a.get("num_layer_list")
    if not text:
        return
    name, numbers, n = "num_layer_list", a.layer_list, a.whole("num_layers")
    if numbers is None:
        yield Found(name, f"{text!r} is not a list of whole numbers", "write 7,7,7,7")
        return
    if a.pp <= 1:
        yield Found(name, "needs a pipeline, but pp is 1", "leave it out")
    elif len(numbers) != a.pp:
        yield Found(name, f"has {len(numbers)} entries, pp is {a.pp}", f"give {a.pp} numbers that sum up to {n}")
    if a.whole(VPP) or a.get("noop_layers"):
        yield Found(name, "does not go with a virtual pipeline or noop_layers", "leave one of them out")
    if sum(numbers) != n:
        yield Found(name, f"sums up to {sum(numbers)}, num_layers is {n}", f"make it sum up to {n}")


@check("layout-vpp", "error", "M megatron/training/arguments.py:256-267; L mindspeed_llm/training/arguments.py:1391",
       "stops with an AssertionError", "vpp 5 with 28 layers, pp 2")
def vpp(a: Args) -> Iterator[Found]:
    """A virtual pipeline needs pp above 1, layers that pp divides, and layers a stage that vpp divides. (vpp is
    upstream's number of layers per virtual stage.)"""
    per, n = a.whole(VPP), a.whole("num_layers")
    if not per:
        return
    if a.pp <= 1:
        yield Found(VPP, "a virtual pipeline needs pp above 1", "leave vpp out, or set pp")
        return
    if n % a.pp:
        yield Found(VPP, f"{n} layers are not divisible by pp {a.pp}", f"valid pp: {listed(divisors(n)[1:])}")
        return
    stage = n // a.pp
    if per < 0 or stage % per:
        yield Found(VPP, f"{stage} layers a stage are not divisible by vpp {per}", f"valid: {listed(divisors(stage))}")
    elif a.pp == 2 and per >= stage:
        yield Found(VPP, f"vpp {per} must be below the {stage} layers of a stage with pp 2 (L :1396)",
                    f"valid: {listed(divisors(stage)[:-1])}")


@check("layout-vpp-microbatches", "error", "M megatron/core/pipeline_parallel/schedules.py:613",
       "stops at the first step with a RuntimeError", "vpp on, pp 4, 6 micro batches")
def vpp_microbatches(a: Args) -> Iterator[Found]:
    """With a virtual pipeline the number of micro batches a step must be a multiple of pp."""
    if a.whole(VPP) and a.pp > 1 and a.micro_batches and a.micro_batches % a.pp:
        step = a.whole("micro_batch_size") * a.dp * a.pp
        gbs = a.whole("global_batch_size") or a.whole("micro_batch_size") * a.dp
        yield Found("global_batch_size", f"{a.micro_batches} micro batches a step are not a multiple of pp {a.pp}",
                    f"use a multiple of {step}: {max(step, gbs // step * step)} or {gbs // step * step + step}")


@check("layout-noop-layers", "error", "L mindspeed_llm/training/arguments.py:1347", "stops with an AssertionError",
       "noop_layers 28 with 28 layers")
def noop_layers(a: Args) -> Iterator[Found]:
    """noop_layers are numbers of layers, from 0 to num_layers - 1."""
    text = a.get("noop_layers")
    if text:
        n = a.whole("num_layers")
        try:
            wrong = [i for i in map(int, str(text).split(",")) if not 0 <= i < n]
        except ValueError:
            yield Found("noop_layers", f"{text!r} is not a list of whole numbers", "write 28,29")
            return
        if wrong:
            yield Found("noop_layers", f"{listed(wrong)} not between 0 and {n - 1}", "name layers that are there")


@check("shape-heads", "error", "M megatron/core/transformer/transformer_config.py:297", "stops with a ValueError",
       "16 heads with tp 3", TORCHRUN)
def heads(a: Args) -> Iterator[Found]:
    """Attention heads are dealt out to the tensor ranks."""
    n = a.whole("num_attention_heads")
    if n and n % a.tp:
        yield Found("num_attention_heads", f"{n} heads are not a multiple of tp {a.tp}",
                    f"valid tp: {listed(divisors(n))}")


@check("shape-groups", "error", "M megatron/core/transformer/transformer_config.py:312", "stops with a ValueError",
       "8 query groups with tp 16", TORCHRUN)
def groups(a: Args) -> Iterator[Found]:
    """Query groups (KV heads) are dealt out to the tensor ranks; heads are a multiple of groups."""
    n, h = a.whole("num_query_groups"), a.whole("num_attention_heads")
    if n and n % a.tp:
        yield Found("num_query_groups", f"{n} query groups are not a multiple of tp {a.tp}",
                    f"valid tp: {listed(divisors(n))}")
    if n and h % n:
        yield Found("num_query_groups", f"{h} heads are not a multiple of {n} query groups",
                    f"valid groups: {listed(divisors(h))}")


@check("shape-ffn", "error", "M megatron/core/tensor_parallel/layers.py:1002",
       "passes its validation and stops with an AssertionError when the MLP is built", "ffn_hidden_size 3070, tp 4",
       TORCHRUN)
def ffn(a: Args) -> Iterator[Found]:
    """The feed-forward width is cut into tp parts."""
    n = a.whole("ffn_hidden_size")
    if n and n % a.tp:
        yield Found("ffn_hidden_size", f"{n} is not a multiple of tp {a.tp}", f"use a multiple of {a.tp}")


@check("shape-vocab", "error", "M megatron/core/tensor_parallel/utils.py:115",
       "passes its validation and stops with an AssertionError when the embedding is built",
       "padded_vocab_size 151937, tp 2", TORCHRUN)
def vocab(a: Args) -> Iterator[Found]:
    """The padded vocabulary is cut into tp parts."""
    n = a.padded_vocab
    if n and n % a.tp:
        up = -(-n // a.tp) * a.tp
        yield Found("padded_vocab_size", f"{n} is not a multiple of tp {a.tp}", f"the next one is {up}")


@check("shape-hidden", "error", "M megatron/training/arguments.py:389", "stops with a bare AssertionError",
       "hidden_size 1000, 16 heads, no kv_channels", TORCHRUN)
def hidden(a: Args) -> Iterator[Found]:
    """Without kv_channels the head width is hidden_size / heads, which must be whole."""
    h, n = a.whole("hidden_size"), a.whole("num_attention_heads")
    if h and n and not a.given.get("kv_channels") and h % n:
        yield Found("hidden_size", f"{h} is not a multiple of {n} heads and kv_channels is not set", "set kv_channels")


@check("shape-missing", "error", "M megatron/training/arguments.py:367,603", "stops with an AssertionError",
       "no num_layers", TORCHRUN)
def missing(a: Args) -> Iterator[Found]:
    """The sizes that have no default."""
    for name in ("num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings"):
        if a.values.get(name) is None and not (name == "num_layers" and a.get("encoder_num_layers")):
            yield Found(name, "is not set", f"set model.{name}")


@check("layout-experts", "error", "M megatron/training/arguments.py:535", "stops with an AssertionError",
       "expert_model_parallel_size 2 on a dense model", TORCHRUN)
def experts(a: Args) -> Iterator[Found]:
    """Expert parallel needs experts."""
    if a.whole("expert_model_parallel_size") > 1 and not a.get("num_experts"):
        yield Found("expert_model_parallel_size", f"is {a.whole('expert_model_parallel_size')}, but there are no experts",
                    "leave it out")


@check("layout-tp-pp-dp", "error", "M megatron/training/arguments.py:551", "stops with an AssertionError",
       "use_tp_pp_dp_mapping with cp 2", TORCHRUN)
def tp_pp_dp(a: Args) -> Iterator[Found]:
    """The tp-pp-dp order of ranks does not go with context or expert parallel."""
    if a.get("use_tp_pp_dp_mapping") and (a.cp > 1 or a.whole("expert_model_parallel_size") > 1):
        yield Found("use_tp_pp_dp_mapping", "does not go with cp or expert parallel above 1", "leave it out")


@check("layout-tp-across-nodes", "warning", "this project", "trains, slowly: tensor parallel traffic leaves the server",
       "tp 8 with 4 NPUs a node", TORCHRUN)
def tp_across_nodes(a: Args) -> Iterator[Found]:
    """Tensor ranks are adjacent (order tp-cp-ep-dp-pp); with tp above the NPUs of a node each layer's all-reduces
    cross the network."""
    per_node = int(a.invocation.launcher_args.get("nproc_per_node") or 0)
    if per_node and (a.tp > per_node or (a.world > per_node and per_node % a.tp and a.tp > 1)):
        yield Found(TP, f"tp {a.tp} does not fit whole into the {per_node} NPUs of a node",
                    f"valid inside a node: {listed(divisors(per_node))}")
