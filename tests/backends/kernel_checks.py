"""Each kernel of the stand-in against an independent reference in plain torch (float64, autograd's own backward).

Not collected by itself: importing the stand-in changes torch for the whole process, so ``test_kernels.py`` runs this file
in a process of its own. ``python -m pytest tests/backends/kernel_checks.py`` with MS_RECIPE_BACKEND=cpu and the stand-in on
PYTHONPATH runs it by hand.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import torch_npu
from apex.optimizers import FusedAdam, FusedSGD
from einops import rearrange, repeat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_npu import _attention, _kernels

settings.register_profile("kernels", max_examples=25, deadline=None, derandomize=True, database=None,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kernels")

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# einops patterns, so that the layouts are read by somebody else's code than the kernel's.
LAYOUTS = {"SBH": "b n s d -> s b (n d)", "BSH": "b n s d -> b s (n d)", "BSND": "b n s d -> b s n d",
           "SBND": "b n s d -> s b n d", "BNSD": "b n s d -> b n s d"}
seeds = st.integers(0, 2**31 - 1)


def near(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    """Equal to the float64 reference, to what ``dtype`` can hold (statistics are float32 in every case)."""
    rtol, atol = {torch.float64: (1e-5, 1e-6), torch.float32: (1e-4, 2e-5), torch.float16: (4e-3, 4e-3),
                  torch.bfloat16: (2e-2, 2e-2)}[dtype]
    torch.testing.assert_close(got.double(), want.double(), rtol=rtol, atol=atol)


def leaves(dtype: torch.dtype, seed: int, *shapes: tuple[int, ...]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Random tensors in ``dtype``, and the same numbers in float64; both ask for gradients."""
    generator = torch.Generator().manual_seed(seed)
    mine = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    theirs = [x.detach().double().requires_grad_() for x in mine]
    return [x.requires_grad_() for x in mine], theirs


def unpack(x: torch.Tensor, layout: str, heads: int) -> torch.Tensor:
    """To [B, N, S, D], by the pattern read backwards."""
    left, right = LAYOUTS[layout].split(" -> ")
    return rearrange(x, f"{right} -> {left}", **({"n": heads} if "(" in right else {}))


def reference(q, k, v, allowed=None, bias=None, scale=1.0):
    """torch's own attention in float64 on [B, N, S, D], keys and values repeated for grouped queries."""
    ratio = q.shape[1] // k.shape[1]
    k, v = (repeat(x, "b g s d -> b (g r) s d", r=ratio) for x in (k, v))
    mask = bias
    if allowed is not None:
        hidden = torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, float("-inf"))
        mask = hidden if bias is None else hidden + bias
    # torch multiplies q k^T by its own scale: given here through q.
    factor = scale * math.sqrt(q.shape[-1])
    return F.scaled_dot_product_attention(q * factor, k, v, attn_mask=mask)


def band(rows: int, columns: int, before: int, after: int, shift: int) -> torch.Tensor:
    """True where key j is seen by query i: -before <= j - i - shift <= after, entry by entry."""
    return torch.tensor([[-before <= j - i - shift <= after for j in range(columns)] for i in range(rows)])


@st.composite
def shapes(draw):
    groups = draw(st.sampled_from([1, 2, 4]))
    return {"batch": draw(st.integers(1, 3)), "groups": groups, "heads": groups * draw(st.sampled_from([1, 2, 3])),
            "dim": draw(st.sampled_from([2, 8, 16])), "rows": draw(st.integers(1, 9))}


