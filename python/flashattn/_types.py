# SPDX-License-Identifier: Apache-2.0
"""Types for annotations; nothing here exists for the running program."""
from __future__ import annotations

from typing import Any, Literal, Optional, TypedDict, Union

Array = Any  # of NumPy, PyTorch, JAX, CuPy ...
Result = Any  # an array like q, or a tuple (out, lse), as the call asked for
Causal = Union[bool, Literal["none", "bottom_right", "top_left"]]
Window = tuple[Optional[int], Optional[int]]


class Options(TypedDict, total=False):
    """The keyword arguments that flashattn.attention describes."""
    softmax_scale: Optional[float]
    causal: Causal
    window_size: Optional[Window]
    softcap: Optional[float]
    alibi_slopes: Array
    sink: Array
    bias: Array
    mask: Array
    cu_seqlens_q: Array
    cu_seqlens_k: Array
    seqused_q: Array
    seqused_k: Array
    leftpad_k: Array
    block_table: Array
    max_seqlen_q: Optional[int]
    max_seqlen_k: Optional[int]
    kernel: str
    isa: str
    num_threads: int
    num_splits: int
    deterministic: bool
