# SPDX-License-Identifier: Apache-2.0
"""CuPy and JAX arrays on a GPU."""
import numpy as np
import pytest

import flashattn
from oracle import Problem, judge, visible

SHAPES = (2, 300, 6, 128), (2, 411, 2, 128), (2, 411, 2, 128)


@pytest.fixture
def cupy():
    module = pytest.importorskip("cupy")
    try:
        module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(str(error))
    return module


@pytest.fixture
def jax():
    module = pytest.importorskip("jax")
    try:
        module.devices("cuda")
    except RuntimeError as error:
        pytest.skip(str(error))
    return module


def test_cupy(rng, cupy):
    arrays = [rng.standard_normal(shape).astype(np.float16) for shape in SHAPES]
    q, k, v = map(cupy.asarray, arrays)
    out, lse = flashattn.flash_attn_func(q, k, v, causal=True, return_lse=True)
    assert isinstance(out, cupy.ndarray) and out.device == q.device
    judge(Problem(*arrays, visible(300, 411, True)), {"out": out, "lse": lse})


def test_cupy_current_stream(rng, cupy):
    q, k, v = (cupy.asarray(rng.standard_normal(shape).astype(np.float16)) for shape in SHAPES)
    expected = flashattn.flash_attn_func(q, k, v)
    spin = cupy.RawKernel('extern "C" __global__ void spin() { long long t = clock64(); while (clock64() - t < 20000000) ; }',
                          "spin")
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    for _ in range(20):
        with stream:
            late = cupy.full_like(q, cupy.nan)
            spin((1,), (1,), ())
            late[...] = q
            out = flashattn.flash_attn_func(late, k, v)
            late.fill(cupy.nan)
        stream.synchronize()
        assert (out == expected).all()


def test_jax(rng, jax):
    device = jax.devices("cuda")[0]
    arrays = [rng.standard_normal(shape).astype(np.float16) for shape in SHAPES]
    q, k, v = (jax.device_put(x, device) for x in arrays)
    for _ in range(10):
        out, lse = flashattn.flash_attn_func(q, k, v, causal=True, return_lse=True)
        assert isinstance(out, jax.Array) and out.device == device
    judge(Problem(*arrays, visible(300, 411, True)), {"out": out, "lse": lse})
    assert np.array_equal(flashattn.flash_attn_func(q + 0, k * 1, v, causal=True), np.asarray(out))
