# SPDX-License-Identifier: Apache-2.0
"""libflashattn for the scripts beside this file: the structs of python/flashattn, filled from PyTorch tensors."""
import ctypes
import importlib.util
import os
import pathlib

BINDING = pathlib.Path(__file__).resolve().parent.parent / "python" / "flashattn" / "_library.py"


def load(path):
    """The module flashattn._library, with the library at `path`: library, Options, KERNELS, check(). Each call makes a
    module of its own, so that several libraries can be compared."""
    os.environ["FLASHATTN_LIBRARY"] = os.path.abspath(path)
    spec = importlib.util.spec_from_file_location("flashattn._library", BINDING)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensor(flashattn, t):
    """fa_tensor of a PyTorch tensor, whose memory must outlive it."""
    code = 4 if "bfloat16" in str(t.dtype) else 2
    device = (2, t.device.index) if t.is_cuda else (1, 0)
    return flashattn.Tensor(t.data_ptr(), *device, t.ndim, code, t.element_size() * 8, 1,
                            (ctypes.c_int64 * t.ndim)(*t.shape), (ctypes.c_int64 * t.ndim)(*t.stride()), 0)


def addresses(*structs):
    """As the functions of flashattn.library take them."""
    return [ctypes.addressof(s) for s in structs]
