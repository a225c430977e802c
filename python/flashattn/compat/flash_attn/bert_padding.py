# SPDX-License-Identifier: Apache-2.0
"""Stands in for flash_attn.bert_padding: from padded batches to variable length and back. PyTorch only."""
import torch


def index_first_axis(x, indices):
    """x[indices], for a differentiable x."""
    return x.index_select(0, indices)


def unpad_input(hidden_states, attention_mask, unused_mask=None):
    """The rows of hidden_states [batch, seqlen, ...] where attention_mask [batch, seqlen] is set.

    unused_mask   [batch, seqlen] or None: rows that are kept in the result but not counted in seqused

    Returns (hidden_states [total, ...], indices [total] of those rows in the flattened batch, cu_seqlens int32
    [batch + 1], max_seqlen int, seqused int32 [batch]).
    """
    seqused = attention_mask.sum(dim=-1, dtype=torch.int32)
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    rows = hidden_states.reshape(-1, *hidden_states.shape[2:])
    longest = int(lengths.max()) if lengths.numel() else 0
    return index_first_axis(rows, indices), indices, cu_seqlens, longest, seqused


def pad_input(hidden_states, indices, batch, seqlen):
    """The reverse: [total, ...] to [batch, seqlen, ...], 0 elsewhere."""
    padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return padded.index_copy(0, indices, hidden_states).reshape(batch, seqlen, *hidden_states.shape[1:])
