# SPDX-License-Identifier: Apache-2.0
"""Arrays of any library as fa_tensor, and new arrays of the same library.

An array is read where it lies: its DLPack capsule holds a DLTensor, which fa_tensor is laid out as, and the address of
that goes to C. A kind of array is a class with

    view(x, keep)          the address of a fa_tensor for x; what must outlive the call is appended to the list `keep`
    empty(x, shape, name)  an array to be written by C, on x's device; of x's dtype, or of the one called `name`
    full(x, shape, value)  an int32 array on x's device, all of one value
    finish(x, like)        what the caller gets for such an array, when `like` was given
    stream(x)              the CUDA stream to enqueue on, 0 for the CPU (and for CUDA's legacy default stream)
    launched(x)            called once everything is enqueued

NumPy, PyTorch and CuPy have one each. Any other library that speaks DLPack and the array API, such as JAX, takes
DLPack.
"""
import ctypes

from ._library import Tensor

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

# DLManagedTensorVersioned: version (2 x uint32), manager_ctx, deleter, flags (uint64), then the DLTensor.
# DLManagedTensor begins with it.
_OFFSET_IN_VERSIONED = 32

_CPU, _CUDA = 1, 2  # DLDeviceType


def _address(capsule):
    try:
        return _pointer(capsule, b"dltensor_versioned") + _OFFSET_IN_VERSIONED
    except ValueError:
        return _pointer(capsule, b"dltensor")


class _Kind:
    """What most kinds have in common."""

    def finish(self, x, like):
        return x

    def stream(self, x):
        return 0

    def launched(self, x):
        pass


