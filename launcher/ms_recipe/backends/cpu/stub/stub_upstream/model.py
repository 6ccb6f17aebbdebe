"""Dense Qwen3 on megatron-core's GPTModel."""

from __future__ import annotations

import datetime
import os
import random
import sys

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_npu  # noqa: F401  the CPU stand-in; it must come before megatron asks for a device
from megatron.core import parallel_state as mpu
from megatron.core import tensor_parallel
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import transformer_block
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from stub_upstream.logs import print_rank_0


class RMSNorm(torch.nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight, in fp32 and back; x is [..., hidden]."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: object) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        # Megatron sums the gradients of such weights over the tensor parallel ranks.
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


def layer_spec() -> ModuleSpec:
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=RMSNorm,
            self_attention=ModuleSpec(
                module=SelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=SelfAttentionSubmodules(
                    linear_qkv=ColumnParallelLinear,
                    core_attention=DotProductAttention,
                    linear_proj=RowParallelLinear,
                    q_layernorm=RMSNorm,
                    k_layernorm=RMSNorm,
                ),
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RMSNorm,
            mlp=ModuleSpec(
                module=MLP, submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
            ),
            mlp_bda=get_bias_dropout_add,
        ),
    )


def validate(args) -> None:
    """Upstream's own rules that matter to what the stub implements (megatron/training/arguments.py)."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    args.rank, args.world_size = int(os.environ.get("RANK", "0")), world
    tp = args.tensor_model_parallel_size = min(args.tensor_model_parallel_size, world)
    if world % tp:
        raise AssertionError(f"world size ({world}) is not divisible by tensor model parallel size ({tp})")
    pp = args.pipeline_model_parallel_size = min(args.pipeline_model_parallel_size, world // tp)
    if world % (tp * pp):
        raise AssertionError(
            f"world size ({world}) is not divisible by tensor parallel size ({tp}) times pipeline parallel size ({pp}) "
            "times context parallel size (1)"
        )
    args.data_parallel_size = world // (tp * pp)
    for name, wanted in (("use_mcore_models", True), ("qk_layernorm", True), ("swiglu", True),
                         ("group_query_attention", True), ("add_bias_linear", False)):  # fmt: skip
        if getattr(args, name) != wanted:
            sys.exit(f"error: the stub upstream implements dense Qwen3 only: {name} must be {wanted}")
    if args.kv_channels is None:
        args.kv_channels = args.hidden_size // args.num_attention_heads
    if args.ffn_hidden_size is None:
        args.ffn_hidden_size = int(4 * args.hidden_size * 2 / 3 / 64) * 64
    if tp == 1:
        args.sequence_parallel = False
    if args.sequence_parallel and os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1":
        raise RuntimeError(
            "Using sequence parallelism requires setting the environment variable CUDA_DEVICE_MAX_CONNECTIONS to 1"
        )
    assert args.max_position_embeddings is not None and args.seq_length <= args.max_position_embeddings
    args.params_dtype = torch.bfloat16 if args.bf16 else torch.float32
    print_rank_0(
        f"using world size: {world}, data-parallel size: {args.data_parallel_size}, context-parallel size: 1 "
        f"tensor-model-parallel size: {tp}, pipeline-model-parallel size: {pp} "
    )
    print_rank_0(f"using {args.params_dtype} for parameters ...")


def initialize(args) -> None:
    """Process groups, model parallel state and seeds."""
    print_rank_0("> initializing torch distributed ...")
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "6000")
    dist.init_process_group(
        "gloo", rank=args.rank, world_size=args.world_size, timeout=datetime.timedelta(minutes=args.distributed_timeout_minutes)
    )
    mpu.initialize_model_parallel(args.tensor_model_parallel_size, args.pipeline_model_parallel_size)
    print_rank_0(f"> initialized tensor model parallel with size {args.tensor_model_parallel_size}")
    print_rank_0(f"> initialized pipeline model parallel with size {args.pipeline_model_parallel_size}")
    print_rank_0(f"> setting random seeds to {args.seed} ...")
    seed = args.seed + 100 * mpu.get_pipeline_model_parallel_rank()
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def config(args) -> TransformerConfig:
    return TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups,
        kv_channels=args.kv_channels,
        layernorm_epsilon=args.norm_epsilon,
        normalization="RMSNorm",
        qk_layernorm=True,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=F.silu,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        attention_softmax_in_fp32=args.attention_softmax_in_fp32,
        hidden_dropout=args.hidden_dropout,
        attention_dropout=args.attention_dropout,
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        sequence_parallel=args.sequence_parallel,
        params_dtype=args.params_dtype,
        pipeline_dtype=args.params_dtype,
        bf16=args.bf16,
        gradient_accumulation_fusion=False,
        async_tensor_model_parallel_allreduce=False,
        batch_p2p_comm=False,
        deallocate_pipeline_outputs=False,
        variable_seq_lengths=False,
        init_method_std=args.init_method_std,
        recompute_granularity=getattr(args, "recompute_granularity", None),
        recompute_method=getattr(args, "recompute_method", None),
        recompute_num_layers=getattr(args, "recompute_num_layers", None),
    )


def build(args) -> GPTModel:
    """This rank's part of the model."""
    # The local spec's final norm is LayerNorm; the block takes its class from here.
    transformer_block.LayerNormImpl = RMSNorm
    model = GPTModel(
        config=config(args),
        transformer_layer_spec=layer_spec(),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=mpu.is_pipeline_first_stage(),
        post_process=mpu.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type="rope",
        rotary_base=args.rotary_base,
    )
    parameters = sum(p.nelement() for p in model.parameters())
    if mpu.get_data_parallel_rank() == 0:
        print(
            f" > number of parameters on (tensor, pipeline) model parallel rank ({mpu.get_tensor_model_parallel_rank()}, "
            f"{mpu.get_pipeline_model_parallel_rank()}): {parameters}",
            flush=True,
        )
    return model
