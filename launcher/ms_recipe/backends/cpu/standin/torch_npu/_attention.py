"""Fused attention in plain torch.

``npu_fusion_attention`` keeps for backward what the NPU's kernel keeps: query, key, value, the mask as given, the output
and the softmax statistics (maximum and sum, float32, eight copies a row), never the S x S matrix.
Semantics as documented for torch_npu: https://www.hiascend.com/document (torch_npu.npu_fusion_attention).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from ._kernels import wide

_STATISTICS = 8  # the kernel pads each statistic to 32 bytes
_FAR = 2147483647


@dataclass(frozen=True)
class _Options:
    heads: int
    layout: str
    scale: float
    keep: float = 1.0
    before: int = _FAR
    after: int = _FAR
    sparse_mode: int = 0
    q_lengths: tuple[int, ...] | None = None
    kv_lengths: tuple[int, ...] | None = None
    pse_type: int = 1
    seed: int = 0


def _split(x: torch.Tensor, heads: int, layout: str) -> torch.Tensor:
    """To [B, N, S, D] (TND: [1, N, T, D])."""
    if layout == "SBH":
        return x.reshape(x.shape[0], x.shape[1], heads, -1).permute(1, 2, 0, 3)
    if layout == "BSH":
        return x.reshape(x.shape[0], x.shape[1], heads, -1).permute(0, 2, 1, 3)
    if layout == "TND":
        return x.permute(1, 0, 2).unsqueeze(0)
    return x.permute(*{"BSND": (0, 2, 1, 3), "SBND": (1, 2, 0, 3), "BNSD": (0, 1, 2, 3)}[layout])


def _join(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The inverse of ``_split``, contiguous."""
    if layout == "SBH":
        return x.permute(2, 0, 1, 3).reshape(x.shape[2], x.shape[0], -1)
    if layout == "BSH":
        return x.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)
    if layout == "TND":
        return x.squeeze(0).permute(1, 0, 2).contiguous()
    return x.permute(*{"BSND": (0, 2, 1, 3), "SBND": (2, 0, 1, 3), "BNSD": (0, 1, 2, 3)}[layout]).contiguous()


def _heads(q: torch.Tensor, k: torch.Tensor, options: _Options) -> tuple[int, int]:
    """(query heads, key heads)."""
    layout = options.layout
    if layout not in ("SBH", "BSH", "BSND", "SBND", "BNSD", "TND"):
        raise ValueError(f"npu_fusion_attention: input_layout {layout!r} is none of SBH, BSH, BSND, SBND, BNSD, TND")
    if layout in ("SBH", "BSH"):
        if q.shape[-1] % options.heads:
            raise ValueError(f"npu_fusion_attention: hidden {q.shape[-1]} is not divisible by head_num {options.heads}")
        return options.heads, k.shape[-1] * options.heads // q.shape[-1]
    axis = {"BSND": 2, "SBND": 2, "BNSD": 1, "TND": 1}[layout]
    if q.shape[axis] != options.heads:
        raise ValueError(f"npu_fusion_attention: query has {q.shape[axis]} heads, head_num is {options.heads}")
    return options.heads, k.shape[axis]


def _dropped(mask, options: _Options, rows: int, columns: int, device) -> torch.Tensor | None:
    """Which scores are masked out: broadcastable to [B, N, rows, columns], or None for none."""
    mode = options.sparse_mode
    if mode not in (0, 1, 2, 3, 4):
        raise NotImplementedError(f"npu_fusion_attention has no CPU form for sparse_mode {mode}")
    if mask is None:
        if mode == 0:
            return None
        raise ValueError(f"npu_fusion_attention: sparse_mode {mode} needs atten_mask")
    if mode == 1:
        return mask.bool()
    offset = torch.arange(columns, device=device) - torch.arange(rows, device=device).unsqueeze(1)
    shift = columns - rows if mode in (3, 4) else 0
    if mode in (2, 3):
        return offset > shift
    outside = (offset > shift + options.after) | (offset < shift - options.before)
    return mask.bool() | outside if mode == 0 else outside