def masks(kind: str, rows: int, seed: int) -> tuple[dict, torch.Tensor | None]:
    """The kernel's arguments for one kind of mask, and what is allowed, said independently."""
    generator = torch.Generator().manual_seed(seed)
    compressed = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    causal = torch.ones(rows, rows).tril().bool()
    if kind == "none":
        return {}, None
    if kind == "causal":
        return {"sparse_mode": 0, "atten_mask": ~causal, "pre_tockens": rows, "next_tockens": 0}, causal
    if kind == "left-up":
        return {"sparse_mode": 2, "atten_mask": compressed}, causal
    if kind == "right-down":
        return {"sparse_mode": 3, "atten_mask": compressed}, causal
    if kind == "band":
        window = int(torch.randint(0, rows + 1, (), generator=generator))
        return ({"sparse_mode": 4, "atten_mask": compressed, "pre_tockens": window, "next_tockens": 0},
                band(rows, rows, window, 0, 0))
    free = torch.rand(rows, rows, generator=generator) < 0.6
    free |= torch.eye(rows).bool()  # a query that sees nothing has no softmax
    if kind == "all":
        return {"sparse_mode": 1, "atten_mask": ~free}, free
    assert kind == "window"
    window = int(torch.randint(0, rows + 1, (), generator=generator))
    return ({"sparse_mode": 0, "atten_mask": ~free, "pre_tockens": window, "next_tockens": window},
            free & band(rows, rows, window, window, 0))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["none", "causal", "left-up", "right-down", "band", "all", "window"])
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=6)
@given(shape=shapes(), dtype=st.sampled_from(DTYPES), seed=seeds)
def test_attention_and_its_gradients(layout, kind, version, shape, dtype, seed):
    b, n, g, s, d = (shape[x] for x in ("batch", "heads", "groups", "rows", "dim"))
    (q, k, v), plain = leaves(dtype, seed, (b, n, s, d), (b, g, s, d), (b, g, s, d))
    given_mask, allowed = masks(kind, s, seed)
    if version == 2:
        given_mask = {key.replace("tockens", "tokens"): value for key, value in given_mask.items()}
    kernel = torch_npu.npu_fusion_attention if version == 1 else _attention.npu_fusion_attention_v2
    scale = 1 / math.sqrt(d)
    packed = [rearrange(x, LAYOUTS[layout]) for x in (q, k, v)]
    out, top, total, *_ = kernel(*packed, n, layout, scale=scale, **given_mask)
    want = reference(*plain, allowed, scale=scale)
    assert out.dtype == dtype and out.shape == packed[0].shape
    near(unpack(out, layout, n), want, dtype)
    # statistics: of the scores, eight copies a row, float32
    scores = torch.einsum("bnsd,bntd->bnst", plain[0], repeat(plain[1], "b g s d -> b (g r) s d", r=n // g)) * scale
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    assert top.shape == total.shape == (b, n, s, 8) and top.dtype == total.dtype == torch.float32
    torch.testing.assert_close(top + total.log(), repeat(scores.logsumexp(-1), "b n s -> b n s e", e=8).float(),
                               rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(top.double(), repeat(scores.amax(-1), "b n s -> b n s e", e=8), rtol=1e-5, atol=1e-5)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64).to(dtype)
    want.backward(weight.double())
    out.backward(rearrange(weight, LAYOUTS[layout]))
    for mine, theirs in zip((q, k, v), plain):
        near(mine.grad, theirs.grad, dtype)


@pytest.mark.parametrize("version", [1, 2])
@given(shape=shapes(), keys=st.integers(1, 12), mode=st.sampled_from([0, 2, 3, 4]), seed=seeds)
def test_attention_over_more_or_fewer_keys_than_queries(version, shape, keys, mode, seed):
    b, n, g, s, d = (shape[x] for x in ("batch", "heads", "groups", "rows", "dim"))
    compressed = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    after = "next_tokens" if version == 2 else "next_tockens"
    arguments, allowed = {
        0: ({}, torch.ones(s, keys).bool()),
        2: ({"atten_mask": compressed}, band(s, keys, 99, 0, 0)),
        3: ({"atten_mask": compressed}, band(s, keys, 99, 0, keys - s)),
        4: ({"atten_mask": compressed, after: 1}, band(s, keys, 99, 1, keys - s)),
    }[mode]
    if not allowed.any(-1).all():
        return  # a query that sees no key: the next test
    (q, k, v), plain = leaves(torch.float64, seed, (b, n, s, d), (b, g, keys, d), (b, g, keys, d))
    kernel = torch_npu.npu_fusion_attention if version == 1 else _attention.npu_fusion_attention_v2
    out = kernel(q, k, v, n, "BNSD", scale=0.5, sparse_mode=mode, **arguments)[0]
    near(out, reference(*plain, allowed, scale=0.5), torch.float64)


def test_a_query_that_sees_no_key_gives_zero_not_nan():
    (q, k, v), _ = leaves(torch.float32, 0, (1, 1, 3, 4), (1, 1, 2, 4), (1, 1, 2, 4))
    out = torch_npu.npu_fusion_attention(q, k, v, 1, "BNSD", atten_mask=torch.ones(3, 2).bool(), sparse_mode=1)[0]
    out.sum().backward()
    assert not out.any() and not q.grad.any() and not k.grad.any() and not v.grad.any()


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), shape=shapes(), causal=st.booleans(), seed=seeds,
       dtype=st.sampled_from(DTYPES))
