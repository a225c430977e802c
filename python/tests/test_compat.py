# SPDX-License-Identifier: Apache-2.0
"""The stand-ins: parameters as published, in order and with defaults, and results equal to the package's own functions."""
import inspect
import os
import subprocess
import sys

import numpy as np
import pytest

import flashattn
from flashattn.compat import flash_attn, flash_attn_interface
from test_forward import LENGTHS_K, LENGTHS_Q, inputs, normal, offsets, varlen_inputs

DENSE = "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
DENSE += "deterministic=False, return_attn_probs=False"
DESCALE = "q_descale=None, k_descale=None, v_descale=None, "
# flash-attn 2.8 and flash-attn 3: name, positional parameters. Ours may have defaults where these have none.
PUBLISHED_2 = {
    "flash_attn_func": "q, k, v, " + DENSE,
    "flash_attn_kvpacked_func": "q, kv, " + DENSE,
    "flash_attn_qkvpacked_func": "qkv, " + DENSE,
    "flash_attn_varlen_func": "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, " + DENSE +
                              ", block_table=None",
    "flash_attn_varlen_kvpacked_func": "q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, " + DENSE,
    "flash_attn_varlen_qkvpacked_func": "qkv, cu_seqlens, max_seqlen, " + DENSE,
    "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
                               "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, "
                               "causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, "
                               "alibi_slopes=None, num_splits=0, return_softmax_lse=False"}
PUBLISHED_3 = {
    "flash_attn_func": "q, k, v, softmax_scale=None, causal=False, qv=None, " + DESCALE + "window_size=(-1, -1), "
                       "attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, "
                       "return_attn_probs=False",
    "flash_attn_qkvpacked_func": "qkv, softmax_scale=None, causal=False, " + DESCALE + "window_size=(-1, -1), "
                                 "attention_chunk=0, softcap=0.0, deterministic=False, num_heads_q=None, sm_margin=0, "
                                 "return_attn_probs=False",
    "flash_attn_varlen_func": "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, "
                              "seqused_k=None, softmax_scale=None, causal=False, qv=None, " + DESCALE +
                              "window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, "
                              "deterministic=False, sm_margin=0, return_attn_probs=False",
    "flash_attn_combine": "out_partial, lse_partial, out=None, out_dtype=None",
    "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, "
                               "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None, "
                               "cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, " +
                               DESCALE + "softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, "
                               "softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=0, "
                               "pack_gqa=None, sm_margin=0, return_softmax_lse=False"}


@pytest.mark.parametrize("module, name, published", [
    *[(flash_attn, *item) for item in PUBLISHED_2.items()],
    *[(flash_attn_interface, *item) for item in PUBLISHED_3.items()]])
def test_parameters(module, name, published):
    theirs = inspect.signature(eval(f"lambda {published}: None")).parameters.values()
    ours = [p for p in inspect.signature(getattr(module, name)).parameters.values()
            if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in ours] == [p.name for p in theirs]
    for mine, other in zip(ours, theirs):
        assert other.default in (inspect.Parameter.empty, mine.default), mine.name


def test_hopper_functions(rng):
    q, k, v = inputs(rng)
    expected = flashattn.flash_attn_func(q, k, v, causal=True, window_size=(9, 0), softcap=2.0, return_lse=True)
    got = flash_attn_interface.flash_attn_func(q, k, v, causal=True, window_size=(9, 0), softcap=2.0,
                                               return_attn_probs=True)
    assert len(got) == 2 and all(np.array_equal(a, b) for a, b in zip(got, expected))

    qkv = normal(rng, (2, 19, 10, 16))
    expected = flashattn.flash_attn_func(qkv[:, :, :6], qkv[:, :, 6:8], qkv[:, :, 8:])
    assert np.array_equal(flash_attn_interface.flash_attn_qkvpacked_func(qkv, num_heads_q=6), expected)
    with pytest.raises(ValueError, match="num_heads_q = 5"):
        flash_attn_interface.flash_attn_qkvpacked_func(qkv, num_heads_q=5)

    q, k, v = varlen_inputs(rng)
    cu_q, cu_k, used = offsets(LENGTHS_Q), offsets(LENGTHS_K), np.array([2, 0, 0, 30, 7], np.int32)
    expected = flashattn.forward(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, seqused_k=used)
    assert np.array_equal(flash_attn_interface.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 40, 30, seqused_k=used), expected)


def test_hopper_cache_with_queries_of_variable_length(rng):
    q, lengths_q, lengths = normal(rng, (8, 4, 16)), [3, 0, 5], [7, 2, 11]
    cache = normal(rng, (4, 8, 2, 16)), normal(rng, (4, 8, 2, 16))
    table = np.array([[0, 9], [2, 9], [1, 3]], np.int32)
    out = flash_attn_interface.flash_attn_with_kvcache(
        q, *cache, cache_seqlens=np.array(lengths, np.int32), page_table=table, cu_seqlens_q=offsets(lengths_q),
        max_seqlen_q=5, causal=True, scheduler_metadata=flash_attn_interface.get_scheduler_metadata(3, 5, 11))
    for n, (begin, end) in enumerate(((0, 3), (3, 3), (3, 8))):
        k, v = (np.concatenate([x[page] for page in table[n] if page != 9])[None, :lengths[n]] for x in cache)
        expected = flashattn.flash_attn_func(q[None, begin:end], k, v, causal=True)
        np.testing.assert_allclose(out[None, begin:end], expected, atol=1e-6)


@pytest.mark.parametrize("name, value", [("qv", np.zeros(1)), ("q_descale", np.zeros(1)), ("k_descale", np.zeros(1)),
                                         ("v_descale", np.zeros(1)), ("attention_chunk", 64)])
def test_what_is_not_here_is_refused_by_name(rng, name, value):
    q, k, v = inputs(rng)
    for call in (lambda: flash_attn_interface.flash_attn_func(q, k, v, **{name: value}),
                 lambda: flash_attn_interface.flash_attn_varlen_func(q, k, v, None, None, 1, 1, **{name: value}),
                 lambda: flash_attn_interface.flash_attn_with_kvcache(q, k, v, **{name: value})):
        with pytest.raises(NotImplementedError, match=name):
            call()


def test_install():
    code = ("import flashattn.compat as compat\n"
            "compat.install(); compat.install()\n"
            "import flash_attn, flash_attn_interface\n"
            "from flash_attn.flash_attn_interface import flash_attn_func as a\n"
            "from flash_attn import flash_attn_func as b\n"
            "assert a is b and flash_attn.__version__.startswith('2.')\n"
            "assert flash_attn_interface.flash_attn_func is not a\n"
            "import sys, types\n"
            "sys.modules['flash_attn'] = types.ModuleType('flash_attn')\n"
            "try: compat.install()\n"
            "except ImportError as error: assert 'flash_attn is already loaded' in str(error)\n"
            "else: raise SystemExit('not refused')\n")
    # bert_padding needs PyTorch: without it the other modules must do
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
