# SPDX-License-Identifier: Apache-2.0
"""Stands in for flash_attn_interface of flash-attn 3 (Hopper): its signatures, for arrays of any library.

pack_gqa, sm_margin and scheduler_metadata only tune the original's speed and are accepted as they are. What would
change results and is not here (FP8 scales, qv, attention_chunk, rotary embedding) raises NotImplementedError naming the
argument.
"""
from .. import interface, kv_cache
from ..interface import flash_attn_combine
from ._arguments import refuse

__all__ = ["flash_attn_combine", "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_with_kvcache", "get_scheduler_metadata"]


def _refuse_common(q_descale, k_descale, v_descale, attention_chunk, qv=None):
    refuse(qv=(qv, None), q_descale=(q_descale, None), k_descale=(k_descale, None), v_descale=(v_descale, None),
           attention_chunk=(attention_chunk, 0))


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                    window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,
                    deterministic=False, sm_margin=0, return_attn_probs=False):
    """flashattn.flash_attn_func; (out, lse) with return_attn_probs."""
    _refuse_common(q_descale, k_descale, v_descale, attention_chunk, qv)
    return interface.flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
                                     softcap=softcap, num_splits=num_splits, deterministic=deterministic,
                                     return_lse=return_attn_probs)


def flash_attn_qkvpacked_func(qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None,
                              window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False,
                              num_heads_q=None, sm_margin=0, return_attn_probs=False):
    """qkv [batch, seqlen, 3, heads, head_dim]; with num_heads_q [batch, seqlen, num_heads_q + 2 heads_kv, head_dim]."""
    _refuse_common(q_descale, k_descale, v_descale, attention_chunk)
    if num_heads_q is None:
        q, k, v = interface.unpack(qkv, 3)
    else:
        heads_kv, rest = divmod(qkv.shape[-2] - num_heads_q, 2)
        if rest or heads_kv < 1:
            raise ValueError(f"num_heads_q = {num_heads_q}: must leave an even number of qkv's {qkv.shape[-2]} heads")
        q, k, v = (qkv[..., begin:end, :] for begin, end in (
            (0, num_heads_q), (num_heads_q, num_heads_q + heads_kv), (num_heads_q + heads_kv, qkv.shape[-2])))
    return interface.flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
                                     softcap=softcap, deterministic=deterministic, return_lse=return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None,
                           seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None,
                           v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
                           pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False):
    """flashattn.flash_attn_varlen_func with used lengths; (out, lse) with return_attn_probs."""
    _refuse_common(q_descale, k_descale, v_descale, attention_chunk, qv)
    return interface.flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                                            seqused_q=seqused_q, seqused_k=seqused_k, softmax_scale=softmax_scale,
                                            causal=causal, window_size=window_size, softcap=softcap,
                                            num_splits=num_splits, deterministic=deterministic,
                                            return_lse=return_attn_probs)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None,
                            cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None,
                            cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None,
                            q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
                            scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0,
                            return_softmax_lse=False):
    """flashattn.flash_attn_with_kvcache; page_table is its block_table, and q may be of variable length."""
    _refuse_common(q_descale, k_descale, v_descale, attention_chunk, qv)
    refuse(cu_seqlens_k_new=(cu_seqlens_k_new, None), rotary_seqlens=(rotary_seqlens, None))
    return kv_cache.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens,
                                            cache_batch_idx, cache_leftpad, page_table, softmax_scale, causal,
                                            window_size, softcap, rotary_interleaved, None, num_splits,
                                            return_softmax_lse, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q)


def get_scheduler_metadata(*arguments, **named_arguments):
    """None: calls here need no preparation. flash_attn_with_kvcache takes it for scheduler_metadata."""
    return None
