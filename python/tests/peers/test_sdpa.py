# SPDX-License-Identifier: Apache-2.0
"""flashattn.torch.sdpa against torch.nn.functional.scaled_dot_product_attention in float64."""
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from flashattn.torch import sdpa


def tensors(rng, *shapes, dtype=torch.float32):
    seed = torch.Generator().manual_seed(int(rng.integers(2**31)))
    return [torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def check(q, k, v, **options):
    """Values and gradients; a budget as elsewhere, PyTorch's own error in the same type for plain attention's."""
    def run(function, dtype):
        inputs = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        mask = options.get("attn_mask")
        changed = {"attn_mask": mask.to(dtype)} if mask is not None and mask.is_floating_point() else {}
        out = function(*inputs, **{**options, **changed})
        dout = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(dtype)
        return out, *torch.autograd.grad(out, inputs, dout)

    ours, theirs, truth = run(sdpa, q.dtype), run(scaled_dot_product_attention, q.dtype), run(
        scaled_dot_product_attention, torch.float64)
    for a, b, exact in zip(ours, theirs, truth):
        assert a.shape == b.shape and a.dtype == b.dtype
        if exact.numel():
            budget = 2 * (b - exact).abs().max() + 16 * torch.finfo(q.dtype).eps * (1 + exact.abs().max())
            assert (a - exact).abs().max() <= budget


SHAPES = {"4": [(2, 6, 37, 40), (2, 6, 53, 40), (2, 6, 53, 24)], "3": [(5, 37, 40), (5, 53, 40), (5, 53, 24)],
          "2": [(37, 40), (53, 40), (53, 24)], "5": [(2, 3, 4, 7, 8), (2, 3, 4, 9, 8), (2, 3, 4, 9, 8)],
          "broadcast": [(2, 1, 4, 7, 8), (3, 4, 9, 8), (1, 1, 4, 9, 8)], "empty": [(2, 4, 0, 8), (2, 4, 5, 8), (2, 4, 5, 8)]}


@pytest.mark.parametrize("name", sorted(SHAPES))
@pytest.mark.parametrize("is_causal", [False, True])
def test_shapes(rng, name, is_causal):
    check(*tensors(rng, *SHAPES[name]), is_causal=is_causal)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_types(rng, dtype):
    check(*tensors(rng, *SHAPES["4"], dtype=dtype), is_causal=True, scale=0.2)


MASKS = [(37, 53), (1, 53), (37, 1), (6, 37, 53), (1, 37, 53), (2, 1, 1, 53), (2, 6, 37, 53), (1, 1, 37, 53)]


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(rng, shape, kind):
    q, k, v = tensors(rng, *SHAPES["4"])
    mask, = tensors(rng, shape)
    mask = mask.detach()
    check(q, k, v, attn_mask=mask > -1 if kind == "bool" else mask)


@pytest.mark.parametrize("query, mask", [("3", (5, 37, 53)), ("3", (37, 53)), ("2", (37, 53)), ("5", (2, 3, 1, 7, 9)),
                                         ("5", (3, 1, 7, 9)), ("5", (4, 7, 9))])
def test_masks_of_other_shapes(rng, query, mask):
    q, k, v = tensors(rng, *SHAPES[query])
    check(q, k, v, attn_mask=tensors(rng, mask)[0].detach() > 0.2)


def test_gradient_of_the_mask(rng):
    q, k, v = tensors(rng, *SHAPES["4"])
    mask, = tensors(rng, (1, 6, 37, 53))
    got, = torch.autograd.grad(sdpa(q, k, v, mask).square().sum(), mask)
    expected, = torch.autograd.grad(scaled_dot_product_attention(*(x.double() for x in (q, k, v, mask))).square().sum(), mask)
    torch.testing.assert_close(got, expected)


def test_grouped_heads(rng):
    q, k, v = tensors(rng, (2, 6, 37, 40), (2, 2, 53, 40), (2, 2, 53, 40))
    check(q, k, v, enable_gqa=True)
    with pytest.raises(ValueError, match="enable_gqa"):
        sdpa(q, k, v)


def test_rows_that_see_nothing_are_zero(rng):
    q, k, v = tensors(rng, *SHAPES["4"])
    mask = torch.ones(37, 53, dtype=torch.bool)
    mask[3] = False
    out = sdpa(q, k, v, mask)
    assert not out[:, :, 3].any()
    assert all(torch.isfinite(x).all() for x in torch.autograd.grad(out.sum(), (q, k, v)))


def test_lowest_finite_mask_is_a_value(rng):
    q, k, v = tensors(rng, *SHAPES["4"])
    out = sdpa(q, k, v, torch.full((37, 53), torch.finfo(torch.float32).min))
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(out), atol=1e-6, rtol=1e-5)


def test_refused(rng):
    q, k, v = tensors(rng, *SHAPES["4"])
    with pytest.raises(NotImplementedError, match="dropout_p = 0.5"):
        sdpa(q, k, v, dropout_p=0.5)
    with pytest.raises(ValueError, match="is_causal"):
        sdpa(q, k, v, torch.ones(37, 53, dtype=torch.bool), is_causal=True)
    with pytest.raises(ValueError, match="mask.shape"):
        sdpa(q, k, v, torch.ones(37, 52, dtype=torch.bool))