class NumPy(_Kind):
    """NumPy arrays. NumPy before 2.1 exports no read-only array, and no NumPy exports bfloat16 (a type of the package
    ml_dtypes): for these the struct is filled here."""

    def __init__(self):
        import numpy
        self.numpy = numpy

    def view(self, x, keep):
        try:
            capsule = x.__dlpack__(max_version=(1, 0))
        except (TypeError, BufferError):
            return self._fill(x, keep)
        keep.append(capsule)
        return _pointer(capsule, b"dltensor_versioned") + _OFFSET_IN_VERSIONED

    def _fill(self, x, keep):
        name, item = x.dtype.name, x.dtype.itemsize
        code = 4 if name == "bfloat16" else {"i": 0, "u": 1, "f": 2, "b": 6}.get(x.dtype.kind)
        if code is None or item > 8 or not x.dtype.isnative:
            raise TypeError(f"dtype {x.dtype} of an array: must be a float, integer or bool in native byte order")
        for stride in x.strides:
            if stride % item:
                raise ValueError(f"a stride of {stride} bytes: must be a multiple of the {item} bytes of {name}")
        shape = (ctypes.c_int64 * x.ndim)(*x.shape)
        strides = (ctypes.c_int64 * x.ndim)(*[stride // item for stride in x.strides])
        tensor = Tensor(x.ctypes.data, _CPU, 0, x.ndim, code, 8 * item, 1, shape, strides, 0)
        keep.append((x, tensor))
        return ctypes.addressof(tensor)

    def empty(self, x, shape, name=None):
        return self.numpy.empty(shape, name or x.dtype)

    def full(self, x, shape, value):
        return self.numpy.full(shape, value, "int32")


class Torch(_Kind):
    """PyTorch tensors on the CPU and on CUDA; the current stream of the tensor's device is used."""

    def __init__(self):
        import torch
        import torch.utils.dlpack
        self.torch = torch
        self.to_dlpack = torch.utils.dlpack.to_dlpack

    def view(self, x, keep):
        if x.is_neg():  # a view of memory that holds the negated values
            x = x.resolve_neg()
        capsule = self.to_dlpack(x)
        keep.append(capsule)
        return _pointer(capsule, b"dltensor")

    def empty(self, x, shape, name=None):
        if name:
            return x.new_empty(shape, dtype=getattr(self.torch, name))
        return self.torch.empty_like(x) if shape == x.shape else x.new_empty(shape)

    def full(self, x, shape, value):
        return x.new_full(shape, value, dtype=self.torch.int32)

    def stream(self, x):
        return self.torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0


class DLPack(_Kind):
    """Arrays of any other library with __dlpack__ and __array_namespace__, on the CPU and on CUDA.

    They may be immutable (JAX). For the CPU a result is therefore a NumPy array that the library then takes over. On
    CUDA it is a new array of the library that nothing else refers to yet. The legacy default stream is used: the
    library orders its inputs before that stream, and the call waits until it is done, since the library would not wait
    for it.
    """

    def __init__(self):
        self.numpy = NumPy()

    def view(self, x, keep):
        if isinstance(x, self.numpy.numpy.ndarray):  # a result for the CPU
            return self.numpy.view(x, keep)
        return self._export(x, keep, 1 if x.__dlpack_device__()[0] == _CUDA else None)  # 1: legacy default stream

    def _export(self, x, keep, stream):
        try:
            capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
        except TypeError:
            capsule = x.__dlpack__(stream=stream)
        keep.append(capsule)
        return _address(capsule)

    def empty(self, x, shape, name=None):
        if x.__dlpack_device__()[0] == _CPU:
            return self.numpy.empty(x, shape, name)
        namespace = x.__array_namespace__()
        dtype = getattr(namespace, name) if name else x.dtype
        return namespace.empty(shape, dtype=dtype, device=x.device)

    def full(self, x, shape, value):
        namespace = x.__array_namespace__()
        return namespace.full(shape, value, dtype=namespace.int32, device=x.device)

    def finish(self, x, like):
        if isinstance(x, self.numpy.numpy.ndarray):
            return like.__array_namespace__().asarray(x, device=like.device)
        return x

    def launched(self, x):
        device, number = x.__dlpack_device__()
        if device == _CUDA:
            _wait_for_device(number)


class CuPy(DLPack):
    """CuPy arrays, on the current stream of their device."""

    def __init__(self):
        super().__init__()
        import cupy
        self.cupy = cupy

    def view(self, x, keep):
        return self._export(x, keep, -1)  # -1: no ordering needed, the stream that x is ready on is the one used

    def empty(self, x, shape, name=None):
        with x.device:
            return self.cupy.empty(shape, dtype=name or x.dtype)

    def full(self, x, shape, value):
        with x.device:
            return self.cupy.full(shape, value, dtype="int32")

    def stream(self, x):
        with x.device:
            return self.cupy.cuda.get_current_stream().ptr

    def launched(self, x):
        pass


def _wait_for_device(number):
    """cuCtxSynchronize in the primary context of a CUDA device; the caller's current context stays."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, popped = ctypes.c_void_p(), ctypes.c_void_p()

    def call(name, *arguments):
        status = getattr(cuda, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} on cuda:{number}: CUDA error {status}")

    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(number))
    try:
        call("cuCtxPushCurrent_v2", context)
        try:
            call("cuCtxSynchronize")
        finally:
            call("cuCtxPopCurrent_v2", ctypes.byref(popped))
    finally:
        call("cuDevicePrimaryCtxRelease_v2", ctypes.c_int(number))


_kinds = {"numpy": NumPy, "torch": Torch, "cupy": CuPy}
_by_type: dict = {}


def _find(x, name):
    for base in type(x).__mro__:  # a subclass may come from another module
        root = base.__module__.partition(".")[0]
        if root in _kinds and hasattr(x, "__dlpack__"):
            break
    else:
        root = None
        if not (hasattr(x, "__dlpack_device__") and hasattr(x, "__array_namespace__")):
            raise TypeError(f"{name} is a {type(x).__module__}.{type(x).__qualname__}: must be an array of NumPy or "
                            "PyTorch, or of a library with DLPack and the array API, such as JAX and CuPy (within "
                            "jax.jit: by jax.pure_callback)")
    if root == "numpy" and hasattr(x, "mask"):
        raise TypeError(f"{name} is a masked array: its mask would be ignored")
    found = _kinds.get(root, DLPack)
    if isinstance(found, type):
        found = _kinds[root] = found()
    return found


def kind(x, name="q"):
    """The class for x, one object per library. `name` is for the error."""
    try:
        return _by_type[type(x)]
    except KeyError:
        _by_type[type(x)] = found = _find(x, name)
        return found
