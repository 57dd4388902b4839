"""Arrays as the library sees them: element type, shape, strides and address, read in place.

Judged here is only whether something is an array at all, and whether its elements lie where an
element can be read. All else (shapes, dtypes, devices) is the library's to judge.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias

import ml_dtypes
import numpy as np

from deltaworks import _library as dw
from deltaworks.numpy import _dlpack


class SupportsDLPack(Protocol):
    """A tensor of any library that speaks DLPack."""

    def __dlpack__(self, *args: Any, **options: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


Array: TypeAlias = np.ndarray | SupportsDLPack

# In native byte order: another order is another dtype, which the library does not take.
DTYPES = {
    np.dtype(np.float32): dw.FLOAT32,
    np.dtype(ml_dtypes.bfloat16): dw.BFLOAT16,
    np.dtype(np.float16): dw.FLOAT16,
    np.dtype(np.float64): dw.FLOAT64,
    np.dtype(np.int32): dw.INT32,
    np.dtype(np.int64): dw.INT64,
    np.dtype(np.bool): dw.BOOL,
    np.dtype(np.uint8): dw.UINT8,
    np.dtype(np.int8): dw.INT8,
    np.dtype(np.int16): dw.INT16,
    np.dtype(np.complex64): dw.COMPLEX64,
}
_DTYPE_OF = {number: dtype for dtype, number in DTYPES.items()}


class View(NamedTuple):
    """Where an array's elements are; valid as long as `owner` lives."""

    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    device_type: int
    device_index: int
    address: int | None
    writeable: bool
    owner: object


def view(array: Array, what: str) -> View:
    """Looks at an array; `what` ("gated_delta_net: q") names it in errors.

    Raises:
        TypeError: it is no array.
        ValueError: its base or a stride is no multiple of its element size.
        BufferError: it does not give out its memory.
    """
    if isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray):  # its mask would be lost
            raise TypeError(f"{what} must be an array, got MaskedArray")
        return _view_numpy(array, what)
    if hasattr(type(array), "__dlpack__") and hasattr(type(array), "__dlpack_device__"):
        return _view_dlpack(array, what)
    raise TypeError(f"{what} must be an array, got {type(array).__name__}")


def _view_numpy(array, what):
    dtype, item_bytes = DTYPES.get(array.dtype, dw.OTHER), max(array.itemsize, 1)
    address = array.ctypes.data
    # NumPy's alignment is the element size for every dtype that the library takes.
    if dtype != dw.OTHER and not array.flags.aligned:
        raise ValueError(
            f"{what} must have a base and strides that are multiples of its element size "
            f"({item_bytes} bytes), got strides of {array.strides} bytes from a base "
            f"{address % item_bytes} bytes past such a multiple"
        )
    strides = tuple(stride // item_bytes for stride in array.strides)
    return View(dtype, array.shape, strides, dw.CPU, 0, address, array.flags.writeable, array)


def _view_dlpack(array, what):
    tensor = _dlpack.borrow(array, what)
    if tensor.dtype != dw.OTHER and (tensor.address or 0) % tensor.item_bytes:
        raise ValueError(
            f"{what} must have a base that is a multiple of its element size "
            f"({tensor.item_bytes} bytes), got one {tensor.address % tensor.item_bytes} bytes past "
            f"such a multiple"
        )
    return View(
        tensor.dtype,
        tensor.shape,
        tensor.strides,
        tensor.device_type,
        tensor.device_index,
        tensor.address,
        tensor.writeable,
        tensor.capsule,
    )


def empty(described: dw.Tensor) -> np.ndarray:
    """A fresh array for an output that the library describes (contiguous, in CPU memory)."""
    return np.empty(described.sizes(), _DTYPE_OF[described.dtype])
