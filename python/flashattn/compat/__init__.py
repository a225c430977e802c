# SPDX-License-Identifier: Apache-2.0
"""Modules that stand in for others', so that code written for them runs unchanged.

    from flashattn.compat.flash_attn import flash_attn_func        # signatures of the package flash-attn 2
    from flashattn.compat.flash_attn_interface import ...          # signatures of flash-attn 3 (Hopper)

or, before anything imports flash_attn or flash_attn_interface:

    import flashattn.compat
    flashattn.compat.install()
"""
import importlib
import sys

_MODULES = ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn_interface")


def install() -> None:
    """Makes `import flash_attn` and `import flash_attn_interface` find the modules here, in this process. An installed
    package of that name stays on disk and is not loaded. ImportError if one is loaded already."""
    for name in _MODULES:
        loaded = sys.modules.get(name)
        if loaded is not None and not loaded.__name__.startswith(__name__):
            raise ImportError(f"{name} is already loaded from {getattr(loaded, '__file__', 'elsewhere')}: call "
                              "flashattn.compat.install() before it is imported")
    # flash_attn.bert_padding is found through flash_attn when somebody, who then has PyTorch, imports it.
    for name in _MODULES:
        sys.modules[name] = importlib.import_module(f"{__name__}.{name}")
