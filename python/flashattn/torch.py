# SPDX-License-Identifier: Apache-2.0
"""PyTorch: attention with gradients, torch.compile, autocast; and a stand-in for scaled_dot_product_attention.

    attention(q, k, v, ...)   what flash_attn_func and its relatives call for PyTorch tensors
    sdpa(query, key, value, ...)   torch.nn.functional.scaled_dot_product_attention's signature
    torch.ops.flashattn.forward and .backward   the operators that appear in compiled graphs

Tensors on the CPU and on CUDA, any strides with a contiguous last dimension; another last dimension is copied. On CUDA
the work is enqueued on the current stream. Needs PyTorch 2.4 or newer.

In eager mode an autograd.Function calls C at once: an operator of torch.library costs 10 to 30 microseconds a call.
While a graph is traced, and for subclasses of Tensor, the operator is called; the rules of differentiation are the same
functions for both. Second derivatives are refused.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import torch

from . import attention as _attention

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._types import Options

# What the operators take after q, k, v, in this order: the options of flashattn.attention.
_TENSORS = ("alibi_slopes", "sink", "bias", "mask", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k",
            "leftpad_k", "block_table")
_SCALARS = {  # name: (type in the schema, default)
    "softmax_scale": ("float?", None), "causal": ("str", "none"), "window_left": ("SymInt", -1),
    "window_right": ("SymInt", -1), "softcap": ("float", 0.0), "max_seqlen_q": ("SymInt", 0),
    "max_seqlen_k": ("SymInt", 0), "kernel": ("str", "auto"), "isa": ("str", "auto"), "num_threads": ("int", 0),
    "num_splits": ("int", 0), "deterministic": ("bool", False)}
_INPUTS = 3 + len(_TENSORS)  # q, k, v and the tensors
_PLACES = {"dq": 0, "dk": 1, "dv": 2, "dalibi_slopes": 3, "dsink": 4, "dbias": 5}  # which input a gradient belongs to

_library = torch.library.Library("flashattn", "DEF")
_schema = ", ".join([f"Tensor? {name}" for name in _TENSORS] +
                    [f"{kind} {name}" for name, (kind, _) in _SCALARS.items()])
_library.define(f"forward(Tensor q, Tensor k, Tensor v, {_schema}) -> (Tensor out, Tensor lse)")
_library.define("backward(Tensor dout, Tensor out, Tensor lse, str[] want, "
                f"Tensor q, Tensor k, Tensor v, {_schema}) -> Tensor[]")


def _options(inputs):
    """The options of flashattn.attention in an operator's arguments, which begin with q."""
    options = {name: x for name, x in zip(_TENSORS, inputs[3:_INPUTS]) if x is not None}
    scale, causal, left, right, softcap, max_q, max_k, kernel, isa, threads, splits, deterministic = inputs[_INPUTS:]
    options.update(softmax_scale=scale, causal=causal, window_size=(left, right), softcap=softcap, max_seqlen_q=max_q,
                   max_seqlen_k=max_k, kernel=kernel, isa=isa, num_threads=threads, num_splits=splits,
                   deterministic=deterministic)
    return options


def _contiguous_last(x):
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def _forward(q, k, v, return_lse, options):
    return _attention.forward(_contiguous_last(q), _contiguous_last(k), _contiguous_last(v), return_lse=return_lse,
                              **options)


def _backward(dout, out, lse, want, q, k, v, options):
    dout, q, k, v = (_contiguous_last(x) for x in (dout, q, k, v))
    return list(_attention.backward(dout, q, k, v, out, lse, want=want, **options))


# ---- The operators, for graphs

def _forward_operator(*inputs):
    return _forward(*inputs[:3], True, _options(inputs))


def _backward_operator(dout, out, lse, want, *inputs):
    return _backward(dout, out, lse, want, *inputs[:3], _options(inputs))


