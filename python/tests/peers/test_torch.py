# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the CPU: values and gradients against NumPy in float64, autograd's rules, torch.compile, opcheck."""
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

import flashattn
import flashattn.torch
from oracle import Problem, judge, visible
from test_forward import LENGTHS_K, LENGTHS_Q, offsets

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def normal(rng, shape, dtype=torch.float32):
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(dtype)


def inputs(rng, dtype=torch.float32, grad=True, seqlen_q=37, seqlen_k=53, heads=6, heads_kv=2, head_dim=40, head_dim_v=24):
    shapes = (2, seqlen_q, heads, head_dim), (2, seqlen_k, heads_kv, head_dim), (2, seqlen_k, heads_kv, head_dim_v)
    return [normal(rng, shape, dtype).requires_grad_(grad) for shape in shapes]


def as_numpy(x):
    x = x.detach()
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def problem(q, k, v, seen, **score_changes):
    return Problem(as_numpy(q), as_numpy(k), as_numpy(v), seen, **score_changes)


def differentiate(out, dout, *tensors):
    return torch.autograd.grad(out, tensors, dout)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients(rng, dtype, causal):
    q, k, v = inputs(rng, dtype)
    out, lse = flashattn.flash_attn_func(q, k, v, causal=causal, return_lse=True)
    assert out.dtype == dtype and not lse.requires_grad
    dout = normal(rng, out.shape, dtype)
    dq, dk, dv = differentiate(out, dout, q, k, v)
    judge(problem(q, k, v, visible(37, 53, causal)), {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}, as_numpy(dout))


def test_gradients_of_sink_bias_and_slopes(rng):
    q, k, v = inputs(rng)
    sink, bias = normal(rng, (6,)).requires_grad_(), normal(rng, (1, 6, 37, 53)).requires_grad_()
    slopes = normal(rng, (2, 6)).abs().requires_grad_()
    out = flashattn.flash_attn_func(q, k, v, alibi_slopes=slopes, sink=sink, bias=bias, softcap=3.0)
    dout = normal(rng, out.shape)
    names = ("dq", "dk", "dv", "dsink", "dbias", "dalibi_slopes")
    got = dict(zip(names, differentiate(out, dout, q, k, v, sink, bias, slopes)), out=out)
    judge(problem(q, k, v, visible(37, 53), softcap=3.0, bias=as_numpy(bias), sink=as_numpy(sink), slopes=as_numpy(slopes)),
          got, as_numpy(dout))


def test_gradcheck(rng):
    q, k, v = (x.detach().double().requires_grad_() for x in inputs(rng, seqlen_q=4, seqlen_k=6, heads=4, head_dim=3,
                                                                    head_dim_v=5))
    sink = normal(rng, (4,)).double().float()
    assert torch.autograd.gradcheck(lambda *x: flashattn.flash_attn_func(
        *x, causal=True, softcap=2.0, softmax_scale=0.5, sink=sink, kernel="reference"), (q, k, v))


def test_varlen(rng):
    total_q, total_k = sum(LENGTHS_Q), sum(LENGTHS_K)
    q, k, v = (normal(rng, shape).requires_grad_() for shape in ((total_q, 6, 40), (total_k, 2, 40), (total_k, 2, 24)))
    cu_q, cu_k = offsets(LENGTHS_Q), offsets(LENGTHS_K)
    out = flashattn.flash_attn_varlen_func(q, k, v, torch.from_numpy(cu_q), torch.from_numpy(cu_k), 40, 30, causal=True)
    dout = normal(rng, out.shape)
    dq, dk, dv = differentiate(out, dout, q, k, v)
    for n, (length_q, length_k) in enumerate(zip(LENGTHS_Q, LENGTHS_K)):
        rows, keys = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
        judge(problem(q[None, rows], k[None, keys], v[None, keys], visible(length_q, length_k, True)),
              {"out": out[None, rows], "dq": dq[None, rows], "dk": dk[None, keys], "dv": dv[None, keys]},
              as_numpy(dout[None, rows]))


