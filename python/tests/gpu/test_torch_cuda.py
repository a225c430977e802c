# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors on a GPU: the same rules of error as on the CPU, streams, CUDA graphs, torch.compile, devices."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

import flashattn  # noqa: E402
import flashattn.torch  # noqa: E402
from oracle import Problem, judge, visible  # noqa: E402

ml_dtypes = pytest.importorskip("ml_dtypes")


def normal(rng, shape, dtype):
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(dtype).cuda()


def inputs(rng, dtype=torch.bfloat16, batch=2, seqlen_q=300, seqlen_k=411, heads=6, heads_kv=2, head_dim=128):
    return (normal(rng, (batch, seqlen_q, heads, head_dim), dtype), normal(rng, (batch, seqlen_k, heads_kv, head_dim), dtype),
            normal(rng, (batch, seqlen_k, heads_kv, head_dim), dtype))


def as_numpy(x):
    x = x.detach().cpu()
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def attend_and_differentiate(*arguments, **options):
    """out, lse and, where the GPU has a backward pass, the gradients for a dout."""
    out, lse = flashattn.flash_attn_func(*arguments, return_lse=True, **options)
    dout = torch.linspace(-1, 1, out.numel(), device="cuda").reshape(out.shape).to(out.dtype)
    try:
        dq, dk, dv = torch.autograd.grad(out, arguments, dout)
    except NotImplementedError as error:
        assert "backward" in str(error)
        return {"out": out, "lse": lse}, dout
    return {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}, dout


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients(rng, dtype, head_dim, causal):
    q, k, v = (x.requires_grad_() for x in inputs(rng, dtype, head_dim=head_dim))
    got, dout = attend_and_differentiate(q, k, v, causal=causal)
    judge(Problem(*map(as_numpy, (q, k, v)), visible(300, 411, causal)), got, as_numpy(dout))


def test_against_pytorch(rng):
    """The larger shapes, against PyTorch's own kernels: twice their error from float64 on the GPU."""
    q, k, v = (x.transpose(1, 2) for x in inputs(rng, batch=4, seqlen_q=2048, seqlen_k=2048, heads=8, heads_kv=8))
    run = torch.nn.functional.scaled_dot_product_attention
    truth = run(q.double(), k.double(), v.double(), is_causal=True)
    theirs, ours = run(q, k, v, is_causal=True), flashattn.torch.sdpa(q, k, v, is_causal=True)
    assert (ours - truth).abs().max() <= 2 * (theirs - truth).abs().max() + 4 * 2.0**-8 * truth.abs().max()


def test_varlen(rng):
    q, k, v = (x[0] for x in inputs(rng))
    cu_q, cu_k = ((torch.tensor(x, dtype=torch.int32, device="cuda") for x in ([0, 100, 100, 300], [0, 1, 211, 411])))
    out, lse = flashattn.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 200, 210, causal=True, return_lse=True)
    for (a, b), (c, d) in zip(((0, 100), (100, 100), (100, 300)), ((0, 1), (1, 211), (211, 411))):
        problem = Problem(*(as_numpy(x)[None] for x in (q[a:b], k[c:d], v[c:d])), visible(b - a, d - c, True))
        judge(problem, {"out": out[None, a:b], "lse": lse[None, :, a:b]})


def test_current_stream(rng):
    """On a stream of its own, behind a slow producer and before a consumer, without any other waiting."""
    q, k, v = inputs(rng)
    expected = flashattn.flash_attn_func(q, k, v)
    source = q.clone()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(stream):
            late = torch.full_like(q, float("nan"))
            torch.cuda._sleep(20_000_000)
            late.copy_(source)
            out = flashattn.flash_attn_func(late, k, v)
            late.fill_(float("nan"))
            result = out.clone()
        stream.synchronize()
        assert torch.equal(result, expected)


def test_cuda_graph(rng):
    q, k, v = inputs(rng)
    flashattn.flash_attn_func(q, k, v, causal=True)  # kernels are loaded at their first use, which capture forbids
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flashattn.flash_attn_func(q, k, v, causal=True)
    for _ in range(3):
        for old, new in zip((q, k, v), inputs(rng)):
            old.copy_(new)
        graph.replay()
        assert torch.equal(out, flashattn.flash_attn_func(q, k, v, causal=True))


def test_no_synchronisation(rng):
    q, k, v = inputs(rng)
    flashattn.flash_attn_func(q, k, v)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        done = torch.cuda.Event()
        torch.cuda._sleep(1_000_000_000)
        flashattn.flash_attn_func(q, k, v)
        done.record()
        assert not done.query()


def test_compile(rng):
    q, k, v = inputs(rng)
    compiled = torch.compile(lambda q, k, v: flashattn.flash_attn_func(q * 2, k, v, causal=True), fullgraph=True)
    assert torch.equal(compiled(q, k, v), flashattn.flash_attn_func(q * 2, k, v, causal=True))
    reduced = torch.compile(lambda q, k, v: flashattn.flash_attn_func(q * 2, k, v, causal=True), fullgraph=True,
                            mode="reduce-overhead")
    for _ in range(3):
        assert torch.equal(reduced(q, k, v), flashattn.flash_attn_func(q * 2, k, v, causal=True))


def test_opcheck(rng):
    scalars = (None, "bottom_right", -1, -1, 0.0, 0, 0, "auto", "auto", 0, 0, False)
    torch.library.opcheck(torch.ops.flashattn.forward.default, (*inputs(rng), *[None] * 10, *scalars))


def test_autocast(rng):
    q, k, v = (x.float() for x in inputs(rng))
    with torch.autocast("cuda", torch.bfloat16):
        out = flashattn.flash_attn_func(q, k, v)
    assert torch.equal(out, flashattn.flash_attn_func(*(x.bfloat16() for x in (q, k, v))))


def test_mixed_devices_are_refused(rng):
    q, k, v = inputs(rng)
    with pytest.raises(ValueError, match="k.device"):
        flashattn.flash_attn_func(q, k.cpu(), v)
    if torch.cuda.device_count() > 1:
        with pytest.raises(ValueError, match="k.device"):
            flashattn.flash_attn_func(q, k.to("cuda:1"), v)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_another_device_than_the_current(rng):
    tensors = inputs(rng)
    expected = flashattn.flash_attn_func(*tensors)
    with torch.cuda.device(0):
        out = flashattn.flash_attn_func(*(x.to("cuda:1") for x in tensors))
        assert torch.cuda.current_device() == 0
    assert out.device == torch.device("cuda:1") and torch.equal(out.to("cuda:0"), expected)


def test_kv_cache(rng):
    q, k, v = inputs(rng, seqlen_q=1, seqlen_k=1)
    k_cache, v_cache = (torch.zeros(2, 64, 2, 128, dtype=q.dtype, device="cuda") for _ in range(2))
    lengths = torch.tensor([3, 63], dtype=torch.int32, device="cuda")
    try:
        out = flashattn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths)
    except NotImplementedError as error:
        pytest.skip(str(error))
    assert torch.equal(k_cache[0, 3], k[0, 0]) and torch.equal(v_cache[1, 63], v[1, 0])
    on_cpu = [x.cpu() for x in (q, k_cache, v_cache)]
    expected = flashattn.flash_attn_with_kvcache(*on_cpu, cache_seqlens=lengths.cpu() + 1)
    torch.testing.assert_close(out.cpu(), expected, atol=2e-2, rtol=2e-2)