def test_packed_sequences_do_not_see_each_other(lengths, shape, causal, seed, dtype):
    n, g, d = (shape[x] for x in ("heads", "groups", "dim"))
    tokens = sum(lengths)
    (q, k, v), plain = leaves(dtype, seed, (tokens, n, d), (tokens, g, d), (tokens, g, d))
    owner = torch.tensor([i for i, length in enumerate(lengths) for _ in range(length)])
    allowed = owner[:, None] == owner[None, :]
    arguments = {}
    if causal:
        allowed &= torch.ones(tokens, tokens).tril().bool()
        arguments = {"sparse_mode": 2, "atten_mask": torch.ones(2048, 2048, dtype=torch.bool).triu(1)}
    ends = torch.tensor(lengths).cumsum(0).tolist()
    out, top, total, *_ = torch_npu.npu_fusion_attention(q, k, v, n, "TND", scale=0.3, actual_seq_qlen=ends,
                                                         actual_seq_kvlen=tuple(ends), **arguments)
    want = rearrange(reference(*(rearrange(x, "t n d -> 1 n t d") for x in plain), allowed, scale=0.3), "1 n t d -> t n d")
    near(out, want, dtype)
    assert top.shape == total.shape == (tokens, n, 8)
    want.sum().backward()
    out.sum().backward()
    for mine, theirs in zip((q, k, v), plain):
        near(mine.grad, theirs.grad, dtype)


@given(shape=shapes(), kind=st.sampled_from([0, 1]), seed=seeds, whole=st.booleans())
def test_position_bias_before_or_after_the_scale(shape, kind, seed, whole):
    b, n, g, s, d = (shape[x] for x in ("batch", "heads", "groups", "rows", "dim"))
    (q, k, v, pse), (*plain, bias) = leaves(torch.float64, seed, (b, n, s, d), (b, g, s, d), (b, g, s, d),
                                            (b if whole else 1, n if whole else 1, s, s))
    scale = 0.25
    out = _attention.npu_fusion_attention_v2(q, k, v, n, "BNSD", pse=pse.detach(), scale=scale, pse_type=kind)[0]
    near(out, reference(*plain, bias=bias.detach() * (scale if kind == 1 else 1.0), scale=scale), torch.float64)
    with pytest.raises(NotImplementedError, match="npu_fusion_attention has no CPU form for the gradient of pse"):
        _attention.npu_fusion_attention_v2(q, k, v, n, "BNSD", pse=pse, scale=scale)[0].sum().backward()


@given(shape=shapes(), layout=st.sampled_from(sorted(LAYOUTS)), seed=seeds)
def test_the_explicit_backward_kernels_agree_with_autograd(shape, layout, seed):
    b, n, g, s, d = (shape[x] for x in ("batch", "heads", "groups", "rows", "dim"))
    (q, k, v, dy), plain = leaves(torch.float64, seed, (b, n, s, d), (b, g, s, d), (b, g, s, d), (b, n, s, d))
    causal = torch.ones(s, s).tril().bool()
    reference(*plain[:3], causal, scale=0.2).backward(plain[3].detach())
    packed = [rearrange(x.detach(), LAYOUTS[layout]) for x in (q, k, v, dy)]
    mask = {"atten_mask": ~causal, "sparse_mode": 1}
    out, top, total, *_ = torch_npu.npu_fusion_attention(*packed[:3], n, layout, scale=0.2, **mask)
    kept = {"softmax_max": top, "softmax_sum": total, "attention_in": out, **mask}
    one = torch_npu.npu_fusion_attention_grad(*packed, n, layout, scale_value=0.2, **kept)
    two = _attention.npu_fusion_attention_grad_v2(*packed, n, layout, scale=0.2, **kept)
    for grads in (one, two):
        assert grads[3] is None
        for mine, theirs, heads in zip(grads, plain, (n, g, g)):
            near(unpack(mine, layout, heads), theirs.grad, torch.float64)