def _forward_fake(*inputs):
    q, v, kernel = inputs[0], inputs[2], _options(inputs)["kernel"]
    lse_dtype = q.dtype if kernel == "reference" and q.dtype == torch.float64 else torch.float32
    lse = q.new_empty(q.shape[:-3] + (q.shape[-2], q.shape[-3]), dtype=lse_dtype)
    shape = q.shape[:-1] + v.shape[-1:]
    return torch.empty_like(q) if shape == q.shape else q.new_empty(shape), lse


def _backward_fake(dout, out, lse, want, *inputs):
    return [torch.empty_like(inputs[_PLACES[name]]) for name in want]


for _device in ("CPU", "CUDA"):
    _library.impl("forward", _forward_operator, _device)
    _library.impl("backward", _backward_operator, _device)
torch.library.register_fake("flashattn::forward", _forward_fake, lib=_library)
torch.library.register_fake("flashattn::backward", _backward_fake, lib=_library)


def _save(ctx, inputs, output):
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(out, lse, *inputs[:_INPUTS])
    ctx.scalars = inputs[_INPUTS:]


def _differentiate(ctx, dout, dlse):
    out, lse, *tensors = ctx.saved_tensors
    want = [name for name, place in _PLACES.items() if ctx.needs_input_grad[place]]
    results = torch.ops.flashattn.backward(dout, out, lse, want, *tensors, *ctx.scalars)
    gradients = [None] * (_INPUTS + len(_SCALARS))
    for name, result in zip(want, results):
        gradients[_PLACES[name]] = result
    return tuple(gradients)


torch.library.register_autograd("flashattn::forward", _differentiate, setup_context=_save, lib=_library)


# ---- The same in eager mode

class _Attention(torch.autograd.Function):
    """The first inputs are those of _PLACES. Tensors are kept by save_for_backward, so that autograd notices when one
    is changed in between."""

    @staticmethod
    def forward(ctx, q, k, v, alibi_slopes, sink, bias, options):
        out, lse = _forward(q, k, v, True, options)
        ctx.mark_non_differentiable(lse)
        ctx.options = {name: x for name, x in options.items() if x is not None}
        ctx.names = [name for name in ctx.options if name in _TENSORS]
        ctx.save_for_backward(out, lse, q, k, v, *[ctx.options.pop(name) for name in ctx.names])
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse):
        out, lse, q, k, v, *tensors = ctx.saved_tensors
        want = [name for name, place in _PLACES.items() if ctx.needs_input_grad[place]]
        results = _backward(dout, out, lse, want, q, k, v, {**ctx.options, **dict(zip(ctx.names, tensors))})
        gradients = dict(zip(want, results))
        return *(gradients.get(name) for name in _PLACES), None


# ---- Functions

def _autocast(x, dtype):
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: bool = True,
              **options: Unpack[Options]) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """(out, lse): flashattn.attention.forward, differentiable in q, k, v, alibi_slopes, sink and bias.

    lse is None if return_lse is False and no gradient will be asked for. It is not differentiable. Under torch.autocast
    q, k and v are cast to the type of autocast, as for scaled_dot_product_attention.
    """
    device = "cuda" if q.is_cuda else "cpu"
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        q, k, v = _autocast(q, dtype), _autocast(k, dtype), _autocast(v, dtype)
    if torch.compiler.is_compiling() or type(q) not in _PLAIN:  # a graph is traced, or a subclass decides what happens
        return torch.ops.flashattn.forward(q, k, v, *_flat(**options))
    if torch.is_grad_enabled():
        slopes, sink, bias = options.get("alibi_slopes"), options.get("sink"), options.get("bias")
        for x in (q, k, v, slopes, sink, bias):
            if x is not None and x.requires_grad:
                return _Attention.apply(q, k, v, slopes, sink, bias, options)
    if return_lse:
        return _forward(q, k, v, True, options)
    return _forward(q, k, v, False, options), None