def _scores(q, k, mask, pse, options: _Options):
    """[B, G, N/G, S, T] scores in float32 with -inf where masked; q and k are [B, N, S, D] and [B, G, T, D]."""
    batch, heads, rows, _ = q.shape
    groups, columns = k.shape[1], k.shape[2]
    raw = torch.matmul(wide(q).reshape(batch, groups, heads // groups, rows, -1), wide(k).unsqueeze(2).transpose(-1, -2))
    if pse is not None:
        bias = wide(pse).expand(-1, heads, -1, -1).reshape(pse.shape[0], groups, heads // groups, *pse.shape[-2:])
        raw = raw + bias if options.pse_type == 1 else raw + bias / options.scale
    scores = raw * options.scale
    dropped = _dropped(mask, options, rows, columns, q.device)
    if dropped is None:
        return scores
    if dropped.dim() == 4 and dropped.shape[1] != 1:
        dropped = dropped.reshape(dropped.shape[0], groups, heads // groups, rows, columns)
    elif dropped.dim() == 4:
        dropped = dropped.unsqueeze(2)
    return scores.masked_fill(dropped, float("-inf"))


def _dropout(shape, options: _Options, device, part: int):
    """The factor of dropout, the same in forward and backward (from the seed), or None."""
    if options.keep >= 1.0:
        return None
    if device.type == "meta":
        return torch.empty(shape, device=device)
    generator = torch.Generator().manual_seed(options.seed + part)
    return torch.rand(shape, generator=generator).lt(options.keep).to(torch.float32) / options.keep


def _forward_part(q, k, v, mask, pse, options: _Options, part: int = 0):
    """[B, N, S, D] in, ([B, N, S, Dv], maximum, sum) out, both statistics [B, N, S, 1]."""
    batch, heads, rows, _ = q.shape
    scores = _scores(q, k, mask, pse, options)
    top = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).min)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    factor = _dropout(weights.shape, options, q.device, part)
    if factor is not None:
        weights = weights * factor
    out = torch.matmul(weights, wide(v).unsqueeze(2)) / total.masked_fill(total == 0, 1.0)
    shape = (batch, heads, rows)
    return out.reshape(*shape, -1), top.reshape(*shape, 1).float(), total.reshape(*shape, 1).float()


def _backward_part(q, k, v, mask, pse, top, total, out, grad, options: _Options, part: int = 0):
    """Gradients of q, k, v in [B, N, S, D], from the kept statistics."""
    batch, heads, rows, _ = q.shape
    groups = k.shape[1]

    def grouped(x):
        return wide(x).reshape(batch, groups, heads // groups, rows, -1)

    scores = _scores(q, k, mask, pse, options)
    total = grouped(total)
    probabilities = torch.exp(scores - grouped(top)) / total.masked_fill(total == 0, 1.0)
    grad, keys, values = grouped(grad), wide(k).unsqueeze(2), wide(v).unsqueeze(2)
    factor = _dropout(probabilities.shape, options, q.device, part)
    kept = probabilities if factor is None else probabilities * factor
    dv = torch.matmul(kept.transpose(-1, -2), grad).sum(2)
    dp = torch.matmul(grad, values.transpose(-1, -2))
    if factor is not None:
        dp = dp * factor
    ds = probabilities * (dp - (grad * grouped(out)).sum(-1, keepdim=True)) * options.scale
    dq = torch.matmul(ds, keys).reshape(batch, heads, rows, -1)
    dk = torch.matmul(ds.transpose(-1, -2), grouped(q)).sum(2)
    return dq, dk, dv


def _parts(options: _Options):
    """TND: (rows, columns) slices of each sequence; otherwise everything at once."""
    if options.layout != "TND":
        return [(slice(None), slice(None))]
    if options.q_lengths is None or options.kv_lengths is None:
        raise ValueError("npu_fusion_attention: layout TND needs actual_seq_qlen and actual_seq_kvlen")
    ends = zip(itertools.pairwise((0, *options.q_lengths)), itertools.pairwise((0, *options.kv_lengths)), strict=True)
    return [(slice(*rows), slice(*columns)) for rows, columns in ends]


def _pad(x, layout: str):
    """Statistics as the kernel returns them: [B, N, S, 8] (TND: [T, N, 8])."""
    x = x.expand(*x.shape[:-1], _STATISTICS).contiguous()
    return _join(x, layout) if layout == "TND" else x


def attention_forward(q, k, v, pse, mask, options: _Options):
    """The kernel: (output in the layout of q, softmax maximum, softmax sum)."""
    heads, groups = _heads(q, k, options)
    qs, ks, vs = _split(q, heads, options.layout), _split(k, groups, options.layout), _split(v, groups, options.layout)
    results = [_forward_part(qs[:, :, rows], ks[:, :, columns], vs[:, :, columns], mask, pse, options, part)
               for part, (rows, columns) in enumerate(_parts(options))]
    out, top, total = (torch.cat(x, 2) if len(results) > 1 else x[0] for x in zip(*results, strict=True))
    return _join(out.to(q.dtype), options.layout), _pad(top, options.layout), _pad(total, options.layout)


def attention_backward(q, k, v, grad, pse, mask, top, total, out, options: _Options):
    """The kernel's gradients of q, k and v, in their layouts."""
    heads, groups = _heads(q, k, options)
    layout = options.layout
    qs, ks, vs = _split(q, heads, layout), _split(k, groups, layout), _split(v, groups, layout)
    outs, grads = _split(out, heads, layout), _split(grad, heads, layout)
    if layout == "TND":
        top, total = _split(top, heads, layout), _split(total, heads, layout)
    results = [_backward_part(qs[:, :, r], ks[:, :, c], vs[:, :, c], mask, pse, top[:, :, r, :1], total[:, :, r, :1],
                              outs[:, :, r], grads[:, :, r], options, part)
               for part, (r, c) in enumerate(_parts(options))]
    dq, dk, dv = (torch.cat(x, 2) if len(results) > 1 else x[0] for x in zip(*results, strict=True))
    return _join(dq.to(q.dtype), layout), _join(dk.to(k.dtype), layout), _join(dv.to(v.dtype), layout)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, pse, mask, options):
        out, top, total = attention_forward(q, k, v, pse, mask, options)
        ctx.save_for_backward(q, k, v, pse, mask, out, top, total)
        ctx.options = options
        ctx.mark_non_differentiable(top, total)
        return out, top, total

    @staticmethod
    def backward(ctx, grad, *_):
        q, k, v, pse, mask, out, top, total = ctx.saved_tensors
        if ctx.needs_input_grad[3]:
            raise NotImplementedError("npu_fusion_attention has no CPU form for the gradient of pse")
        return (*attention_backward(q, k, v, grad, pse, mask, top, total, out, ctx.options), None, None, None)


def _lengths(values) -> tuple[int, ...] | None:
    return None if values is None else tuple(int(x) for x in values)


def _options(heads, layout, scale, keep_prob, pre, following, prefix, q_lengths, kv_lengths, sparse_mode, pse_type=1,
             padding_mask=None, seed=None, **unused) -> _Options:
    if prefix is not None or padding_mask is not None or pse_type not in (0, 1):
        what = "prefix" if prefix is not None else "padding_mask" if padding_mask is not None else f"pse_type {pse_type}"
        raise NotImplementedError(f"npu_fusion_attention has no CPU form for {what}")
    if seed is None:
        seed = int(torch.randint(0, 2**31, ()).item()) if keep_prob < 1.0 else 0
    return _Options(int(heads), layout, float(scale), float(keep_prob), int(pre), int(following), int(sparse_mode),
                    _lengths(q_lengths), _lengths(kv_lengths), int(pse_type), int(seed))


def npu_fusion_attention(query, key, value, head_num, input_layout, pse=None, padding_mask=None, atten_mask=None,
                         scale=1.0, keep_prob=1.0, pre_tockens=_FAR, next_tockens=_FAR, inner_precise=0, prefix=None,
                         actual_seq_qlen=None, actual_seq_kvlen=None, sparse_mode=0, gen_mask_parallel=True, sync=False):
    """Returns (output, softmax maximum, softmax sum, empty, seed, offset, number of dropout elements)."""
    options = _options(head_num, input_layout, scale, keep_prob, pre_tockens, next_tockens, prefix, actual_seq_qlen,
                       actual_seq_kvlen, sparse_mode, padding_mask=padding_mask)
    out, top, total = _Attention.apply(query, key, value, pse, atten_mask, options)
    return out, top, total, query.new_empty(0), options.seed, 0, 0


def npu_fusion_attention_grad(query, key, value, dy, head_num, input_layout, *, pse=None, padding_mask=None,
                              atten_mask=None, softmax_max=None, softmax_sum=None, softmax_in=None, attention_in=None,
                              scale_value=1.0, keep_prob=1.0, pre_tockens=_FAR, next_tockens=_FAR, inner_precise=0,
                              seed=0, offset=0, numels=0, prefix=None, actual_seq_qlen=None, actual_seq_kvlen=None,
                              sparse_mode=0, gen_mask_parallel=True, sync=False):
    """Returns the gradients of (query, key, value, pse); pse's is None."""
    options = _options(head_num, input_layout, scale_value, keep_prob, pre_tockens, next_tockens, prefix,
                       actual_seq_qlen, actual_seq_kvlen, sparse_mode, padding_mask=padding_mask, seed=seed)
    return (*attention_backward(query, key, value, dy, pse, atten_mask, softmax_max, softmax_sum, attention_in, options),
            None)


def npu_fusion_attention_v2(query, key, value, head_num, input_layout, pse=None, padding_mask=None, atten_mask=None,
                            scale=1.0, keep_prob=1.0, pre_tokens=_FAR, next_tokens=_FAR, inner_precise=0, prefix=None,
                            actual_seq_qlen=None, actual_seq_kvlen=None, sparse_mode=0, gen_mask_parallel=True,
                            sync=False, pse_type=1, q_start_idx=None, kv_start_idx=None, *, query_rope=None,
                            key_rope=None):
    """As ``npu_fusion_attention``; also MindSpeed's custom op of this name, positional. Differentiable."""
    if query_rope is not None or key_rope is not None or (pse_type in (2, 3) and pse is not None):
        raise NotImplementedError("npu_fusion_attention_v2 has no CPU form for query_rope, key_rope and pse types 2, 3")
    options = _options(head_num, input_layout, scale, keep_prob, pre_tokens, next_tokens, prefix, actual_seq_qlen,
                       actual_seq_kvlen, sparse_mode, pse_type=pse_type, padding_mask=padding_mask)
    out, top, total = _Attention.apply(query, key, value, pse, atten_mask, options)
    return out, top, total, query.new_empty(0), options.seed, 0, 0


def npu_fusion_attention_grad_v2(query, key, value, dy, head_num, input_layout, pse=None, padding_mask=None,
                                 atten_mask=None, softmax_max=None, softmax_sum=None, softmax_in=None, attention_in=None,
                                 scale=1.0, keep_prob=1.0, pre_tokens=_FAR, next_tokens=_FAR, inner_precise=0, seed=0,
                                 offset=0, numels=0, prefix=None, actual_seq_qlen=None, actual_seq_kvlen=None,
                                 sparse_mode=0, gen_mask_parallel=True, sync=False, pse_type=1, q_start_idx=None,
                                 kv_start_idx=None):
    """MindSpeed's custom op: gradients of (query, key, value, pse); pse's is None."""
    options = _options(head_num, input_layout, scale, keep_prob, pre_tokens, next_tokens, prefix, actual_seq_qlen,
                       actual_seq_kvlen, sparse_mode, pse_type=pse_type, padding_mask=padding_mask, seed=seed)
    return (*attention_backward(query, key, value, dy, pse, atten_mask, softmax_max, softmax_sum, attention_in, options),
            None)


def _inference(query, key, value, mask, options: _Options):
    with torch.no_grad():
        return attention_forward(query, key, value, None, mask, options)[0]


def _only(name: str, **arguments) -> None:
    given = sorted(key for key, value in arguments.items() if value is not None)
    if given:
        raise NotImplementedError(f"{name} has no CPU form for {', '.join(given)}")


def npu_prompt_flash_attention(query, key, value, *, pse_shift=None, padding_mask=None, atten_mask=None, num_heads=1,
                               scale_value=1.0, pre_tokens=_FAR, next_tokens=0, input_layout="BSH",
                               num_key_value_heads=0, sparse_mode=0, **others):
    """Attention of a prompt (inference): returns the output alone."""
    _only("npu_prompt_flash_attention", pse_shift=pse_shift, padding_mask=padding_mask, **others)
    return _inference(query, key, value, atten_mask, _Options(
        num_heads, input_layout, scale_value, before=pre_tokens, after=next_tokens, sparse_mode=sparse_mode))


def npu_incre_flash_attention(query, key, value, *, padding_mask=None, pse_shift=None, atten_mask=None, num_heads=1,
                              scale_value=1.0, input_layout="BSH", num_key_value_heads=0, **others):
    """Attention of one new token over cached keys (inference): returns the output alone."""
    _only("npu_incre_flash_attention", pse_shift=pse_shift, padding_mask=padding_mask, **others)
    options = _Options(num_heads, input_layout, scale_value, sparse_mode=1 if atten_mask is not None else 0)
    return _inference(query, key, value, atten_mask, options)
