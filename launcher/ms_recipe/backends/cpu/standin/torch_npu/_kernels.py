"""The small fused kernels in plain torch. Each is an autograd function that keeps what the real kernel keeps.

Sums and exponentials are taken in float32 for half types, as the NPU's kernels do. Shapes are torch's; all work on
meta tensors too.
"""

from __future__ import annotations

import torch

unsupported_dtype = (torch.quint8, torch.quint4x2, torch.quint2x4, torch.qint32, torch.qint8)


def no_cpu_form(name: str):
    """A function that says, when called, that kernel ``name`` has no CPU form."""

    def kernel(*args, **kwargs):
        raise NotImplementedError(f"{name} has no CPU form")

    kernel.__name__ = name
    return kernel


def wide(x: torch.Tensor) -> torch.Tensor:
    """``x`` in the precision that sums are taken in."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gamma, epsilon):
        xw = wide(x)
        axes = tuple(range(-gamma.dim(), 0))
        rstd = torch.rsqrt(xw.pow(2).mean(axes, keepdim=True) + epsilon)
        y = (xw * rstd * wide(gamma)).to(x.dtype)
        ctx.save_for_backward(x, gamma, rstd)
        ctx.mark_non_differentiable(rstd)
        return y, rstd

    @staticmethod
    def backward(ctx, dy, _):
        x, gamma, rstd = ctx.saved_tensors
        axes = tuple(range(-gamma.dim(), 0))
        normal, dyw = wide(x) * rstd, wide(dy)
        dn = dyw * wide(gamma)
        dx = (dn - normal * (dn * normal).mean(axes, keepdim=True)) * rstd
        dgamma = (dyw * normal).reshape(-1, *gamma.shape).sum(0)
        return dx.to(x.dtype), dgamma.to(gamma.dtype), None


def npu_rms_norm(self, gamma, epsilon: float = 1e-6):
    """x * rsqrt(mean(x^2) + epsilon) * gamma over gamma's axes. Returns (y, rstd)."""
    return _RmsNorm.apply(self, gamma, epsilon)


def npu_swiglu_backward(grad_output, self, dim: int = -1):
    """The gradient of ``npu_swiglu`` for its input."""
    gate, up = (wide(part) for part in self.chunk(2, dim))
    grad, sigmoid = wide(grad_output), torch.sigmoid(gate)
    return torch.cat([grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * gate * sigmoid], dim).to(self.dtype)


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.save_for_backward(x)
        ctx.dim = dim
        gate, up = (wide(part) for part in x.chunk(2, dim))
        return (gate * torch.sigmoid(gate) * up).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        return npu_swiglu_backward(dy, *ctx.saved_tensors, ctx.dim), None


def npu_swiglu(self, dim: int = -1):
    """silu(first half) * second half, along ``dim``."""
    return _Swiglu.apply(self, dim)


def _rotate(x, interleaved: bool):
    """(-x2, x1) of the halves, or of the pairs; its transpose is its negative."""
    if not interleaved:
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def _sum_to(grad, like):
    return grad.sum_to_size(like.shape).to(like.dtype) if grad.shape != like.shape else grad.to(like.dtype)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin, interleaved):
        ctx.interleaved = interleaved
        needs = cos.requires_grad or sin.requires_grad
        ctx.save_for_backward(x if needs else None, cos, sin)
        return (wide(x) * wide(cos) + _rotate(wide(x), interleaved) * wide(sin)).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, cos, sin = ctx.saved_tensors
        grad = wide(dy)
        dx = (grad * wide(cos) - _rotate(grad * wide(sin), ctx.interleaved)).to(dy.dtype)
        if x is None:
            return dx, None, None, None
        return (dx, _sum_to(grad * wide(x), cos), _sum_to(grad * _rotate(wide(x), ctx.interleaved), sin), None)


def npu_rotary_mul(self, r1, r2, rotary_mode: str = "half"):
    """x * r1 + rotate(x) * r2."""
    if rotary_mode not in ("half", "interleave"):
        raise NotImplementedError(f"npu_rotary_mul has no CPU form for rotary_mode={rotary_mode!r}")
    return _Rotary.apply(self, r1, r2, rotary_mode == "interleave")


