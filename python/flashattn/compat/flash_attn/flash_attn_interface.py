# SPDX-License-Identifier: Apache-2.0
"""Stands in for flash_attn.flash_attn_interface of flash-attn 2.

flashattn.interface has these signatures already: the functions are the same. Two things differ from the original: the
lse of a query that sees no key is -inf, and dropout is refused.
"""
from ...interface import (flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_func,
                          flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func)
from ...kv_cache import flash_attn_with_kvcache

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]
