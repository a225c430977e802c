# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache: attention over a cache of keys and values, dense or paged; new ones are appended."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from . import attention
from ._arrays import NumPy, Torch, kind

if TYPE_CHECKING:
    from ._types import Array, Causal, Result, Window


def flash_attn_with_kvcache(q: Array, k_cache: Array, v_cache: Array, k: Optional[Array] = None,
                            v: Optional[Array] = None, rotary_cos: Any = None, rotary_sin: Any = None,
                            cache_seqlens: Any = None, cache_batch_idx: Any = None, cache_leftpad: Any = None,
                            block_table: Any = None, softmax_scale: Optional[float] = None, causal: Causal = False,
                            window_size: Optional[Window] = (-1, -1), softcap: float = 0.0,
                            rotary_interleaved: bool = True, alibi_slopes: Any = None, num_splits: int = 0,
                            return_softmax_lse: bool = False, **options: Any) -> Result:
    """Attention of q to a cache that may be larger than what is in use. Without gradients.

    q                  [batch, seqlen_q, heads, head_dim]
    k_cache, v_cache   [batch_cache, seqlen_cache, heads_kv, head_dim and head_dim_v]; with block_table
                       [pages, page_size, heads_kv, ...], any page_size
    k, v               [batch, seqlen_new, heads_kv, ...]: written into the cache, in place, behind the cache_seqlens
                       keys that are there, and attended to. NumPy and PyTorch arrays.
    cache_seqlens      int, or int32 [batch]: keys in the cache, without the new ones. Default: the cache is full.
    cache_batch_idx    int32, [batch]: which sequence of the cache each q belongs to. Not together with block_table.
    cache_leftpad      int32, [batch]: so many keys at the start of each sequence are padding
    block_table        int32, [batch, max_pages]
    rotary_cos, rotary_sin    must be None: rotate q and k before the call

    The rest as in flash_attn_func. New keys that do not fit are refused with ValueError where lengths and pages lie on
    the CPU; on CUDA they are not read, and PyTorch's check of indices on the device fails.

    Returns out [batch, seqlen_q, heads, head_dim_v], or (out, lse) with return_softmax_lse.
    """
    for name, x in (("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin)):
        if x is not None:
            raise NotImplementedError(f"{name}: must be None, rotate q and k before the call")
    if (k is None) != (v is None):
        raise ValueError(f"{'k' if k is None else 'v'} = None: k and v must be given together")
    if cache_batch_idx is not None:
        if block_table is not None:
            raise NotImplementedError("cache_batch_idx: must be None where block_table is given")
        block_table = cache_batch_idx.reshape(-1, 1)  # a sequence of a dense cache is one long page
    if cache_seqlens is None:
        if k is not None:
            raise ValueError("cache_seqlens = None: must be given with k and v, which go behind that many keys")
        if block_table is not None:
            cache_seqlens = block_table.shape[1] * k_cache.shape[1]
    if isinstance(cache_seqlens, int):
        cu_seqlens_q = options.get("cu_seqlens_q")
        batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
        cache_seqlens = kind(q).full(q, (batch,), cache_seqlens)
    options.update(return_lse=return_softmax_lse, seqused_k=cache_seqlens, leftpad_k=cache_leftpad,
                   block_table=block_table, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
                   softcap=softcap, alibi_slopes=alibi_slopes, num_splits=num_splits)
    if k is not None:
        attention.plan(q, k_cache, v_cache, **options)  # what would be refused is refused before the cache is written
        options["seqused_k"] = _append(k, v, k_cache, v_cache, cache_seqlens, block_table)
    of = kind(q)
    if not isinstance(of, Torch):
        return attention.forward(q, k_cache, v_cache, **options)
    from .torch import attention as torch_attention
    with of.torch.no_grad():
        out, lse = torch_attention(q, k_cache, v_cache, **options)
    return (out, lse) if return_softmax_lse else out


def _append(k, v, k_cache, v_cache, lengths, block_table):
    """Writes k and v behind the first lengths[n] keys of each sequence n of the cache; returns the new lengths."""
    of = kind(k_cache, "k_cache")
    if isinstance(of, Torch):
        k, v, k_cache, v_cache = (x.detach() for x in (k, v, k_cache, v_cache))
        arange, where, on_cpu = of.torch.arange, of.torch.where, not lengths.is_cuda
        where_at = {"device": lengths.device}
    elif isinstance(of, NumPy):
        arange, where, on_cpu, where_at = of.numpy.arange, of.numpy.where, True, {}
    else:
        raise NotImplementedError("k: must be None, new keys are written into the caches of NumPy and PyTorch only")
    batch, new = k.shape[:2]
    for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
        expected = (lengths.shape[0], new) + tuple(cache.shape[2:])
        if tuple(x.shape) != expected:
            raise ValueError(f"{name}.shape = {tuple(x.shape)}: must be {expected}, for these lengths and that cache")
        if x.dtype != cache.dtype:
            raise ValueError(f"{name}.dtype = {x.dtype}: must be the cache's, {cache.dtype}")

    pages, page_size = k_cache.shape[:2]
    capacity = page_size if block_table is None else page_size * block_table.shape[1]
    if on_cpu and new > 0:
        for n, length in enumerate(lengths.tolist()):
            if not 0 <= length <= capacity - new:
                raise ValueError(f"cache_seqlens[{n}] = {length}: must be 0 .. {capacity - new}, so that {new} new "
                                 f"keys fit into the {capacity} of the cache")
    positions = lengths[:, None] + arange(new, **where_at)
    sequence = arange(batch, **where_at)[:, None]
    if block_table is None:
        page, row = sequence, positions
    else:
        page, row = block_table[sequence, positions // page_size], positions % page_size
        if on_cpu and new > 0 and not (0 <= int(page.min()) and int(page.max()) < pages):
            raise ValueError(f"block_table has a page {int(page.min())} .. {int(page.max())} for new keys: must be 0 "
                             f".. {pages - 1}")
        page = where(page < 0, pages, page)  # on a GPU nobody looked: out of range rather than counted from the end
    k_cache[page, row] = k
    v_cache[page, row] = v
    return lengths + new