def _flat(*, causal=False, window_size=None, max_seqlen_q=None, max_seqlen_k=None, **options):
    """The operators' arguments after q, k, v."""
    tensors = [options.pop(name, None) for name in _TENSORS]
    left, right = (-1, -1) if window_size is None else window_size
    options.update(causal={False: "none", True: "bottom_right"}.get(causal, causal),
                   window_left=-1 if left is None else int(left), window_right=-1 if right is None else int(right),
                   max_seqlen_q=int(max_seqlen_q or 0), max_seqlen_k=int(max_seqlen_k or 0))
    scalars = [options.pop(name, default) for name, (_, default) in _SCALARS.items()]
    if options:
        raise TypeError(f"{next(iter(options))}: there is no such option")
    return *tensors, *scalars


def _heads_second_last(x, leading):
    """[..., heads, seqlen, head_dim] as [batch, seqlen, heads, head_dim], a view where dimensions allow."""
    if len(leading) != 1 or x.shape[:-3] != leading:
        x = x.expand(*leading, *x.shape[-3:]).reshape(-1, *x.shape[-3:])
    return x.transpose(1, 2)


def _score_tensor(x, leading):
    """attn_mask as [batch or 1, heads or 1, seqlen_q or 1, seqlen_k or 1]."""
    while x.ndim < 4:
        x = x.unsqueeze(0)
    if x.ndim > 4 or (len(leading) > 1 and x.shape[0] > 1):
        x = x.expand(*leading, *x.shape[-3:])
        x = x.reshape(-1, *x.shape[-3:])
    return x


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = None,
         dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None,
         enable_gqa: bool = False) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention, of which it takes signature, layout and meaning.

    query, key, value   [..., heads, seqlen, head_dim], or [batch, seqlen, head_dim] and fewer; leading dimensions
                        broadcast
    attn_mask   bool (True: takes part) or floating (added to the scores), broadcastable to [..., heads, seqlen_q,
                seqlen_k]; not together with is_causal. The memory of what is broadcast is never filled out.
    dropout_p   must be 0
    is_causal   the first query sees only the first key, whatever the lengths (top-left)
    scale       default 1/sqrt(head_dim)
    enable_gqa  allows more heads in query than in key and value

    A query that may see no key gets 0.
    """
    if dropout_p:
        raise NotImplementedError(f"dropout_p = {dropout_p}: must be 0, there is no dropout")
    if attn_mask is not None and is_causal:
        raise ValueError("is_causal = True: must be False where attn_mask is given")
    dimensions = query.ndim
    if min(dimensions, key.ndim, value.ndim) < 2:
        raise ValueError(f"query.ndim = {query.ndim}, key.ndim = {key.ndim}, value.ndim = {value.ndim}: must be >= 2")
    if dimensions <= 3:  # no heads: [batch, seqlen, head_dim]
        query, key, value = query.unsqueeze(-3), key.unsqueeze(-3), value.unsqueeze(-3)
        attn_mask = attn_mask.unsqueeze(-3) if attn_mask is not None and attn_mask.ndim > 2 else attn_mask
    if not enable_gqa and not query.shape[-3] == key.shape[-3] == value.shape[-3]:
        raise ValueError(f"query has {query.shape[-3]} heads, key {key.shape[-3]}, value {value.shape[-3]}: must be "
                         "equal without enable_gqa")
    leading = query.shape[:-3]
    if not leading == key.shape[:-3] == value.shape[:-3]:
        leading = torch.broadcast_shapes(leading, key.shape[:-3], value.shape[:-3])
    options = {}
    if attn_mask is not None:
        name = "mask" if attn_mask.dtype == torch.bool else "bias"
        options[name] = _score_tensor(attn_mask, leading)
    out, _ = attention(*[_heads_second_last(x, leading) for x in (query, key, value)], softmax_scale=scale,
                       causal="top_left" if is_causal else "none", return_lse=False, **options)
    out = out.transpose(1, 2)
    if len(leading) != 1:
        out = out.reshape(*leading, *out.shape[1:])
    return out.squeeze(-3) if dimensions <= 3 else out