def test_packed(rng):
    qkv = normal(rng, (2, 20, 3, 4, 16)).requires_grad_()
    q, k, v = (x.detach().clone().requires_grad_() for x in qkv.unbind(2))
    out, packed = flashattn.flash_attn_func(q, k, v, causal=True), flashattn.flash_attn_qkvpacked_func(qkv, causal=True)
    assert torch.equal(out, packed)
    dout = normal(rng, out.shape)
    assert torch.equal(differentiate(packed, dout, qkv)[0], torch.stack(differentiate(out, dout, q, k, v), 2))
    q, kv = q.detach(), qkv.detach()[:, :, 1:].requires_grad_()
    packed = flashattn.flash_attn_kvpacked_func(q, kv, causal=True)
    assert torch.equal(differentiate(packed, dout, kv)[0], torch.stack(differentiate(
        flashattn.flash_attn_func(q, k, v, causal=True), dout, k, v), 2))


# ---- Autograd

def test_only_some_need_a_gradient(rng):
    q, k, v = inputs(rng)
    out = flashattn.flash_attn_func(q, k, v)
    expected = differentiate(out, torch.ones_like(out), q, k, v)
    for i, x in enumerate((q, k, v)):
        others = [y if y is x else y.detach() for y in (q, k, v)]
        out = flashattn.flash_attn_func(*others)
        assert torch.equal(differentiate(out, torch.ones_like(out), x)[0], expected[i])


def test_one_tensor_in_every_place(rng):
    x = normal(rng, (2, 20, 4, 16)).requires_grad_()
    apart = [x.detach().clone().requires_grad_() for _ in range(3)]
    dout = normal(rng, x.shape)
    sum_apart = sum(differentiate(flashattn.flash_attn_func(*apart), dout, *apart))
    torch.testing.assert_close(differentiate(flashattn.flash_attn_func(x, x, x), dout, x)[0], sum_apart)


def test_backward_twice_and_an_output_used_twice(rng):
    q, k, v = inputs(rng)
    out = flashattn.flash_attn_func(q, k, v)
    once = torch.autograd.grad(out.sum(), q, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad((out + 2 * out).sum(), q, retain_graph=True)[0], 3 * once)
    assert torch.equal(torch.autograd.grad(out.sum(), q)[0], once)


