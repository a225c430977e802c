# SPDX-License-Identifier: Apache-2.0
"""forward and the flash_attn functions on NumPy arrays, against NumPy in float64."""
import numpy as np
import pytest

import flashattn
from oracle import BFLOAT16, Problem, judge, visible

DTYPES = ["float32", "float16"] + (["bfloat16"] if BFLOAT16 is not None else [])


def dtype_of(name):
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def normal(rng, shape, dtype="float32"):
    return rng.standard_normal(shape).astype(dtype_of(dtype))


def inputs(rng, dtype="float32", batch=2, seqlen_q=37, seqlen_k=53, heads=6, heads_kv=2, head_dim=40, head_dim_v=24):
    return (normal(rng, (batch, seqlen_q, heads, head_dim), dtype), normal(rng, (batch, seqlen_k, heads_kv, head_dim), dtype),
            normal(rng, (batch, seqlen_k, heads_kv, head_dim_v), dtype))


def check(q, k, v, problem, **options):
    out, lse = flashattn.forward(q, k, v, return_lse=True, **options)
    assert out.dtype == q.dtype and lse.dtype == np.float32
    judge(problem, {"out": out, "lse": lse})
    return out, lse


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True, "top_left"])
@pytest.mark.parametrize("seqlens", [(37, 53), (53, 37), (1, 64), (64, 1)])
def test_causal(rng, dtype, causal, seqlens):
    q, k, v = inputs(rng, dtype, seqlen_q=seqlens[0], seqlen_k=seqlens[1])
    check(q, k, v, Problem(q, k, v, visible(*seqlens, causal)), causal=causal)


@pytest.mark.parametrize("window", [(0, 0), (4, 0), (-1, 0), (0, -1), (3, 2), (None, 5), (1000, 1000)])
@pytest.mark.parametrize("causal", [False, True])
def test_window(rng, window, causal):
    q, k, v = inputs(rng)
    seen = visible(37, 53, causal, tuple(-1 if x is None else x for x in window))
    check(q, k, v, Problem(q, k, v, seen), causal=causal, window_size=window)


@pytest.mark.parametrize("dtype", DTYPES)
def test_score_changes_together(rng, dtype):
    q, k, v = inputs(rng, dtype)
    bias, mask = normal(rng, (1, 6, 37, 53)), rng.random((2, 1, 1, 53)) < 0.7
    slopes, sink = rng.random((2, 6), np.float32), normal(rng, (6,))
    problem = Problem(q, k, v, visible(37, 53, True) & mask, 0.3, 2.0, bias, slopes, sink)
    check(q, k, v, problem, causal=True, softmax_scale=0.3, softcap=2.0, bias=bias, mask=mask, alibi_slopes=slopes,
          sink=sink)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-30])
def test_zero_is_a_scale(rng, scale):
    q, k, v = inputs(rng)
    check(q, k, v, Problem(q, k, v, visible(37, 53, True), scale), causal=True, softmax_scale=scale)


def test_queries_that_see_no_key(rng):
    q, k, v = inputs(rng, seqlen_q=5, seqlen_k=2)
    out, lse = check(q, k, v, Problem(q, k, v, visible(5, 2, True)), causal=True)
    assert not out[:, :3].any() and np.isneginf(lse[:, :, :3]).all()


@pytest.mark.parametrize("empty", ["batch", "seqlen_q", "seqlen_k", "heads"])
def test_sizes_of_zero(rng, empty):
    sizes = {empty: 0, "heads_kv": 0} if empty == "heads" else {empty: 0}
    q, k, v = inputs(rng, **sizes)
    out, lse = flashattn.forward(q, k, v, return_lse=True, causal=True)
    assert out.shape == (*q.shape[:3], 24) and not out.any() and np.isneginf(lse).all()


def test_nan_where_no_query_looks(rng):
    q, k, v = inputs(rng)
    clean = flashattn.forward(q, k, v, seqused_k=np.array([40, 9], np.int32))
    k[0, 40:] = v[0, 40:] = k[1, 9:] = v[1, 9:] = np.nan
    assert np.array_equal(flashattn.forward(q, k, v, seqused_k=np.array([40, 9], np.int32)), clean)


def test_nan_in_a_query_is_seen(rng):
    q, k, v = inputs(rng)
    clean = flashattn.forward(q, k, v)
    q[1, 2] = np.nan
    out = flashattn.forward(q, k, v)
    assert np.isnan(out[1, 2]).all()
    out[1, 2] = clean[1, 2]
    assert np.array_equal(out, clean)


def test_flash_attn_func(rng):
    q, k, v = inputs(rng)
    slopes = rng.random(6, np.float32)
    problem = Problem(q, k, v, visible(37, 53, True, (20, 3)), 0.2, 5.0, None, slopes)
    out, lse, weights = flashattn.flash_attn_func(q, k, v, 0.0, 0.2, True, (20, 3), 5.0, slopes, False, True)
    judge(problem, {"out": out, "lse": lse})
    assert weights is None
    again, lse_again = flashattn.flash_attn_func(q, k, v, softmax_scale=0.2, causal=True, window_size=(20, 3), softcap=5.0,
                                                 alibi_slopes=slopes, return_lse=True)
    assert np.array_equal(out, again) and np.array_equal(lse, lse_again)


