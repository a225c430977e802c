# SPDX-License-Identifier: Apache-2.0
"""What the tests compare with: attention and its gradients in NumPy, written down as the formulas stand, and the judge.

The judge's rule is docs/numerics.md's: an error may be twice that of plain attention with every intermediate rounded to
the dtype of the inputs, plus a few rounding units.
"""
import dataclasses

import numpy as np

try:
    import ml_dtypes
    BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    BFLOAT16 = None

UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def visible(seqlen_q, seqlen_k, causal=False, window_size=(-1, -1)):
    """[seqlen_q, seqlen_k], True where query i sees key j."""
    i, j = np.arange(seqlen_q)[:, None], np.arange(seqlen_k)[None, :]
    position = i if causal == "top_left" else i + seqlen_k - seqlen_q
    seen = np.ones((seqlen_q, seqlen_k), bool)
    if causal:
        seen &= j <= position
    left, right = window_size
    if left >= 0:
        seen &= j >= position - left
    if right >= 0:
        seen &= j <= position + right
    return seen


@dataclasses.dataclass
class Problem:
    """q [b, seqlen_q, h, d], k [b, seqlen_k, hk, d], v [b, seqlen_k, hk, dv]; seen, bias broadcastable to
    [b, h, seqlen_q, seqlen_k]; slopes [h] or [b, h]; sink [h]."""
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    seen: np.ndarray
    scale: float = None
    softcap: float = 0.0
    bias: np.ndarray = None
    slopes: np.ndarray = None
    sink: np.ndarray = None

    def solve(self, dout=None, store=None):
        """A dict of out, lse and, for a dout, the gradients. store=None: float64 throughout. Else plain attention:
        float32 arithmetic whose every result is rounded to that dtype. "size of NAME" is the sum of the absolute values
        that were added up for it, the largest: rounding is relative to that, as terms cancel. "reach" is the largest score
        or lse: exp(score - lse) is off by the rounding of its float32 argument."""
        work = np.float64 if store is None else np.float32
        if store is not None and np.dtype(store) == np.float64:
            work = np.float64

        def rounded(x):
            return x.astype(work) if store is None else x.astype(store).astype(work)

        q, k, v = (x.astype(work) for x in (self.q, self.k, self.v))
        group = q.shape[2] // k.shape[2]
        k, v = np.repeat(k, group, 2), np.repeat(v, group, 2)
        scale = work(q.shape[-1]**-0.5 if self.scale is None else self.scale)
        with np.errstate(all="ignore"):
            s = rounded(np.einsum("bihd,bjhd->bhij", q, k) * scale)
            slope = np.ones_like(s)
            if self.softcap:
                tanh = np.tanh(s / work(self.softcap))
                s, slope = rounded(work(self.softcap) * tanh), 1 - tanh * tanh
            if self.bias is not None:
                s = rounded(s + self.bias.astype(work))
            i, j = np.arange(s.shape[2])[:, None], np.arange(s.shape[3])[None, :]
            distance = np.abs(i + s.shape[3] - s.shape[2] - j).astype(work)
            if self.slopes is not None:
                slopes = np.broadcast_to(self.slopes, s.shape[:2]).astype(work)
                s = rounded(s - slopes[:, :, None, None] * distance)
            s = np.where(np.broadcast_to(self.seen, s.shape), s, work(-np.inf))
            sink = None if self.sink is None else self.sink.astype(work)[None, :, None, None]
            top = s.max(-1, keepdims=True, initial=-np.inf)
            if sink is not None:
                top = np.maximum(top, sink)
            top = np.where(np.isneginf(top), 0, top)
            total = np.exp(s - top).sum(-1, keepdims=True)
            if sink is not None:
                total = total + np.exp(sink - top)
            lse = top + np.log(total)
            p = rounded(np.where(np.isneginf(s), 0, np.exp(s - np.where(np.isneginf(lse), 0, lse))))
            out = rounded(np.einsum("bhij,bjhd->bihd", p, v))
            reach = max(np.abs(x[np.isfinite(x)]).max(initial=0) for x in (s, lse))
            result = {"out": out, "lse": lse[..., 0], "reach": reach, "size of lse": 1 + reach,
                      "size of out": np.einsum("bhij,bjhd->bihd", p, np.abs(v)).max(initial=0)}
            if dout is None:
                return result
            dout = dout.astype(work)
            dp_size = np.einsum("bihd,bjhd->bhij", np.abs(dout), np.abs(v))
            row_size = np.einsum("bihd,bihd->bhi", np.abs(dout), np.abs(out))[..., None]
            ds_size = p * (dp_size + row_size)
            row = np.einsum("bihd,bihd->bhi", dout, out)[..., None]
            dp = rounded(np.einsum("bihd,bjhd->bhij", dout, v))
            ds = rounded(p * (dp - row))
            dt = rounded(ds * slope)

            def group_sum(x):
                return x.reshape(*self.k.shape[:3], group, x.shape[-1]).sum(3)

            result["dq"] = rounded(scale * np.einsum("bhij,bjhd->bihd", dt, k))
            result["dk"] = rounded(group_sum(scale * np.einsum("bhij,bihd->bjhd", dt, q)))
            dq_size = scale * np.einsum("bhij,bjhd->bihd", ds_size, np.abs(k))
            dk_size = scale * group_sum(np.einsum("bhij,bihd->bjhd", ds_size, np.abs(q)))
            result["size of dq"], result["size of dk"] = (np.abs(x).max(initial=0) for x in (dq_size, dk_size))
            result["size of dv"] = group_sum(np.einsum("bhij,bihd->bjhd", p, np.abs(dout))).max(initial=0)
            result["dv"] = rounded(group_sum(np.einsum("bhij,bihd->bjhd", p, dout)))
            if self.bias is not None:
                axes = tuple(n for n, extent in enumerate(self.bias.shape) if extent == 1)
                result["dbias"] = ds.sum(axes, keepdims=True)
                result["size of dbias"] = ds_size.sum(axes, keepdims=True).max(initial=0)
            if self.slopes is not None:
                axes = (2, 3) if self.slopes.ndim == 2 else (0, 2, 3)
                result["dalibi_slopes"] = -(ds * distance).sum(axes)
                result["size of dalibi_slopes"] = (ds_size * distance).sum(axes).max(initial=0)
            if sink is not None:
                result["dsink"] = -(np.exp(sink - lse) * row).sum((0, 2, 3))
                result["size of dsink"] = (np.exp(sink - lse) * row_size).sum((0, 2, 3)).max(initial=0)
            return result