def test_attention_dropout_keeps_the_mean_and_its_gradient_belongs_to_its_output():
    (q, k, v), _ = leaves(torch.float64, 3, (1, 2, 4, 4), (1, 1, 4, 4), (1, 1, 4, 4))

    def attend(*inputs):
        torch.manual_seed(5)  # the kernel draws its seed here: the same mask in each call
        return torch_npu.npu_fusion_attention(*inputs, 2, "BNSD", scale=0.5, keep_prob=0.7)[0]

    # statistics are float32, so the numeric gradient is only that good
    assert torch.autograd.gradcheck(attend, (q, k, v), eps=1e-3, atol=1e-3, rtol=1e-3)
    full = torch_npu.npu_fusion_attention(q, k, v, 2, "BNSD", scale=0.5)[0].detach()
    torch.manual_seed(0)
    mean = sum(torch_npu.npu_fusion_attention(q, k, v, 2, "BNSD", scale=0.5, keep_prob=0.7)[0].detach() for _ in range(3000))
    torch.testing.assert_close(mean / 3000, full, rtol=0.1, atol=0.05)


@given(shape=shapes(), seed=seeds)
def test_inference_attention(shape, seed):
    b, n, g, s, d = (shape[x] for x in ("batch", "heads", "groups", "rows", "dim"))
    (q, k, v), plain = leaves(torch.float64, seed, (b, n, s, d), (b, g, s, d), (b, g, s, d))
    causal = torch.ones(s, s).tril().bool()
    packed = [rearrange(x.detach(), LAYOUTS["BSH"]) for x in (q, k, v)]
    out = torch_npu.npu_prompt_flash_attention(*packed, atten_mask=~causal, num_heads=n, scale_value=0.4,
                                               num_key_value_heads=g)
    near(unpack(out, "BSH", n), reference(*plain, causal, scale=0.4), torch.float64)
    last = torch_npu.npu_incre_flash_attention(packed[0][:, -1:], *packed[1:], num_heads=n, scale_value=0.4,
                                               num_key_value_heads=g)
    near(unpack(last, "BSH", n), reference(plain[0][:, :, -1:], *plain[1:], scale=0.4), torch.float64)


@given(shape=shapes(), cut=st.integers(1, 8), seed=seeds, packed=st.booleans())
def test_two_halves_of_the_keys_merge_to_the_whole(shape, cut, seed, packed):
    b, n, g, s, d = (shape[x] for x in ("batch", "heads", "groups", "rows", "dim"))
    keys = cut + 3
    b = 1 if packed else b
    layout, pattern = ("TND", "1 n s d -> s n d") if packed else ("SBH", LAYOUTS["SBH"])
    (q, k, v), plain = leaves(torch.float64, seed, (b, n, s, d), (b, g, keys, d), (b, g, keys, d))

    def part(columns):
        more = {"actual_seq_qlen": [s], "actual_seq_kvlen": [k[:, :, columns].shape[2]]} if packed else {}
        return torch_npu.npu_fusion_attention(*(rearrange(x, pattern) for x in (q, k[:, :, columns], v[:, :, columns])),
                                              n, layout, scale=0.5, **more)[:3]

    (one, max1, sum1), (two, max2, sum2) = part(slice(0, cut)), part(slice(cut, None))
    out, top, total = _kernels.npu_ring_attention_update(one, max1, sum1, two, max2, sum2, layout=layout)
    whole, whole_top, whole_total = part(slice(None))
    near(out, rearrange(reference(*plain, scale=0.5), pattern), torch.float64)
    near(out, whole, torch.float64)
    near(top, whole_top, torch.float32)
    near(total, whole_total, torch.float32)


def test_attention_keeps_no_score_matrix():
    (q, k, v), _ = leaves(torch.bfloat16, 0, (256, 1, 4 * 8), (256, 1, 2 * 8), (256, 1, 2 * 8))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        torch_npu.npu_fusion_attention(q, k, v, 4, "SBH", scale=1.0)
    assert sum(x.numel() for x in kept) == q.numel() * 2 + k.numel() * 2 + 2 * 4 * 256 * 8