def test_packed(rng):
    qkv = normal(rng, (2, 31, 3, 4, 16))
    q, k, v = (np.ascontiguousarray(qkv[:, :, n]) for n in range(3))
    expected = flashattn.flash_attn_func(q, k, v, causal=True)
    assert np.array_equal(flashattn.flash_attn_qkvpacked_func(qkv, causal=True), expected)
    assert np.array_equal(flashattn.flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True), expected)
    with pytest.raises(ValueError, match="packed"):
        flashattn.flash_attn_kvpacked_func(q, qkv)


LENGTHS_Q, LENGTHS_K = [5, 0, 40, 1, 7], [9, 3, 0, 30, 7]


def offsets(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def varlen_inputs(rng):
    return (normal(rng, (sum(LENGTHS_Q), 6, 40)), normal(rng, (sum(LENGTHS_K), 2, 40)), normal(rng, (sum(LENGTHS_K), 2, 24)))


def check_varlen(q, k, v, out, lse, causal):
    cu_q, cu_k = offsets(LENGTHS_Q), offsets(LENGTHS_K)
    for n, (length_q, length_k) in enumerate(zip(LENGTHS_Q, LENGTHS_K)):
        rows, keys = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
        problem = Problem(q[None, rows], k[None, keys], v[None, keys], visible(length_q, length_k, causal))
        judge(problem, {"out": out[None, rows], "lse": lse[None, :, rows]})


@pytest.mark.parametrize("causal", [False, True])
def test_varlen(rng, causal):
    q, k, v = varlen_inputs(rng)
    out, lse = flashattn.flash_attn_varlen_func(q, k, v, offsets(LENGTHS_Q), offsets(LENGTHS_K), 40, 30, causal=causal,
                                                return_lse=True)
    check_varlen(q, k, v, out, lse, causal)


def test_varlen_packed(rng):
    qkv = normal(rng, (sum(LENGTHS_Q), 3, 4, 16))
    q, k, v = (np.ascontiguousarray(qkv[:, n]) for n in range(3))
    cu = offsets(LENGTHS_Q)
    expected = flashattn.flash_attn_varlen_func(q, k, v, cu, cu, 40, 40)
    assert np.array_equal(flashattn.flash_attn_varlen_qkvpacked_func(qkv, cu, 40), expected)
    assert np.array_equal(flashattn.flash_attn_varlen_kvpacked_func(q, qkv[:, 1:], cu, cu), expected)


@pytest.mark.parametrize("page_size", [1, 16, 17])
def test_varlen_paged(rng, page_size):
    q, k, v = varlen_inputs(rng)
    cu_k, pages = offsets(LENGTHS_K), -(-30 // page_size)
    table = rng.permutation(5 * pages).astype(np.int32).reshape(5, pages)
    caches = [np.full((5 * pages, page_size, *x.shape[1:]), np.nan, np.float32) for x in (k, v)]
    for n, length in enumerate(LENGTHS_K):
        for j in range(length):
            for cache, x in zip(caches, (k, v)):
                cache[table[n, j // page_size], j % page_size] = x[cu_k[n] + j]
    out, lse = flashattn.flash_attn_varlen_func(q, *caches, offsets(LENGTHS_Q), cu_k, 40, 30, causal=True,
                                                block_table=table, return_lse=True)
    check_varlen(q, k, v, out, lse, True)


def test_combine(rng):
    q, k, v = inputs(rng)
    parts = [flashattn.forward(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 20), (20, 20), (20, 53))]
    outs, lses = np.stack([out for out, _ in parts]), np.stack([lse for _, lse in parts])
    problem = Problem(q, k, v, visible(37, 53))
    out, lse = flashattn.combine(outs, lses)
    judge(problem, {"out": out, "lse": lse})
    published, published_lse = flashattn.flash_attn_combine(outs, lses.swapaxes(-1, -2), out_dtype=np.float16)
    assert published.dtype == np.float16
    assert np.array_equal(published, out.astype(np.float16)) and np.array_equal(published_lse.swapaxes(-1, -2), lse)
    with pytest.raises(NotImplementedError, match="out"):
        flashattn.flash_attn_combine(outs, lses.swapaxes(-1, -2), out)


def test_output_types(rng):
    q, k, v = inputs(rng, "float16")
    assert flashattn.forward(q, k, v, dtype="float32").dtype == np.float32
    double = [x.astype(np.float64) for x in (q, k, v)]
    # The scale is a float32 of the library: one that is exact.
    out, lse = flashattn.forward(*double, kernel="reference", return_lse=True, softmax_scale=0.25)
    expected = Problem(*double, visible(37, 53), 0.25).solve()
    assert out.dtype == lse.dtype == np.float64
    assert np.abs(out - expected["out"]).max() < 1e-14 and np.abs(lse - expected["lse"]).max() < 1e-13
    with pytest.raises(NotImplementedError, match="float64"):
        flashattn.forward(*double)


def test_plan(rng):
    q, k, v = inputs(rng)
    plan = flashattn.plan(q, k, v, num_threads=1, num_splits=1)
    assert plan["kernel"] == "cpu" and plan["name"].startswith("cpu_forward") and plan["num_threads"] == 1
    with pytest.raises(ValueError, match="window_left = -2"):
        flashattn.plan(q, k, v, window_size=(-2, 0))
