# SPDX-License-Identifier: Apache-2.0
"""The functions that people call today, with the names, arguments and layouts of flash-attn 2, for arrays of any
library.

What flash-attn has and this library has not raises NotImplementedError that names the argument. What this library has
beyond it is keyword-only: sink, bias, mask, return_lse and so on, as flashattn.attention describes them. PyTorch
tensors are differentiable here (flashattn.torch).

One convention differs: the lse of a query that sees no key is -inf (flash-attn 2: +inf).
"""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Optional

from . import attention

if TYPE_CHECKING:
    from ._types import Array, Causal, Result, Window


def _refuse_dropout(dropout_p):
    if dropout_p:
        raise NotImplementedError(f"dropout_p = {dropout_p}: must be 0, there is no dropout")


_torch_attention = None


def is_torch(x):
    """Whether x is a PyTorch tensor, in words that torch.compile can trace."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _run(q, k, v, return_attn_probs, return_lse, options):
    global _torch_attention
    want_lse = return_attn_probs or return_lse
    if is_torch(q):
        if _torch_attention is None:  # an import statement costs a microsecond, even the second time
            from .torch import attention as _torch_attention
        out, lse = _torch_attention(q, k, v, return_lse=want_lse, **options)
    elif want_lse:
        out, lse = attention.forward(q, k, v, return_lse=True, **options)
    else:
        return attention.forward(q, k, v, **options)
    if return_attn_probs:
        return out, lse, None
    return (out, lse) if return_lse else out


def unpack(packed, count):
    """Views of the `count` arrays stacked in the dimension before heads and head_dim."""
    if packed.ndim < 4 or packed.shape[-3] != count:
        raise ValueError(f"shape {tuple(packed.shape)} of the packed array: must be [batch, seqlen, {count}, heads, "
                         f"head_dim] or [total, {count}, heads, head_dim]")
    if is_torch(packed):
        return packed.unbind(-3)  # its gradient is one stack
    return tuple(packed[..., i, :, :] for i in range(count))


def flash_attn_func(q: Array, k: Array, v: Array, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                    causal: Causal = False, window_size: Optional[Window] = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False, *,
                    return_lse: bool = False, **options: Any) -> Result:
    """Attention of dense batches.

    q [batch, seqlen_q, heads, head_dim]; k, v [batch, seqlen_k, heads_kv, head_dim and head_dim_v]. heads is a multiple
    of heads_kv: query head i reads key/value head i // (heads // heads_kv).

    causal         the last query sees the last key
    window_size    (left, right), inclusive, around the query's position i + seqlen_k - seqlen_q; -1 opens a side
    alibi_slopes   float32, [heads] or [batch, heads]
    deterministic  backward: the same bits in every run
    options        those of flashattn.attention: sink, bias, mask, seqused_k, kernel, num_threads, num_splits ...

    Returns out [batch, seqlen_q, heads, head_dim_v]; with return_lse (out, lse), with return_attn_probs (out, lse,
    None), lse float32 [batch, heads, seqlen_q], not differentiable. (flash-attn's third result is for tests of
    dropout.)
    """
    _refuse_dropout(dropout_p)
    options.update(softmax_scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
                   alibi_slopes=alibi_slopes, deterministic=deterministic)
    return _run(q, k, v, return_attn_probs, return_lse, options)


def flash_attn_kvpacked_func(q: Array, kv: Array, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                             causal: Causal = False, window_size: Optional[Window] = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False,
                             **options: Any) -> Result:
    """flash_attn_func with k and v in one array, kv [batch, seqlen_k, 2, heads_kv, head_dim]."""
    k, v = unpack(kv, 2)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                           deterministic, return_attn_probs, **options)


def flash_attn_qkvpacked_func(qkv: Array, dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                              causal: Causal = False, window_size: Optional[Window] = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False,
                              **options: Any) -> Result:
    """flash_attn_func with q, k and v in one array, qkv [batch, seqlen, 3, heads, head_dim]."""
    q, k, v = unpack(qkv, 3)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                           deterministic, return_attn_probs, **options)


def flash_attn_varlen_func(q: Array, k: Array, v: Array, cu_seqlens_q: Any, cu_seqlens_k: Any,
                           max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None,
                           dropout_p: float = 0.0, softmax_scale: Optional[float] = None, causal: Causal = False,
                           window_size: Optional[Window] = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
                           deterministic: bool = False, return_attn_probs: bool = False, block_table: Any = None, *,
                           return_lse: bool = False, **options: Any) -> Result:
    """Attention of sequences of different lengths, one after another without padding.

    q [total_q, heads, head_dim]; k, v [total_k, heads_kv, head_dim and head_dim_v]. Sequence n has queries
    cu_seqlens_q[n] .. cu_seqlens_q[n + 1] - 1, likewise keys. cu_seqlens_q, cu_seqlens_k: int32, [batch + 1].
    max_seqlen_q, max_seqlen_k: the longest sequence, if known; a longer one is refused where lengths lie on the CPU.
    block_table   int32, [batch, max_pages]: k and v are pages [pages, page_size, heads_kv, head_dim], any page_size

    The rest as in flash_attn_func. lse is [heads, total_q].
    """
    _refuse_dropout(dropout_p)
    if block_table is not None and cu_seqlens_k is not None:
        options["seqused_k"] = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
        cu_seqlens_k = None
    options.update(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
                   max_seqlen_k=max_seqlen_k, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
                   softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic, block_table=block_table)
    return _run(q, k, v, return_attn_probs, return_lse, options)


def flash_attn_varlen_kvpacked_func(q: Array, kv: Array, cu_seqlens_q: Any, cu_seqlens_k: Any,
                                    max_seqlen_q: Optional[int] = None, max_seqlen_k: Optional[int] = None,
                                    dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                                    causal: Causal = False, window_size: Optional[Window] = (-1, -1),
                                    softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
                                    return_attn_probs: bool = False, **options: Any) -> Result:
    """flash_attn_varlen_func with k and v in one array, kv [total_k, 2, heads_kv, head_dim]."""
    k, v = unpack(kv, 2)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                                  softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs, **options)


def flash_attn_varlen_qkvpacked_func(qkv: Array, cu_seqlens: Any, max_seqlen: Optional[int] = None,
                                     dropout_p: float = 0.0, softmax_scale: Optional[float] = None,
                                     causal: Causal = False, window_size: Optional[Window] = (-1, -1),
                                     softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
                                     return_attn_probs: bool = False, **options: Any) -> Result:
    """flash_attn_varlen_func with q, k and v in one array, qkv [total, 3, heads, head_dim]."""
    q, k, v = unpack(qkv, 3)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p,
                                  softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs, **options)


def flash_attn_combine(out_partial: Array, lse_partial: Array, out: None = None,
                       out_dtype: Any = None) -> tuple[Array, Array]:
    """Merges results of the same queries over disjoint sets of keys: (out, lse).

    Layout of flash-attn 3 and 4, heads last:
    out_partial   float32, [splits, batch, seqlen_q, heads, head_dim_v] or [splits, total_q, heads, head_dim_v]
    lse_partial   float32, [splits, batch, seqlen_q, heads] or [splits, total_q, heads]: the lse of flash_attn_func with
                  its last two dimensions swapped
    out           must be None
    out_dtype     "float32", "float16", "bfloat16" or the type object of the array's library; default float32

    lse: [batch, seqlen_q, heads] or [total_q, heads]
    """
    if out is not None:
        raise NotImplementedError("out: must be None, the result is a new array")
    out, lse = attention.combine(out_partial, _swap_last_two(lse_partial), dtype=_dtype_name(out_dtype))
    return out, _swap_last_two(lse)


def _dtype_name(dtype):
    """The name, "bfloat16", of a type object of any library: numpy.float16, numpy.dtype, torch.float16, jax.numpy..."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    return getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]


def _swap_last_two(x):
    return x.swapaxes(-1, -2)