@pytest.mark.parametrize("layout", [*LAYOUTS, "TND"])
def test_what_the_attention_refuses_it_names(layout):
    (q,), _ = leaves(torch.float32, 0, (2, 2, 4) if layout in ("SBH", "BSH", "TND") else (2, 2, 2, 4))
    call = torch_npu.npu_fusion_attention
    for arguments, error, words in (
        ({"padding_mask": q}, NotImplementedError, "npu_fusion_attention has no CPU form for padding_mask"),
        ({"prefix": [1]}, NotImplementedError, "npu_fusion_attention has no CPU form for prefix"),
        ({"sparse_mode": 7, "atten_mask": q}, NotImplementedError, "npu_fusion_attention has no CPU form for sparse_mode 7"),
        ({"sparse_mode": 2}, ValueError, "sparse_mode 2 needs atten_mask"),
    ):
        with pytest.raises(error, match=words):
            call(q, q, q, 2, layout, actual_seq_qlen=[2], actual_seq_kvlen=[2], **arguments)
    with pytest.raises(ValueError, match="head_num"):
        call(q, q, q, 3, layout, actual_seq_qlen=[2], actual_seq_kvlen=[2])
    with pytest.raises(ValueError, match="is none of SBH"):
        call(q, q, q, 2, "BDSH")
    with pytest.raises(NotImplementedError, match="npu_incre_flash_attention has no CPU form for block_table"):
        torch_npu.npu_incre_flash_attention(q, q, q, block_table=q)
    with pytest.raises(NotImplementedError, match="npu_prompt_flash_attention has no CPU form for pse_shift"):
        torch_npu.npu_prompt_flash_attention(q, q, q, pse_shift=q)
    with pytest.raises(NotImplementedError, match="npu_fusion_attention_v2 has no CPU form for query_rope"):
        _attention.npu_fusion_attention_v2(q, q, q, 2, layout, query_rope=q)


small = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


@given(shape=small, axes=st.integers(1, 2), dtype=st.sampled_from(DTYPES), seed=seeds, epsilon=st.sampled_from([1e-6, 1e-5, 0.1]))
def test_rms_norm(shape, axes, dtype, seed, epsilon):
    axes = min(axes, len(shape))
    (x, gamma), (px, pgamma) = leaves(dtype, seed, shape, shape[-axes:])
    y, rstd = torch_npu.npu_rms_norm(x, gamma, epsilon=epsilon)
    dims = tuple(range(len(shape) - axes, len(shape)))
    root = torch.sqrt(torch.linalg.vector_norm(px, dim=dims, keepdim=True) ** 2 / math.prod(shape[-axes:]) + epsilon)
    want = px / root * pgamma
    assert y.dtype == dtype and not rstd.requires_grad
    near(y, want, dtype)
    near(rstd.to(torch.float32), 1 / root, torch.float32)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    want.backward(weight.double())
    y.backward(weight)
    near(x.grad, px.grad, dtype)
    near(gamma.grad, pgamma.grad, dtype)


@given(shape=small, dim=st.integers(-3, 2), dtype=st.sampled_from(DTYPES), seed=seeds)
def test_swiglu(shape, dim, dtype, seed):
    dim = dim % len(shape) - (len(shape) if dim < 0 else 0)
    shape = tuple(n * 2 if i == dim % len(shape) else n for i, n in enumerate(shape))
    (x,), (px,) = leaves(dtype, seed, shape)
    y = torch_npu.npu_swiglu(x, dim=dim)
    gate, up = px.tensor_split(2, dim)
    want = F.silu(gate) * up
    near(y, want, dtype)
    weight = torch.ones_like(want)
    want.backward(weight)
    y.backward(weight.to(dtype))
    near(x.grad, px.grad, dtype)
    near(torch_npu.npu_swiglu_backward(weight.to(dtype), x.detach(), dim), px.grad, dtype)


@pytest.mark.parametrize("name", ["npu_rotary_mul", "npu_rotary_position_embedding"])
@given(s=st.integers(1, 5), b=st.integers(1, 2), n=st.integers(1, 3), half=st.integers(1, 4), dtype=st.sampled_from(DTYPES),
       seed=seeds, pairs=st.booleans())