def test_an_input_changed_in_between_is_noticed(rng):
    q, k, v = inputs(rng)
    mask = torch.ones(2, 1, 1, 53, dtype=torch.bool)
    out = flashattn.flash_attn_func(q, k, v, mask=mask)
    mask[:] = False
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_second_derivatives_are_refused(rng):
    q, k, v = inputs(rng)
    dq, = torch.autograd.grad(flashattn.flash_attn_func(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()


def test_without_gradients(rng):
    q, k, v = inputs(rng)
    expected = flashattn.flash_attn_func(q, k, v)
    with torch.no_grad():
        assert torch.equal(flashattn.flash_attn_func(q, k, v), expected)
        assert not flashattn.flash_attn_func(q, k, v).requires_grad
    with torch.inference_mode():
        assert torch.equal(flashattn.flash_attn_func(q, k, v), expected)


def test_strides(rng):
    q, k, v = inputs(rng, grad=False)
    expected = flashattn.flash_attn_func(q, k, v)
    gaps = [torch.stack([x, x], -1)[..., 0].requires_grad_() for x in (q, k, v)]
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    plain = [x.clone().requires_grad_() for x in (q, k, v)]
    gradients = differentiate(flashattn.flash_attn_func(*plain).sum(), None, *plain)
    for tensors in (gaps, turned):
        out = flashattn.flash_attn_func(*tensors)
        assert torch.equal(out, expected)
        for a, b in zip(differentiate(out.sum(), None, *tensors), gradients):
            assert torch.equal(a, b)


def test_negative_views(rng):
    z = torch.complex(*inputs(rng, grad=False)[:1] * 2)
    k, v = inputs(rng, grad=False)[1:]
    negative = z.conj().imag
    assert negative.is_neg()
    assert torch.equal(flashattn.flash_attn_func(negative.contiguous(), k, v), flashattn.flash_attn_func(
        torch.stack([negative], 0)[0], k, v))
    q = torch.empty(2, 37, 6, 40, dtype=torch.complex64).conj().imag
    q.copy_(z.real)
    assert q.is_neg()
    assert torch.equal(flashattn.flash_attn_func(q, k, v), flashattn.flash_attn_func(z.real.contiguous(), k, v))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(rng, dtype):
    q, k, v = inputs(rng)
    low = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
    expected = flashattn.flash_attn_func(*low)
    with torch.autocast("cpu", dtype):
        out = flashattn.flash_attn_func(q, k.detach().to(dtype), v)
    assert out.dtype == dtype and torch.equal(out, expected)
    dq, = differentiate(out, torch.ones_like(out), q)
    assert dq.dtype == torch.float32
    assert torch.equal(dq.to(dtype), differentiate(expected, torch.ones_like(out), low[0])[0])


def test_paged_gradients_are_refused(rng):
    q, k, v = inputs(rng)
    table, used = torch.tensor([[0], [1]], dtype=torch.int32), torch.tensor([53, 53], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="block_table"):
        flashattn.flash_attn_func(q, k, v, block_table=table, seqused_k=used).sum().backward()


@pytest.mark.parametrize("options, error, words", [
    ({"dropout_p": 0.1}, NotImplementedError, "dropout_p = 0.1"), ({"nothing": 1}, TypeError, "nothing"),
    ({"window_size": (-2, 0)}, ValueError, "window_left = -2"), ({"causal": "up"}, ValueError, "causal = 'up'")])
def test_refused(rng, options, error, words):
    with pytest.raises(error, match=words):
        flashattn.flash_attn_func(*inputs(rng), **options)


def test_meta_and_other_devices_are_refused(rng):
    q, k, v = (x.detach().to("meta") for x in inputs(rng))
    with pytest.raises((RuntimeError, BufferError, NotImplementedError, ValueError)):
        flashattn.flash_attn_func(q, k, v)


def test_vmap_is_refused(rng):
    q, k, v = (x.detach()[None] for x in inputs(rng))
    with pytest.raises((RuntimeError, NotImplementedError, ValueError, BufferError)):
        torch.vmap(flashattn.flash_attn_func)(q, k, v)


# ---- KV cache

def test_kv_cache(rng):
    k_cache, v_cache = normal(rng, (3, 40, 2, 16)), normal(rng, (3, 40, 2, 24))
    q, k, v = normal(rng, (3, 2, 4, 16)).requires_grad_(), normal(rng, (3, 2, 2, 16)), normal(rng, (3, 2, 2, 24))
    lengths = torch.tensor([0, 17, 36], dtype=torch.int32)
    arrays = [x.detach().numpy().copy() for x in (q, k_cache, v_cache, k, v)]
    expected = flashattn.flash_attn_with_kvcache(*arrays, cache_seqlens=lengths.numpy(), causal=True)
    out = flashattn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True)
    assert not out.requires_grad
    assert np.array_equal(out.numpy(), expected)
    assert np.array_equal(k_cache.numpy(), arrays[1]) and np.array_equal(v_cache.numpy(), arrays[2])
    index = torch.tensor([2, 1, 0], dtype=torch.int32)
    again = flashattn.flash_attn_with_kvcache(q.flip(0), k_cache, v_cache, cache_seqlens=lengths.flip(0) + 2,
                                              cache_batch_idx=index, causal=True)
    assert torch.equal(again.flip(0), out)
    with pytest.raises(ValueError, match=r"cache_seqlens\[2\] = 39"):
        flashattn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths + 3)


# ---- The operator and torch.compile

