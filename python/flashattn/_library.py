# SPDX-License-Identifier: Apache-2.0
"""libflashattn through ctypes: its structs, its functions, its errors as exceptions.

The layouts repeat include/flashattn.h, which also is the manual. The library is the one beside this file; the
environment variable FLASHATTN_LIBRARY names another.
"""
import ctypes
import os
import pathlib

# enum fa_causal
CAUSAL = {False: 0, True: 1, "none": 0, "bottom_right": 1, "top_left": 2}

SET_SOFTMAX_SCALE = 1
SET_WINDOW = 2


class Tensor(ctypes.Structure):
    """fa_tensor, the same as DLPack's DLTensor."""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("dtype_code", ctypes.c_uint8), ("dtype_bits", ctypes.c_uint8),
                ("dtype_lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Options(ctypes.Structure):
    """fa_options."""
    _fields_ = [("size", ctypes.c_size_t), ("set", ctypes.c_uint32), ("softmax_scale", ctypes.c_float),
                ("softcap", ctypes.c_float), ("causal", ctypes.c_int), ("window_left", ctypes.c_int64),
                ("window_right", ctypes.c_int64), ("alibi_slopes", ctypes.c_void_p), ("sink", ctypes.c_void_p),
                ("bias", ctypes.c_void_p), ("mask", ctypes.c_void_p), ("cu_seqlens_q", ctypes.c_void_p),
                ("cu_seqlens_k", ctypes.c_void_p), ("seqused_q", ctypes.c_void_p), ("seqused_k", ctypes.c_void_p),
                ("leftpad_k", ctypes.c_void_p), ("block_table", ctypes.c_void_p), ("max_seqlen_q", ctypes.c_int64),
                ("max_seqlen_k", ctypes.c_int64), ("kernel", ctypes.c_int), ("isa", ctypes.c_int),
                ("num_threads", ctypes.c_int32), ("num_splits", ctypes.c_int32), ("stream", ctypes.c_void_p),
                ("dbias", ctypes.c_void_p), ("dsink", ctypes.c_void_p), ("dalibi_slopes", ctypes.c_void_p),
                ("deterministic", ctypes.c_int32), ("reserved", ctypes.c_int32)]


class Plan(ctypes.Structure):
    """fa_plan_info."""
    _fields_ = [("size", ctypes.c_size_t), ("kernel", ctypes.c_int), ("isa", ctypes.c_int),
                ("name", ctypes.c_char * 64), ("tile_rows", ctypes.c_int32), ("tile_keys", ctypes.c_int32),
                ("num_splits", ctypes.c_int32), ("num_threads", ctypes.c_int32), ("workspace_bytes", ctypes.c_int64),
                ("note", ctypes.c_char * 160)]


def _load():
    path = os.environ.get("FLASHATTN_LIBRARY") or str(pathlib.Path(__file__).with_name("libflashattn.so"))
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{error}: `pip install` puts the library there; the environment variable FLASHATTN_LIBRARY "
                          "names another") from None

    def declare(name, result, *arguments):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments

    pointer = ctypes.c_void_p  # addresses go in as integers: no ctypes object is made for them
    declare("fa_forward", ctypes.c_int, *[pointer] * 6)
    declare("fa_backward", ctypes.c_int, *[pointer] * 10)
    declare("fa_plan", ctypes.c_int, *[pointer] * 7)
    declare("fa_combine", ctypes.c_int, *[pointer] * 4)
    declare("fa_last_error", ctypes.c_char_p)
    declare("fa_version_text", ctypes.c_char_p)
    declare("fa_kernel_name", ctypes.c_char_p, ctypes.c_int)
    declare("fa_isa_name", ctypes.c_char_p, ctypes.c_int)
    return library


def _names(function):
    """The values of an enum by their names; "auto" is 0."""
    numbers = {}
    while (name := function(len(numbers)).decode()) != "unknown":
        numbers[name] = len(numbers)
    return numbers


library = _load()
KERNELS = _names(library.fa_kernel_name)
ISAS = _names(library.fa_isa_name)

# enum fa_status
_EXCEPTIONS = {1: ValueError, 2: NotImplementedError, 3: MemoryError, 4: RuntimeError}


def check(status):
    """Raises the exception for a status that is not FA_OK, with the library's sentence. Of the thread that made the
    call: so at once after it."""
    if status:
        raise _EXCEPTIONS.get(status, RuntimeError)(library.fa_last_error().decode())