def dtype_name(x):
    return str(x.dtype).rpartition(".")[2]


def to_numpy(x):
    """float64 NumPy values of any array."""
    if hasattr(x, "detach"):
        return x.detach().cpu().double().numpy()
    if hasattr(x, "get"):
        x = x.get()
    return np.asarray(x).astype(np.float64)


def judge(problem, got, dout=None):
    """Asserts that each array of the dict `got` is within its budget. The dtype of q is the plain computation's."""
    expected = problem.solve(dout)
    plain = problem.solve(dout, store=problem.q.dtype)
    for name, array in got.items():
        value, truth, yardstick = to_numpy(array), expected[name], plain[name].astype(np.float64)
        assert value.shape == truth.shape, f"{name}.shape = {value.shape}, not {truth.shape}"
        assert np.array_equal(np.isneginf(value), np.isneginf(truth)), f"{name}: -inf is not where it should be"
        value, truth, yardstick = (np.where(np.isneginf(x), 0, x) for x in (value, truth, yardstick))
        floor = 4 * (UNITS[dtype_name(array)] + UNITS["float32"] * expected["reach"]) * expected[f"size of {name}"]
        for norm, floor in ((lambda x: np.abs(x).max(initial=0.0), floor),
                            (lambda x: np.sqrt((x * x).sum()), floor * truth.size**0.5)):
            error, budget = norm(value - truth), 2 * norm(yardstick - truth) + floor
            assert error <= budget, f"{name}: error {error:.3g}, budget {budget:.3g}"  # NaN fails
