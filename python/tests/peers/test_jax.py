# SPDX-License-Identifier: Apache-2.0
"""JAX arrays on the CPU."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flashattn
from oracle import Problem, judge, visible


def inputs(rng, dtype):
    shapes = (2, 37, 6, 40), (2, 53, 2, 40), (2, 53, 2, 24)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_values_and_gradients(rng, dtype):
    q, k, v = inputs(rng, dtype)
    out, lse = flashattn.flash_attn_func(q, k, v, causal=True, return_lse=True)
    dout = jnp.asarray(rng.standard_normal(out.shape), dtype)
    dq, dk, dv = flashattn.backward(dout, q, k, v, out, lse, causal=True)
    got = {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}
    assert all(isinstance(x, jax.Array) and x.device == q.device for x in got.values())
    judge(Problem(*(np.asarray(x) for x in (q, k, v)), visible(37, 53, True)), got, np.asarray(dout))


def test_results_are_ordinary_arrays(rng):
    q, k, v = inputs(rng, jnp.float32)
    out = flashattn.flash_attn_func(q * 2, k, v)
    before = np.asarray(out).copy()
    del q
    for _ in range(5):
        flashattn.flash_attn_func(*inputs(rng, jnp.float32))
    assert np.array_equal(out, before) and np.array_equal(out + 1, before + 1)


def test_cache(rng):
    q, k, v = inputs(rng, jnp.float32)
    assert np.array_equal(flashattn.flash_attn_with_kvcache(q, k, v, cache_seqlens=20),
                          flashattn.flash_attn_func(q, k[:, :20], v[:, :20]))
    with pytest.raises(NotImplementedError, match="k: must be None"):
        flashattn.flash_attn_with_kvcache(q, k, v, k[:, :1], v[:, :1], cache_seqlens=20)


def test_inside_jit(rng):
    arrays = inputs(rng, jnp.float32)
    with pytest.raises(TypeError, match="jax.pure_callback"):
        jax.jit(flashattn.flash_attn_func)(*arrays)

    def attention(q, k, v):
        return jax.pure_callback(lambda *x: flashattn.flash_attn_func(*map(np.asarray, x)), jax.ShapeDtypeStruct(
            (2, 37, 6, 24), jnp.float32), q, k, v)

    assert np.array_equal(jax.jit(attention)(*arrays), flashattn.flash_attn_func(*arrays))
