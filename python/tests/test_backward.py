# SPDX-License-Identifier: Apache-2.0
"""backward on NumPy arrays, against NumPy in float64."""
import numpy as np
import pytest

import flashattn
from oracle import Problem, judge, visible
from test_forward import DTYPES, LENGTHS_K, LENGTHS_Q, inputs, normal, offsets, varlen_inputs

ALL = ("dq", "dk", "dv")


def check(rng, q, k, v, problem, want=ALL, **options):
    dout = normal(rng, (*q.shape[:3], v.shape[-1]), "float32").astype(q.dtype)
    out, lse = flashattn.forward(q, k, v, return_lse=True, **options)
    gradients = dict(zip(want, flashattn.backward(dout, q, k, v, out, lse, want=want, **options)))
    judge(problem, gradients, dout)
    return gradients


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True, "top_left"])
@pytest.mark.parametrize("seqlens", [(37, 53), (53, 37), (1, 64)])
def test_causal(rng, dtype, causal, seqlens):
    q, k, v = inputs(rng, dtype, seqlen_q=seqlens[0], seqlen_k=seqlens[1])
    check(rng, q, k, v, Problem(q, k, v, visible(*seqlens, causal)), causal=causal)


def test_score_changes_together(rng):
    q, k, v = inputs(rng)
    bias, mask = normal(rng, (1, 6, 37, 53)), rng.random((2, 1, 1, 53)) < 0.7
    slopes, sink = rng.random((2, 6), np.float32), normal(rng, (6,))
    problem = Problem(q, k, v, visible(37, 53, True, (30, 30)) & mask, 0.3, 2.0, bias, slopes, sink)
    check(rng, q, k, v, problem, ("dsink", "dv", "dq", "dbias", "dk", "dalibi_slopes"), causal=True,
          window_size=(30, 30), softmax_scale=0.3, softcap=2.0, bias=bias, mask=mask, alibi_slopes=slopes, sink=sink)


def test_only_what_is_wanted(rng):
    q, k, v = inputs(rng)
    out, lse = flashattn.forward(q, k, v, return_lse=True)
    dq, dk, dv = flashattn.backward(out, q, k, v, out, lse)
    only, = flashattn.backward(out, q, k, v, out, lse, want=("dk",))
    assert np.array_equal(only, dk)
    with pytest.raises(ValueError, match="'dsink': sink must be given"):
        flashattn.backward(out, q, k, v, out, lse, want=("dsink",))
    with pytest.raises(ValueError, match="want = 'q'"):
        flashattn.backward(out, q, k, v, out, lse, want=("q",))


def test_rows_that_see_no_key(rng):
    q, k, v = inputs(rng, seqlen_q=5, seqlen_k=2)
    gradients = check(rng, q, k, v, Problem(q, k, v, visible(5, 2, True)), causal=True)
    assert not gradients["dq"][:, :3].any()


def test_dout_with_strides_of_its_own(rng):
    q, k, v = inputs(rng)
    out, lse = flashattn.forward(q, k, v, return_lse=True)
    one = normal(rng, (24,))
    spread = np.broadcast_to(one, out.shape)
    turned = np.ascontiguousarray(spread.transpose(1, 2, 0, 3)).transpose(2, 0, 1, 3)
    expected = flashattn.backward(np.ascontiguousarray(spread), q, k, v, out, lse)
    for dout in (spread, turned):
        for a, b in zip(flashattn.backward(dout, q, k, v, out, lse), expected):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("causal", [False, True])
def test_varlen(rng, causal):
    q, k, v = varlen_inputs(rng)
    cu_q, cu_k = offsets(LENGTHS_Q), offsets(LENGTHS_K)
    options = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "causal": causal}
    out, lse = flashattn.forward(q, k, v, return_lse=True, **options)
    dout = normal(rng, out.shape)
    dq, dk, dv = flashattn.backward(dout, q, k, v, out, lse, **options)
    for n, (length_q, length_k) in enumerate(zip(LENGTHS_Q, LENGTHS_K)):
        rows, keys = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
        problem = Problem(q[None, rows], k[None, keys], v[None, keys], visible(length_q, length_k, causal))
        judge(problem, {"dq": dq[None, rows], "dk": dk[None, keys], "dv": dv[None, keys]}, dout[None, rows])


def test_paged_is_refused(rng):
    q, k, v = inputs(rng)
    options = {"block_table": np.array([[0], [1]], np.int32), "seqused_k": np.array([53, 53], np.int32)}
    out, lse = flashattn.forward(q, k, v, return_lse=True, **options)
    with pytest.raises(NotImplementedError, match="block_table"):
        flashattn.backward(out, q, k, v, out, lse, **options)
