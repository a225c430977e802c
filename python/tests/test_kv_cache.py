# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache on NumPy arrays, against NumPy in float64."""
import numpy as np
import pytest

import flashattn
from oracle import Problem, judge, visible
from test_forward import normal

BATCH, CAPACITY, HEADS, HEADS_KV, HEAD_DIM, HEAD_DIM_V = 3, 40, 4, 2, 16, 24
LENGTHS = [0, 17, 36]


def dense_cache(rng, batch=BATCH):
    """Caches that are NaN behind LENGTHS."""
    k, v = normal(rng, (batch, CAPACITY, HEADS_KV, HEAD_DIM)), normal(rng, (batch, CAPACITY, HEADS_KV, HEAD_DIM_V))
    for n, length in enumerate(LENGTHS):
        k[n, length:] = v[n, length:] = np.nan
    return k, v


def paged(rng, k, v, page_size):
    """The same as pages in a random order, among pages of no sequence, and the table."""
    per_sequence = -(-CAPACITY // page_size)
    table = rng.permutation(BATCH * per_sequence + 5)[:BATCH * per_sequence].astype(np.int32).reshape(BATCH, per_sequence)
    caches = []
    for x in (k, v):
        padded = np.full((BATCH, per_sequence * page_size, *x.shape[2:]), np.nan, np.float32)
        padded[:, :CAPACITY] = x
        cache = np.full((BATCH * per_sequence + 5, page_size, *x.shape[2:]), np.nan, np.float32)
        cache[table] = padded.reshape(BATCH, per_sequence, page_size, *x.shape[2:])
        caches.append(cache)
    return *caches, table


def new(rng, count):
    return (normal(rng, (BATCH, count, HEADS, HEAD_DIM)), normal(rng, (BATCH, count, HEADS_KV, HEAD_DIM)),
            normal(rng, (BATCH, count, HEADS_KV, HEAD_DIM_V)))


def check(q, k, v, lengths, out, lse, first=(0, 0, 0)):
    """k, v: all keys of each sequence, of which lengths[n] count, from first[n] on."""
    for n, length in enumerate(lengths):
        keys = slice(first[n], length)
        problem = Problem(q[n:n + 1], k[n:n + 1, keys], v[n:n + 1, keys], visible(q.shape[1], length - first[n], True))
        judge(problem, {"out": out[n:n + 1], "lse": lse[n:n + 1]})


@pytest.mark.parametrize("page_size", [None, 1, 7, 64])
@pytest.mark.parametrize("count", [1, 4])
def test_append_and_attend(rng, page_size, count):
    k_dense, v_dense = dense_cache(rng)
    q, k, v = new(rng, count)
    lengths = np.array(LENGTHS, np.int32)
    k_cache, v_cache, table = (k_dense.copy(), v_dense.copy(), None) if page_size is None else paged(
        rng, k_dense, v_dense, page_size)
    k_before, v_before = k_cache.copy(), v_cache.copy()
    out, lse = flashattn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True,
                                                 block_table=table, return_softmax_lse=True)
    assert lengths.tolist() == LENGTHS
    for n, length in enumerate(LENGTHS):
        k_dense[n, length:length + count], v_dense[n, length:length + count] = k[n], v[n]
        for j in range(length, length + count):
            place = (n, j) if page_size is None else (table[n, j // page_size], j % page_size)
            k_before[place], v_before[place] = k[n, j - length], v[n, j - length]
    assert np.array_equal(k_cache, k_before, equal_nan=True) and np.array_equal(v_cache, v_before, equal_nan=True)
    check(q, k_dense, v_dense, [length + count for length in LENGTHS], out, lse)


def test_cache_read_only(rng):
    k_cache, v_cache = dense_cache(rng)
    q, _, _ = new(rng, 2)
    lengths = np.array(LENGTHS, np.int32)
    out, lse = flashattn.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, causal=True,
                                                 return_softmax_lse=True)
    check(q, k_cache, v_cache, LENGTHS, out, lse)
    assert np.array_equal(flashattn.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, causal=True), out)
    one = flashattn.flash_attn_with_kvcache(q, k_cache[2:].repeat(3, 0), v_cache[2:].repeat(3, 0), cache_seqlens=36,
                                            causal=True)
    assert np.array_equal(one[2], out[2])


