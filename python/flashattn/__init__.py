# SPDX-License-Identifier: Apache-2.0
"""flashattn: exact attention for NumPy, PyTorch, JAX and CuPy arrays, on CPUs and NVIDIA GPUs.

    flash_attn_func and relatives   the functions of flash-attn, same names, same arguments (flashattn.interface)
    forward, backward, plan, combine   the C library's own calls with all of its options (flashattn.attention)
    flashattn.torch                 sdpa(), operators for torch.compile
    flashattn.transformers          attn_implementation="fa" for Hugging Face models
    flashattn.compat                modules that stand in for flash_attn and flash_attn_interface
"""
from ._library import library as _c
from .attention import backward, combine, forward, plan
from .interface import (flash_attn_combine, flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func,
                        flash_attn_varlen_func, flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func)
from .kv_cache import flash_attn_with_kvcache

__version__ = _c.fa_version_text().decode()
__all__ = ["backward", "combine", "flash_attn_combine", "flash_attn_func", "flash_attn_kvpacked_func",
           "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
           "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache", "forward", "plan"]
