# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers: models run by flashattn.

    import flashattn.transformers
    flashattn.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fa")

Masks are transformers' own, as for attn_implementation="sdpa": none where causality says it all, else one boolean mask
per batch. So whatever a model asks for (padding, sliding windows, chunks, images that see both ways, static caches) is
what it gets.
"""
from .torch import attention


def attention_forward(module, query, key, value, attention_mask, scaling=None, dropout=0.0, is_causal=None,
                      softcap=None, s_aux=None, position_bias=None, **kwargs):
    """An attention function of transformers: query, key, value [batch, heads, seqlen, head_dim], key and value with the
    model's own number of heads; attention_mask bool or additive [batch, 1 or heads, seqlen_q, seqlen_k] or None;
    position_bias of that shape, added to the scores; s_aux the sinks, [heads]. Returns ([batch, seqlen_q, heads,
    head_dim], None)."""
    if dropout:
        raise NotImplementedError(f"dropout = {dropout}: must be 0, there is no dropout (config.attention_dropout)")
    if kwargs.get("output_attentions"):
        raise NotImplementedError("output_attentions = True: the matrix of weights is never formed")
    options = {"bias": position_bias}
    if attention_mask is not None:
        causal = False
        if not attention_mask.is_floating_point():
            options["mask"] = attention_mask
        else:
            options["bias"] = attention_mask if position_bias is None else attention_mask + position_bias
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = "top_left" if causal and query.shape[-2] > 1 else False
    if s_aux is not None:
        options["sink"] = s_aux.float()
    out, _ = attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), softmax_scale=scaling,
                       causal=causal, softcap=softcap or 0.0, return_lse=False, **options)
    return out, None


def register(name: str = "fa") -> None:
    """Makes attn_implementation=name known to transformers (4.53 or newer), which takes every name with "flash" in it
    for one of the packages that it looks for itself."""
    if "flash" in name:
        raise ValueError(f"name = {name!r}: must not have \"flash\" in it")
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, sdpa_mask)