def test_whole_cache_by_default(rng):
    k_cache, v_cache = normal(rng, (BATCH, 9, HEADS_KV, HEAD_DIM)), normal(rng, (BATCH, 9, HEADS_KV, HEAD_DIM_V))
    q, _, _ = new(rng, 2)
    out, lse = flashattn.flash_attn_with_kvcache(q, k_cache, v_cache, causal=True, return_softmax_lse=True)
    check(q, k_cache, v_cache, [9] * 3, out, lse)
    table = np.arange(3, dtype=np.int32).reshape(3, 1)
    assert np.array_equal(flashattn.flash_attn_with_kvcache(q, k_cache, v_cache, causal=True, block_table=table), out)


def test_left_padding(rng):
    k_cache, v_cache = dense_cache(rng)
    k_cache[1, :5] = v_cache[1, :5] = np.nan
    q, _, _ = new(rng, 2)
    out, lse = flashattn.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=np.array(LENGTHS, np.int32),
                                                 cache_leftpad=np.array([0, 5, 0], np.int32), causal=True,
                                                 return_softmax_lse=True)
    check(q, k_cache, v_cache, LENGTHS, out, lse, (0, 5, 0))


def test_batch_index(rng):
    k_cache, v_cache = dense_cache(rng, 5)
    k_cache[4], v_cache[4] = k_cache[1].copy(), v_cache[1].copy()
    k_before, v_before = k_cache.copy(), v_cache.copy()
    q, k, v = new(rng, 3)
    index, lengths = np.array([4, 0, 2], np.int32), np.array([17, 0, 36], np.int32)
    out, lse = flashattn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, cache_batch_idx=index,
                                                 causal=True, return_softmax_lse=True)
    for n, (place, length) in enumerate(zip(index, lengths)):
        k_before[place, length:length + 3], v_before[place, length:length + 3] = k[n], v[n]
    assert np.array_equal(k_cache, k_before, equal_nan=True) and np.array_equal(v_cache, v_before, equal_nan=True)
    check(q, k_cache[index], v_cache[index], lengths + 3, out, lse)


TABLES = [({"block_table": np.full((BATCH, 2), page, np.int32)}, "block_table") for page in (99, -1)]
WRONG = [
    ({"cache_seqlens": np.array([0, 38, 1], np.int32)}, r"cache_seqlens\[1\] = 38: must be 0 .. 37"),
    ({"cache_seqlens": np.array([0, -1, 1], np.int32)}, "-1"),
    ({"cache_seqlens": np.array([0, 1], np.int32)}, "shape"),
    ({"cache_seqlens": None}, "cache_seqlens = None"),
    ({"v": None}, "v = None"),
    ({"k": np.zeros((BATCH, 3, 1, HEAD_DIM), np.float32)}, "k.shape"),
    ({"v": np.zeros((BATCH, 3, HEADS_KV, HEAD_DIM_V))}, "v.dtype = float64"),
    ({"window_size": (-3, 0)}, "window_left"),
]


@pytest.mark.parametrize("page_size, wrong, words", [(None, *x) for x in WRONG] + [(20, *x) for x in WRONG + TABLES])
def test_a_refused_call_leaves_the_cache(rng, page_size, wrong, words):
    k_cache, v_cache = dense_cache(rng)
    table = None
    if page_size is not None:
        k_cache, v_cache, table = paged(rng, k_cache, v_cache, page_size)
    q, k, v = new(rng, 3)
    arguments = {"k": k, "v": v, "cache_seqlens": np.array(LENGTHS, np.int32), "block_table": table, **wrong}
    before = k_cache.copy(), v_cache.copy()
    with pytest.raises(ValueError, match=words):
        flashattn.flash_attn_with_kvcache(q, k_cache, v_cache, **arguments)
    assert np.array_equal(k_cache, before[0], equal_nan=True) and np.array_equal(v_cache, before[1], equal_nan=True)


@pytest.mark.parametrize("name", ["rotary_cos", "rotary_sin"])
def test_rotary_is_refused(rng, name):
    k_cache, v_cache = dense_cache(rng)
    with pytest.raises(NotImplementedError, match=name):
        flashattn.flash_attn_with_kvcache(new(rng, 1)[0], k_cache, v_cache, **{name: np.zeros((40, 8), np.float32)})