def arguments(q, k, v, *, causal="none", kernel="auto", **tensors):
    return (q, k, v, *[tensors.get(name) for name in flashattn.torch._TENSORS], None, causal, -1, -1, 0.0, 0, 0, kernel,
            "auto", 0, 0, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(rng, dtype, grad):
    q, k, v = inputs(rng, dtype, grad)
    sink = normal(rng, (6,)).requires_grad_(grad)
    torch.library.opcheck(torch.ops.flashattn.forward, arguments(q, k, v, causal="bottom_right", sink=sink))
    out, lse = torch.ops.flashattn.forward(*arguments(q, k, v, sink=sink))
    plain = [x.detach() for x in (q, k, v, sink)]
    torch.library.opcheck(torch.ops.flashattn.backward, (
        out.detach(), out.detach(), lse.detach(), ["dv", "dsink", "dq"], *arguments(*plain[:3], sink=plain[3])))


def test_operator_gradients_come_in_order(rng):
    q, k, v = (x.detach() for x in inputs(rng))
    sink = normal(rng, (6,))
    out, lse = torch.ops.flashattn.forward(*arguments(q, k, v, sink=sink))
    want = ["dv", "dsink", "dq"]
    got = torch.ops.flashattn.backward(out, out, lse, want, *arguments(q, k, v, sink=sink))
    fake = [tuple(x.shape) for x in flashattn.torch._backward_fake(out, out, lse, want, *arguments(q, k, v, sink=sink))]
    assert [tuple(x.shape) for x in got] == fake == [v.shape, sink.shape, q.shape]


def functions():
    return {
        "dense": lambda q, k, v: flashattn.flash_attn_func(q * 2, k, v, causal=True, window_size=(20, 0), softcap=3.0),
        "lse": lambda q, k, v: flashattn.flash_attn_func(q * 2, k, v, return_lse=True)[0],
        "sdpa": lambda q, k, v: flashattn.torch.sdpa(q.transpose(1, 2) * 2, k.transpose(1, 2), v.transpose(1, 2),
                                                     enable_gqa=True, is_causal=True),
        "varlen": lambda q, k, v: flashattn.flash_attn_varlen_func(
            q.flatten(0, 1) * 2, k.flatten(0, 1), v.flatten(0, 1), torch.tensor([0, 37, 74], dtype=torch.int32),
            torch.tensor([0, 53, 106], dtype=torch.int32), 37, 53, causal=True)}


@pytest.mark.parametrize("name", sorted(functions()))
def test_compile_without_graph_breaks(rng, name):
    torch._dynamo.reset()
    function = functions()[name]
    q, k, v = inputs(rng)
    expected = function(q, k, v)
    out = torch.compile(function, fullgraph=True)(q, k, v)
    assert torch.equal(out, expected)
    dout = normal(rng, out.shape)
    for a, b in zip(differentiate(out, dout, q, k, v), differentiate(expected, dout, q, k, v)):
        assert torch.equal(a, b)


def test_compile_of_the_very_first_call():
    code = ("import torch, flashattn\n"
            "q = torch.randn(1, 4, 2, 8)\n"
            "out = torch.compile(flashattn.flash_attn_func, fullgraph=True)(q, q, q)\n"
            "assert torch.equal(out, flashattn.flash_attn_func(q, q, q))\n")
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_compile_with_dynamic_shapes(rng):
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: flashattn.flash_attn_func(q, k, v, causal=True), fullgraph=True, dynamic=True)
    for seqlen in (5, 37, 64):
        q, k, v = inputs(rng, seqlen_q=seqlen, seqlen_k=seqlen + 3)
        assert torch.equal(compiled(q, k, v), flashattn.flash_attn_func(q, k, v, causal=True))


def test_compile_under_autocast(rng):
    torch._dynamo.reset()
    q, k, v = inputs(rng, grad=False)
    with torch.autocast("cpu", torch.bfloat16):
        out = torch.compile(flashattn.flash_attn_func, fullgraph=True)(q, k, v)
        assert torch.equal(out, flashattn.flash_attn_func(q, k, v)) and out.dtype == torch.bfloat16


def test_export(rng):
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return flashattn.flash_attn_func(q, k, v, causal=True)

    q, k, v = (x.detach() for x in inputs(rng))
    program = torch.export.export(Module(), (q, k, v))
    assert torch.equal(program.module()(q, k, v), Module()(q, k, v))


def test_activation_checkpointing(rng):
    q, k, v = inputs(rng)
    out = torch.utils.checkpoint.checkpoint(lambda *x: flashattn.flash_attn_func(*x, causal=True), q, k, v,
                                            use_reentrant=False)
    expected = flashattn.flash_attn_func(q, k, v, causal=True)
    for a, b in zip(differentiate(out.sum(), None, q, k, v), differentiate(expected.sum(), None, q, k, v)):
        assert torch.equal(a, b)
