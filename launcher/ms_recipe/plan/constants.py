"""Every number of the memory model that is not counted from the model's shape, with its source.

Parameters, gradients and optimizer states are exact. Activations are a formula (:func:`ms_recipe.plan.memory.layer_bytes`):
these constants are its whole freedom. They were read from upstream's layers, then corrected against what
``ms-recipe preflight --activations`` counts through them on 14 layouts, which are thus no independent test: equal within
0.1 per cent over tp 1 to 4, pp 1 to 4, cp, sequence parallel, virtual pipeline, every kind of recomputation, and both sizes
(tests/plan/test_preflight.py).
"""

#: Bytes of one activation element: bf16 and fp16, else fp32.
HALF, FULL = 2, 4

#: Tensors of [s, b, hidden] that a layer keeps for its backward pass: input and output of each of its two RMSNorms
#: (npu_rms_norm keeps its input; the linear layers behind them keep their input).
HIDDEN_KEPT = 4

#: Queries are kept before their norm, before and after the rotary embedding, keys too, values once (flash attention
#: keeps what it was given), and the attention's output once (the projection's input).
QUERY_KEPT, KEY_VALUE_KEPT, CONTEXT_KEPT = 3, 4, 1

#: Ulysses (context parallel) keeps the attention's output once more, and keys and values repeated for every head.
ULYSSES_HEADS, ULYSSES_GROUPS = 3, 2

#: The MLP keeps fc1's output (gate and up) and SwiGLU's output, in widths of ffn_hidden_size.
MLP_KEPT = 3

#: npu_fusion_attention keeps softmax_max and softmax_sum, fp32 [b, heads, s, 8] each.
SOFTMAX_BYTES = 2 * 8 * 4

#: npu_rotary_mul keeps cosine and sine, for queries and for keys: 4 tensors [s, 1, 1, channels] in each layer.
ROTARY_KEPT = 4

#: Each RMSNorm keeps the reciprocal of the root mean square, fp32: a token and norm, and a token and head.
RSTD_BYTES = 4

#: The causal mask that flash attention takes, bool [2048, 2048], once a micro batch and stage.
MASK_BYTES = 2048 * 2048

#: First stage: token ids, int64. Last stage: input and output of the final norm, and what the loss keeps of a token.
TOKEN_BYTES, LAST_HIDDEN_KEPT, LOSS_BYTES = 8, 2, 13

#: Bytes per logit: the fp32 softmax that the loss keeps; with it, at the loss, bf16 logits and the shifted copy of
#: vocab_parallel_cross_entropy (M megatron/core/tensor_parallel/cross_entropy.py), by reading.
LOGIT_KEPT, LOGIT_BYTES = 4, 2 + 4 + 4

#: What an NPU holds before the model: runtime context, HCCL buffers (HCCL_BUFFSIZE 200 MB a communicator and direction),
#: workspaces. An assumption, not measured on an NPU; --reserve changes it.
RESERVE = 3 * 1024**3

#: Relative speed in the ranking of layouts, by judgement: tensor parallel inside a node by size, across nodes; context
#: parallel; recomputation (a third of the forward and backward work is done again under full).
TP_SPEED = {1: 1.0, 2: 0.96, 4: 0.90, 8: 0.82}
TP_ACROSS_NODES = 0.35
CP_SPEED = 0.93
RECOMPUTE_SPEED = {"none": 1.0, "selective": 0.98, "full": 0.75}
