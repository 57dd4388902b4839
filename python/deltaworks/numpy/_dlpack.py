"""Reads DLPack tensors in place (dlpack.h, versions 0 and 1), through their capsules.

A capsule is borrowed, not consumed: it keeps its name, by which its own destructor knows that it
has to run the tensor's deleter. So the deleter runs once, when the last reference to the capsule
goes, whatever happens in between. Who uses the address holds the capsule.
"""

from __future__ import annotations

import ctypes
from ctypes import py_object
from typing import NamedTuple

from deltaworks import _library as dw


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    """DLTensor: strides in elements, NULL where contiguous; data may be NULL where empty."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class ManagedTensor(ctypes.Structure):
    """DLManagedTensor, in capsules named "dltensor"."""

    _fields_ = [
        ("tensor", Tensor),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class VersionedTensor(ctypes.Structure):
    """DLManagedTensorVersioned, in capsules named "dltensor_versioned"."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


# Of VersionedTensor.flags: the memory is not to be written, or is a copy whose writing none sees.
READ_ONLY, IS_COPIED = 1, 2
VERSION = (1, 0)  # the newest layout known; minor versions add no fields
DTYPES = {  # (DLDataTypeCode, bits)
    (2, 32): dw.FLOAT32,
    (4, 16): dw.BFLOAT16,
    (2, 16): dw.FLOAT16,
    (2, 64): dw.FLOAT64,
    (0, 32): dw.INT32,
    (0, 64): dw.INT64,
    (6, 8): dw.BOOL,
    (1, 8): dw.UINT8,
    (0, 8): dw.INT8,
    (0, 16): dw.INT16,
    (5, 64): dw.COMPLEX64,
}
# DLDeviceType; pinned host memory (kDLCUDAHost, kDLROCMHost) is memory of the CPU.
DEVICES = {1: dw.CPU, 3: dw.CPU, 11: dw.CPU, 2: dw.CUDA}

# Prototypes of our own: those that hang on ctypes.pythonapi belong to the whole process.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Borrowed(NamedTuple):
    """A DLPack tensor in the terms of c_api.h; valid as long as `capsule` lives."""

    dtype: int
    item_bytes: int  # of an element, where dtype is not OTHER
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    device_type: int
    device_index: int
    address: int | None
    writeable: bool
    capsule: object


def borrow(array, what: str) -> Borrowed:
    """The tensor that array.__dlpack__ gives out; `what` names it in errors.

    Raises BufferError where it gives out none, with its own text.
    """
    try:
        capsule = _capsule(array)
    except BufferError as error:
        raise BufferError(f"{what}: {error}") from error
    tensor, writeable = _tensor(capsule, what)
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim > 0 else ()
    if tensor.ndim > 0 and tensor.strides:
        strides = tuple(tensor.strides[: tensor.ndim])
    else:
        strides = _contiguous(shape)
    dtype = dw.OTHER
    if tensor.dtype.lanes == 1:
        dtype = DTYPES.get((tensor.dtype.code, tensor.dtype.bits), dw.OTHER)
    device_type = DEVICES.get(tensor.device.type, dw.OTHER_DEVICE)
    return Borrowed(
        dtype,
        tensor.dtype.bits // 8,
        shape,
        strides,
        device_type,
        0 if device_type == dw.CPU else tensor.device.index,  # the CPU has no index
        None if tensor.data is None else tensor.data + tensor.byte_offset,
        writeable,
        capsule,
    )


def _capsule(array):
    try:
        return array.__dlpack__(max_version=VERSION, copy=False)
    except TypeError:  # from before version 1, which brought both arguments
        return array.__dlpack__()


def _tensor(capsule, what):
    """(the tensor in a capsule, whether it may be written)."""
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = VersionedTensor.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        if managed.major != VERSION[0]:
            raise BufferError(
                f"{what}: DLPack must be of version 1 or older, got {managed.major}.{managed.minor}"
            )
        return managed.tensor, not managed.flags & (READ_ONLY | IS_COPIED)
    if _is_valid(capsule, b"dltensor"):
        return ManagedTensor.from_address(_get_pointer(capsule, b"dltensor")).tensor, True
    raise BufferError(f"{what}: __dlpack__ must return a fresh DLPack capsule, got {capsule!r}")


def _contiguous(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