def test_rotary_turns_each_pair_by_its_angle(name, s, b, n, half, dtype, seed, pairs):
    (x, angle), (px, _) = leaves(dtype, seed, (s, b, n, 2 * half), (s, 1, 1, half))
    angle = angle.detach().double()
    spread = "s o p f -> s o p (f two)" if pairs else "s o p f -> s o p (two f)"
    cos, sin = (repeat(t.to(dtype), spread, two=2) for t in (angle.cos(), angle.sin()))
    kernel = getattr(torch_npu, name, None) if name == "npu_rotary_mul" else getattr(_kernels, name)
    y = kernel(x, cos, sin, "interleave" if pairs else "half") if name == "npu_rotary_mul" else kernel(x, cos, sin, int(pairs))
    c, w = angle.cos().to(dtype).double(), angle.sin().to(dtype).double()
    split = "s b n (f two) -> s b n f two" if pairs else "s b n (two f) -> s b n f two"
    first, second = rearrange(px, split, two=2).unbind(-1)
    turned = torch.stack([first * c - second * w, second * c + first * w], -1)
    want = rearrange(turned, " -> ".join(reversed(split.split(" -> "))))
    near(y, want, dtype)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    want.backward(weight.double())
    y.backward(weight)
    near(x.grad, px.grad, dtype)


@given(seed=seeds, pairs=st.booleans())
def test_rotary_gradients_of_the_angles(seed, pairs):
    (x, cos, sin), _ = leaves(torch.float64, seed, (3, 2, 2, 6), (3, 1, 1, 6), (3, 1, 1, 6))
    mode = "interleave" if pairs else "half"
    assert torch.autograd.gradcheck(lambda *a: torch_npu.npu_rotary_mul(*a, mode), (x, cos, sin))


@given(b=st.integers(1, 2), n=st.integers(1, 3), s=st.integers(1, 6), scale=st.sampled_from([0.125, 1.0, 3.0]), fixed=st.booleans(),
       dtype=st.sampled_from(DTYPES), seed=seeds)
def test_scaled_masked_softmax(b, n, s, scale, fixed, dtype, seed):
    (x,), (px,) = leaves(dtype, seed, (b, n, s, s))
    hidden = torch.ones(s, s).tril().logical_not() if fixed else torch.rand(b, 1, s, s, generator=torch.Generator().manual_seed(seed)) < 0.4
    y = torch_npu.npu_scaled_masked_softmax(x, None if fixed else hidden, scale, fixed)
    want = F.softmax(torch.where(hidden, torch.tensor(-10000.0, dtype=torch.float64), px * scale), -1)
    near(y, want, dtype)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    want.backward(weight.double())
    y.backward(weight)
    near(x.grad, px.grad, dtype)


@given(dtype=st.sampled_from([torch.float32, torch.float64]), seed=seeds, decay=st.sampled_from([0.0, 0.1]), steps=st.integers(1, 5),
       maximize=st.booleans())
def test_adam_w_steps(dtype, seed, decay, steps, maximize):
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(7, generator=generator, dtype=torch.float64).to(dtype)
    theirs = start.clone().requires_grad_()
    optimizer = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay, maximize=maximize)
    mine = [start.clone(), torch.zeros_like(start), torch.zeros_like(start)]
    for step in range(steps):
        grad = torch.randn(7, generator=generator, dtype=torch.float64).to(dtype)
        theirs.grad = grad.clone()
        optimizer.step()
        torch_npu.npu_apply_adam_w(0.9**step, 0.95**step, 1e-2, decay, 0.9, 0.95, 1e-8, grad, maximize=maximize, out=tuple(mine))
    near(mine[0], theirs.detach(), dtype)
    near(mine[1], optimizer.state[theirs]["exp_avg"], dtype)
    near(mine[2], optimizer.state[theirs]["exp_avg_sq"], dtype)