def npu_rotary_position_embedding(x, cos, sin, mode: int = 0):
    """MindSpeed's custom op: mode 0 rotates halves, mode 1 neighbouring pairs."""
    if mode not in (0, 1):
        raise NotImplementedError(f"npu_rotary_position_embedding has no CPU form for mode {mode}")
    return _Rotary.apply(x, cos, sin, mode == 1)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask, scale, triangular):
        scores = wide(x) * scale
        if triangular:
            mask = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        y = torch.softmax(scores.masked_fill(mask.bool(), -10000.0), -1).to(x.dtype)
        ctx.save_for_backward(y, None if triangular else mask)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx, dy):
        y, mask = ctx.saved_tensors
        yw, grad = wide(y), wide(dy)
        dx = yw * (grad - (grad * yw).sum(-1, keepdim=True)) * ctx.scale
        if mask is not None:
            dx = dx.masked_fill(mask.bool(), 0.0)
        else:
            dx = dx.tril()
        return dx.to(y.dtype), None, None, None


def npu_scaled_masked_softmax(x, mask, scale: float = 1.0, fixed_triu_mask: bool = False):
    """softmax(x * scale) over the last axis, where mask is true with -10000 instead of the score."""
    return _Softmax.apply(x, mask, scale, fixed_triu_mask)


@torch.no_grad()
def npu_apply_adam_w(beta1_power, beta2_power, lr, weight_decay, beta1, beta2, epsilon, grad, max_grad_norm=None,
                     amsgrad=False, maximize=False, *, out):
    """One AdamW step in place on ``out`` = (parameter, exp_avg, exp_avg_sq).

    The powers are those of the previous step: the kernel multiplies them by the betas itself.
    """
    if amsgrad:
        raise NotImplementedError("npu_apply_adam_w has no CPU form with amsgrad")
    parameter, exp_avg, exp_avg_sq = out
    grad = wide(-grad if maximize else grad)
    first = wide(exp_avg).mul(beta1).add(grad, alpha=1 - beta1)
    second = wide(exp_avg_sq).mul(beta2).addcmul(grad, grad, value=1 - beta2)
    denominator = (second / (1 - beta2_power * beta2)).sqrt().add(epsilon)
    value = wide(parameter) * (1 - lr * weight_decay)
    value = value - lr / (1 - beta1_power * beta1) * first / denominator
    for target, new in ((parameter, value), (exp_avg, first), (exp_avg_sq, second)):
        target.copy_(new)
    return parameter, exp_avg, exp_avg_sq


@torch.no_grad()
def npu_matmul_add_fp32(weight, x, grad) -> None:
    """MindSpeed's custom op of gradient accumulation: grad += weight^T @ x, in place, in float32."""
    rows, columns = weight.reshape(-1, weight.shape[-1]), x.reshape(-1, x.shape[-1])
    grad.add_(wide(rows).t().matmul(wide(columns)).view(grad.shape))


@torch.no_grad()
def npu_ring_attention_update(prev_out, prev_max, prev_sum, cur_out, cur_max, cur_sum, actual_seq_qlen=None, layout="SBH"):
    """Merge two partial attentions of the same queries by their softmax statistics. Returns (out, max, sum)."""
    if layout not in ("SBH", "TND"):
        raise NotImplementedError(f"npu_ring_attention_update has no CPU form for layout {layout}")
    top = torch.maximum(prev_max, cur_max)
    before, now = prev_sum * torch.exp(prev_max - top), cur_sum * torch.exp(cur_max - top)
    total = before + now

    def weigh(out, share):
        share = (share / total)[..., :1]
        if layout == "TND":  # out [T, N, D], statistics [T, N, 8]
            return wide(out) * share
        batch, heads, length = share.shape[:3]  # out [S, B, N * D], statistics [B, N, S, 8]
        split = wide(out).view(length, batch, heads, -1) * share.permute(2, 0, 1, 3)
        return split.view(out.shape)

    return (weigh(prev_out, before) + weigh(cur_out, now)).to(prev_out.dtype), top, total
