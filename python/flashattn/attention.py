# SPDX-License-Identifier: Apache-2.0
"""The library's own calls, one to one: forward, backward, plan, combine.

Arrays are used where they lie: NumPy, PyTorch, JAX, CuPy, or any with DLPack and the array API; on the CPU or on CUDA;
results are of the same kind, on the same device. Shapes, types and rules are those of include/flashattn.h. For PyTorch,
these functions know nothing of autograd; flashattn.torch does.

Errors: ValueError for an argument that breaks a rule, NotImplementedError for what this version, machine or device
cannot do, MemoryError, RuntimeError for a failing GPU; TypeError for what is no array. The message is the library's
sentence, which names the argument, its value and the rule. Nothing is written then.

The keyword arguments **options of forward, plan and backward, all optional:

    softmax_scale   float; default 1/sqrt(head_dim)
    causal          False, True or "bottom_right" (the last query sees the last key), "top_left" (PyTorch's is_causal)
    window_size     (left, right), inclusive; -1 or None opens a side
    softcap         float; scores become softcap * tanh(score / softcap); 0: none
    alibi_slopes    float32, [heads] or [batch, heads]: score -= slope * |i + seqlen_k - seqlen_q - j|
    sink            float32, [heads]: a logit per head in the softmax's denominator
    bias            float, [batch or 1, heads or 1, seqlen_q or 1, seqlen_k or 1], added to the scores; -inf masks
    mask            bool, shape like bias; True: the query may see the key
    cu_seqlens_q, cu_seqlens_k      int32, [batch + 1]: variable length, sequences one after another
    seqused_q, seqused_k            int32, [batch]: only so many queries, keys of each sequence count
    leftpad_k       int32, [batch]: so many keys at the start of each sequence are padding
    block_table     int32, [batch, max_pages]: k and v are pages [pages, page_size, heads_kv, head_dim]; needs seqused_k
    max_seqlen_q, max_seqlen_k      int: the longest sequence; a longer one is refused where lengths lie on the CPU
    kernel          "auto", "cpu", "reference", "standard", "v1", "v2", "v3", "v4"
    isa             "auto", "portable", "neon", "avx2", "avx512", "avx512_bf16", "amx", "neon_bf16"
    num_threads     int; 0: environment variable FLASHATTN_NUM_THREADS, else all CPUs that the process may use
    num_splits      int; 0: chosen from the shapes; 1: keys are never split, so a row's bits do not depend on its batch
    deterministic   bool, backward: the same bits in every run
"""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional, Union

from ._arrays import kind
from ._library import CAUSAL, ISAS, KERNELS, SET_SOFTMAX_SCALE, SET_WINDOW, Plan, check, library
from ._library import Options as COptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from ._types import Array, Options, Result


def _choice(table, name, value):
    try:
        return table[value]
    except (KeyError, TypeError):
        raise ValueError(f"{name} = {value!r}: must be one of {', '.join(map(str, table))}") from None


_TENSORS = frozenset(("alibi_slopes", "sink", "bias", "mask", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k",
                      "leftpad_k", "block_table"))
_NUMBERS = frozenset(("softcap", "num_threads", "num_splits", "max_seqlen_q", "max_seqlen_k", "deterministic"))


def _options(keep, stream, given):
    """fa_options for the dict `given`, of which None means the default; `keep` gets what must outlive the call."""
    options = COptions(ctypes.sizeof(COptions))
    for name, value in given.items():
        if value is None:
            continue
        if name in _TENSORS:
            setattr(options, name, kind(value, name).view(value, keep))
        elif name == "causal":
            options.causal = _choice(CAUSAL, name, value)
        elif name == "window_size":
            left, right = (-1 if bound is None else int(bound) for bound in value)
            if left != -1 or right != -1:
                options.set |= SET_WINDOW
                options.window_left, options.window_right = left, right
        elif name == "softmax_scale":
            options.set |= SET_SOFTMAX_SCALE
            options.softmax_scale = value
        elif name in _NUMBERS:
            setattr(options, name, value if name == "softcap" else int(value))
        elif name == "kernel":
            options.kernel = _choice(KERNELS, name, value)
        elif name == "isa":
            options.isa = _choice(ISAS, name, value)
        else:
            raise TypeError(f"{name}: there is no such option")
    if stream:
        options.stream = stream
    return options


def _view(name, x, keep):
    return None if x is None else kind(x, name).view(x, keep)


def _lse_shape(shape):
    """[batch, heads, seqlen_q] for q [batch, seqlen_q, heads, head_dim]; [heads, total_q] for variable length."""
    return tuple(shape[:-3]) + (shape[-2], shape[-3])


def _results(of, q, v, with_lse, dtype, kernel):
    shape = tuple(q.shape)
    if len(shape) < 3 or not v.shape:  # the library says what is wrong
        return of.empty(q, shape, dtype), None
    out = of.empty(q, shape[:-1] + (v.shape[-1],), dtype)
    if not with_lse:
        return out, None
    double = kernel == "reference" and str(out.dtype).endswith("float64")
    return out, of.empty(q, _lse_shape(shape), "float64" if double else "float32")