@given(seed=seeds, steps=st.integers(1, 6), cut=st.integers(0, 5), decay=st.sampled_from([0.0, 0.1]))
def test_fused_adam_and_its_resumption(seed, steps, cut, decay):
    generator = torch.Generator().manual_seed(seed)
    start = [torch.randn(5, generator=generator, dtype=torch.float64), torch.randn(2, 3, generator=generator, dtype=torch.float64)]
    theirs, mine = ([x.clone().requires_grad_() for x in start] for _ in range(2))

    def groups(parameters):
        return [{"params": parameters[:1], "weight_decay": 0.0}, {"params": parameters[1:], "weight_decay": decay}]

    right = torch.optim.AdamW(groups(theirs), lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    optimizer = FusedAdam(groups(mine), lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    for step in range(steps):
        if step == cut:  # saved and loaded, as Megatron does: the step count is in the group
            state = optimizer.state_dict()
            assert [group.get("step", 0) for group in state["param_groups"]] == [step, step]
            optimizer = FusedAdam(groups(mine), lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
            optimizer.load_state_dict(state)
        for a, b in zip(theirs, mine):
            a.grad = torch.randn(a.shape, generator=generator, dtype=torch.float64)
            b.grad = a.grad.clone()
        right.step()
        optimizer.step()
    for a, b in zip(theirs, mine):
        near(b.detach(), a.detach(), torch.float64)


def test_fused_optimizers_refuse_what_they_do_not_do():
    x = torch.ones(2, requires_grad=True)
    for wrong in ({"amsgrad": True}, {"adam_w_mode": False}, {"bias_correction": False}, {"capturable": True}):
        with pytest.raises(NotImplementedError, match=f"FusedAdam has no CPU form for {next(iter(wrong))}"):
            FusedAdam([x], **wrong)
    mine, theirs = (torch.ones(3, requires_grad=True) for _ in range(2))
    one = FusedSGD([mine], lr=0.1, momentum=0.9, weight_decay=0.01)
    two = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01)
    for step in range(3):
        mine.grad = theirs.grad = torch.full((3,), float(step + 1))
        one.step()
        two.step()
    assert torch.equal(mine, theirs)


@given(s=st.integers(1, 4), b=st.integers(1, 3), rows=st.integers(1, 4), columns=st.integers(1, 4), dtype=st.sampled_from(DTYPES[1:]), seed=seeds)
def test_gradient_accumulation_in_float32(s, b, rows, columns, dtype, seed):
    (out, x), _ = leaves(dtype, seed, (s, b, rows), (s, b, columns))
    grad = torch.ones(rows, columns)
    _kernels.npu_matmul_add_fp32(out.detach(), x.detach(), grad)
    want = 1 + torch.einsum("sbr,sbc->rc", out.detach().double(), x.detach().double())
    near(grad, want, torch.float32)
    assert grad.dtype == torch.float32


def test_kernels_work_on_meta_tensors():
    q = torch.empty(6, 2, 32, device="meta", requires_grad=True)
    kv = torch.empty(6, 2, 16, device="meta", requires_grad=True)
    out, top, *_ = torch_npu.npu_fusion_attention(q, kv, kv, 4, "SBH", scale=1.0, keep_prob=0.9)
    normal, _ = torch_npu.npu_rms_norm(out, torch.empty(32, device="meta", requires_grad=True))
    torch_npu.npu_swiglu(normal).sum().backward()
    assert out.shape == q.shape == q.grad.shape and top.shape == (2, 4, 6, 8) and kv.grad.shape == kv.shape
    assert {x.device.type for x in (out, top, q.grad, kv.grad)} == {"meta"}


@pytest.mark.parametrize("name", ["npu_moe_token_permute", "npu_grouped_matmul", "npu_format_cast", "npu_no_such_kernel"])
def test_a_kernel_without_a_cpu_form_says_so_by_name(name):
    with pytest.raises(NotImplementedError, match=f"^{name} has no CPU form$"):
        getattr(torch_npu, name)(torch.ones(2))


def test_a_compiled_operation_without_a_cpu_form_says_so_by_name():
    from torch.utils import cpp_extension

    module = cpp_extension.load(name="npu_grouped_mat_mul_add_fp32", sources=["x.cpp"], extra_ldflags=["-ltorch_npu"])
    with pytest.raises(NotImplementedError, match=r"^npu_grouped_mat_mul_add_fp32 has no CPU form$"):
        module.npu_grouped_mat_mul_add_fp32(torch.ones(2))


def test_other_attributes_are_attribute_errors():
    with pytest.raises(AttributeError, match="no_such_thing"):
        getattr(torch_npu, "no_such_thing")  # noqa: B009
    with pytest.raises(NotImplementedError, match="npu_rotary_mul has no CPU form for rotary_mode='quarter'"):
        torch_npu.npu_rotary_mul(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2), "quarter")
    with pytest.raises(NotImplementedError, match="npu_rotary_position_embedding has no CPU form for mode 2"):
        _kernels.npu_rotary_position_embedding(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2), 2)
    with pytest.raises(NotImplementedError, match="npu_ring_attention_update has no CPU form for layout BNSD"):
        _kernels.npu_ring_attention_update(*[torch.ones(1)] * 6, layout="BNSD")
    with pytest.raises(NotImplementedError, match="npu_apply_adam_w has no CPU form with amsgrad"):
        torch_npu.npu_apply_adam_w(*[0.9] * 7, torch.ones(1), amsgrad=True, out=(torch.ones(1),) * 3)
