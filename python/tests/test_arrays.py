# SPDX-License-Identifier: Apache-2.0
"""What arrays are taken, how errors arrive, and calls from several threads."""
import concurrent.futures
import os
import subprocess
import sys

import numpy as np
import pytest

import flashattn
from oracle import BFLOAT16
from test_forward import inputs


def test_any_strides(rng):
    q, k, v = inputs(rng)
    expected = flashattn.forward(q, k, v)
    for layout in ((0, 2, 1, 3), (1, 0, 2, 3), (2, 1, 0, 3)):
        back = np.argsort(layout)
        turned = [np.ascontiguousarray(x.transpose(layout)).transpose(back) for x in (q, k, v)]
        assert np.array_equal(flashattn.forward(*turned), expected)
    flipped = [np.ascontiguousarray(x[:, ::-1])[:, ::-1] for x in (q, k, v)]
    assert np.array_equal(flashattn.forward(*flipped), expected)
    spread = np.broadcast_to(k[:, :, :1], k.shape)  # a stride of 0
    assert np.array_equal(flashattn.forward(q, spread, v), flashattn.forward(q, np.ascontiguousarray(spread), v))


def test_a_last_dimension_with_gaps_is_refused(rng):
    q, k, v = inputs(rng)
    with pytest.raises(ValueError, match=r"q.strides\[3\] = 2"):
        flashattn.forward(np.repeat(q, 2, -1)[..., ::2], k, v)


def test_read_only_and_unaligned(rng):
    q, k, v = inputs(rng)
    expected = flashattn.forward(q, k, v)
    room = np.zeros(q.nbytes + 1, np.uint8)
    odd = room[1:].view(np.float32).reshape(q.shape)
    odd[...] = q
    for x in (odd, k, v):
        x.flags.writeable = False
    assert np.array_equal(flashattn.forward(odd, k, v), expected)


def test_inputs_stay_as_they_are(rng):
    arrays = inputs(rng)
    copies = [x.copy() for x in arrays]
    flashattn.forward(*arrays, causal=True)
    assert all(np.array_equal(x, y) for x, y in zip(arrays, copies))


@pytest.mark.skipif(BFLOAT16 is None, reason="ml_dtypes is not installed")
def test_bfloat16_of_ml_dtypes(rng):
    q, k, v = (np.asfortranarray(x.astype(BFLOAT16)).swapaxes(0, 0) for x in inputs(rng))
    with pytest.raises(ValueError, match="strides"):
        flashattn.forward(q, k, v)
    q, k, v = (np.ascontiguousarray(x) for x in (q, k, v))
    q.flags.writeable = False
    out = flashattn.forward(q, k[:, ::-1], v[:, ::-1])
    assert out.dtype == BFLOAT16
    assert np.array_equal(out, flashattn.forward(q, np.ascontiguousarray(k[:, ::-1]), np.ascontiguousarray(v[:, ::-1])))


def test_the_path_without_dlpack(rng, monkeypatch):
    """NumPy before 2.1 does not know max_version, and refuses read-only arrays."""
    from flashattn import _arrays
    q, k, v = (x[::-1] for x in inputs(rng))
    mask = rng.random((2, 1, 1, 53)) < 0.7
    expected = flashattn.forward(q, k, v, mask=mask, return_lse=True)
    monkeypatch.setattr(_arrays.NumPy, "view", lambda self, x, keep: self._fill(x, keep))
    for a, b in zip(flashattn.forward(q, k, v, mask=mask, return_lse=True), expected):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("bad, error, words", [
    (lambda q: q.astype(q.dtype.newbyteorder()), TypeError, "byte order"),
    (lambda q: np.ma.masked_array(q), TypeError, "masked"),
    (lambda q: q.astype(np.complex64), (TypeError, ValueError, NotImplementedError), "complex"),
    (lambda q: q.astype(object), TypeError, "object"),
    (lambda q: q.tolist(), TypeError, "q is a builtins.list"),
    (lambda q: None, TypeError, "q is a builtins.NoneType"),
    (lambda q: q[0], ValueError, "q.ndim = 3"),
    (lambda q: q[0, 0, 0, 0], (TypeError, ValueError), "q"),
    (lambda q: q.astype(np.int32), NotImplementedError, "q.dtype = int32"),
])
def test_what_is_no_query(rng, bad, error, words):
    q, k, v = inputs(rng)
    with pytest.raises(error, match=words):
        flashattn.forward(bad(q), k, v)