def forward(q: Array, k: Array, v: Array, *, return_lse: bool = False, dtype: Optional[str] = None,
            **options: Unpack[Options]) -> Result:
    """Attention: out [batch, seqlen_q, heads, head_dim_v], or [total_q, heads, head_dim_v] with cu_seqlens_q.

    q     [batch, seqlen_q, heads, head_dim] or, with cu_seqlens_q, [total_q, heads, head_dim]
    k, v  [batch, seqlen_k, heads_kv, head_dim and head_dim_v]; with cu_seqlens_k [total_k, heads_kv, ...]; with
          block_table [pages, page_size, heads_kv, ...]
    All float32, all float16 or all bfloat16; kernel="reference" and "standard" take float64 too.

    dtype        name of out's type: q's (default), "float32" or, of the reference, "float64"
    return_lse   returns (out, lse): lse is the log-sum-exp of each row of scores, a natural logarithm, float32, [batch,
                 heads, seqlen_q] or [heads, total_q]
    **options    see the top of this module
    """
    of: Any = kind(q)
    keep: list[Any] = []
    out, lse = _results(of, q, v, return_lse, dtype, options.get("kernel"))
    c_options = _options(keep, of.stream(q), options)
    check(library.fa_forward(of.view(q, keep), kind(k, "k").view(k, keep), kind(v, "v").view(v, keep),
                             ctypes.addressof(c_options), of.view(out, keep), _view("lse", lse, keep)))
    of.launched(q)
    if return_lse:
        return of.finish(out, q), of.finish(lse, q)
    return of.finish(out, q)


_GRADIENTS = {"dq": "q", "dk": "k", "dv": "v", "dbias": "bias", "dsink": "sink", "dalibi_slopes": "alibi_slopes"}


def backward(dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, *,
             want: Sequence[str] = ("dq", "dk", "dv"), **options: Unpack[Options]) -> tuple[Array, ...]:
    """Gradients of a loss, from dout, its gradient with respect to out: a tuple in the order of `want`.

    dout       shape of out; q's type or float32
    q, k, v, options   as for forward. block_table is refused.
    out, lse   what forward returned for them
    want       names of gradients: "dq", "dk", "dv", "dbias", "dsink", "dalibi_slopes"; each has the shape and type of
               what it belongs to
    """
    of: Any = kind(q)
    keep: list[Any] = []
    inputs = {"q": q, "k": k, "v": v, "bias": options.get("bias"), "sink": options.get("sink"),
              "alibi_slopes": options.get("alibi_slopes")}
    results, addresses = [], {}
    for name in want:
        x = inputs[_choice(_GRADIENTS, "want", name)]
        if x is None:
            raise ValueError(f"want has {name!r}: {_GRADIENTS[name]} must be given then")
        results.append(kind(x).empty(x, tuple(x.shape)))
        addresses[name] = of.view(results[-1], keep)
    c_options = _options(keep, of.stream(q), options)
    for name in ("dbias", "dsink", "dalibi_slopes"):
        if name in addresses:
            setattr(c_options, name, addresses[name])
    check(library.fa_backward(kind(dout, "dout").view(dout, keep), of.view(q, keep), kind(k, "k").view(k, keep),
                              kind(v, "v").view(v, keep), kind(out, "out").view(out, keep),
                              kind(lse, "lse").view(lse, keep), ctypes.addressof(c_options), addresses.get("dq"),
                              addresses.get("dk"), addresses.get("dv")))
    of.launched(q)
    return tuple(of.finish(x, q) for x in results)


def plan(q: Array, k: Array, v: Array, *, return_lse: bool = False, dtype: Optional[str] = None,
         **options: Unpack[Options]) -> dict[str, Union[str, int]]:
    """What forward would run for the same arguments, as a dict: name, kernel, isa, tile_rows, tile_keys, num_splits,
    num_threads, workspace_bytes, note (on a GPU: why a newer kernel was passed over). Raises what forward would
    raise."""
    of: Any = kind(q)
    keep: list[Any] = []
    out, lse = _results(of, q, v, return_lse, dtype, options.get("kernel"))
    c_options = _options(keep, of.stream(q), options)
    info = Plan(ctypes.sizeof(Plan))
    check(library.fa_plan(of.view(q, keep), kind(k, "k").view(k, keep), kind(v, "v").view(v, keep),
                          ctypes.addressof(c_options), of.view(out, keep), _view("lse", lse, keep),
                          ctypes.addressof(info)))
    names = {number: name for name, number in KERNELS.items()}, {number: name for name, number in ISAS.items()}
    return {"name": info.name.decode(), "kernel": names[0][info.kernel], "isa": names[1][info.isa],
            "tile_rows": info.tile_rows, "tile_keys": info.tile_keys, "num_splits": info.num_splits,
            "num_threads": info.num_threads, "workspace_bytes": info.workspace_bytes,
            "note": info.note.decode()}


def combine(out_partial: Array, lse_partial: Array, *, dtype: Optional[str] = None) -> tuple[Array, Array]:
    """Merges results of the same queries over disjoint sets of keys: (out, lse).

    out_partial  float32, [splits, batch, seqlen_q, heads, head_dim_v] or [splits, total_q, heads, head_dim_v]
    lse_partial  float32, [splits, batch, heads, seqlen_q] or [splits, heads, total_q], as forward returns them
    dtype        name of out's type: "float32" (default), "float16" or "bfloat16"
    """
    of: Any = kind(out_partial, "out_partial")
    keep: list[Any] = []
    out = of.empty(out_partial, tuple(out_partial.shape[1:]), dtype)
    lse = of.empty(out_partial, tuple(lse_partial.shape[1:]), "float32")
    check(library.fa_combine(of.view(out_partial, keep), _view("lse_partial", lse_partial, keep), of.view(out, keep),
                             of.view(lse, keep)))
    return of.finish(out, out_partial), of.finish(lse, out_partial)