@pytest.mark.parametrize("options, error, words", [
    ({"window_size": (-2, 0)}, ValueError, "window_left = -2"),
    ({"softcap": -1.0}, ValueError, "softcap"),
    ({"softmax_scale": float("inf")}, ValueError, "softmax_scale"),
    ({"causal": "bottom"}, ValueError, "causal = 'bottom': must be one of"),
    ({"kernel": "v9"}, ValueError, "kernel = 'v9'"),
    ({"isa": "mmx"}, ValueError, "isa = 'mmx'"),
    ({"sink": [1.0] * 6}, TypeError, "sink is a builtins.list"),
    ({"seqused_k": np.array([99, 1], np.int32)}, ValueError, "seqused_k"),
    ({"seqused_k": np.array([9, 1])}, ValueError, "seqused_k.dtype = int64: must be int32"),
    ({"num_threads": -1}, ValueError, "num_threads"),
    ({"nothing": 1}, TypeError, "nothing"),
])
def test_options_that_are_refused(rng, options, error, words):
    with pytest.raises(error, match=words):
        flashattn.forward(*inputs(rng), **options)


@pytest.mark.parametrize("function", [flashattn.flash_attn_func, lambda *x, **y: flashattn.flash_attn_varlen_func(
    *x, None, None, **y)])
def test_dropout_is_refused(rng, function):
    with pytest.raises(NotImplementedError, match="dropout_p = 0.1"):
        function(*inputs(rng), dropout_p=0.1)


def test_many_threads(rng):
    cases = [inputs(rng, seqlen_q=1 + n) for n in range(16)]
    expected = [flashattn.forward(*case, num_threads=1) for case in cases]

    def work(n):
        if n % 5 == 4:  # the sentence of an error belongs to its thread
            with pytest.raises(ValueError, match=f"window_left = -{n}:"):
                flashattn.forward(*cases[n % 16], window_size=(-n, 0))
        return np.array_equal(flashattn.forward(*cases[n % 16], num_threads=1 + n % 2), expected[n % 16])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(400)))


def test_lifetime_of_arguments():
    """No array is kept after a call."""
    import gc
    import weakref
    q = np.zeros((1, 4, 1, 8), np.float32)
    references = sys.getrefcount(q)
    flashattn.forward(q, q, q, bias=np.zeros((1, 1, 4, 4), np.float32))
    with pytest.raises(ValueError):
        flashattn.forward(q, q, q, window_size=(-7, 1))
    gc.collect()
    assert sys.getrefcount(q) == references
    out = flashattn.forward(q, q, q)
    gone = weakref.ref(out)
    del out
    assert gone() is None


def test_needs_nothing_but_python():
    """Importing the package loads no array library."""
    code = ("import sys, flashattn, flashattn.compat.flash_attn_interface\n"
            "print(sorted({'numpy', 'torch', 'jax', 'cupy'} & set(sys.modules)), flashattn.__version__)")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert result.stdout.split() == ["[]", flashattn.__version__]


def test_after_a_fork(rng):
    """A child process, as of multiprocessing and data loaders, computes like its parent."""
    code = ("import os, sys, numpy, flashattn\n"
            "q = numpy.random.default_rng(0).standard_normal((2, 300, 4, 64)).astype('float32')\n"
            "expected = flashattn.forward(q, q, q, num_threads=2)\n"
            "child = os.fork()\n"
            "same = numpy.array_equal(flashattn.forward(q, q, q, num_threads=2), expected)\n"
            "if child == 0: os._exit(0 if same else 1)\n"
            "sys.exit(os.waitpid(child, 0)[1] or not same)\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20, env=os.environ)
