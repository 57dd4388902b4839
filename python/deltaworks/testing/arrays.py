"""NumPy arrays with exactly the dtype, shape and strides that a problem gives a tensor.

Such an array is a view of a buffer that spans just the elements it can reach, so that an engine
which strays further is seen by an address sanitizer.
"""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np

from deltaworks.problem import Problem, Tensor

DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float64": np.dtype(np.float64),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
}
_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def span_bytes(tensor: Tensor) -> int:
    """Bytes from the first to the last element that the strides reach."""
    lowest, highest = _reach(tensor)
    return (highest - lowest) * DTYPES[tensor.dtype].itemsize


def dense_bytes(tensor: Tensor) -> int:
    """Bytes of as many elements without gaps."""
    count = DTYPES[tensor.dtype].itemsize
    for size in tensor.shape:
        count *= size
    return count


def require_memory(problem: Problem) -> None:
    """ValueError if the problem's tensors alone are more than this machine's memory."""
    needed = sum(span_bytes(tensor) for tensor in problem.tensors.values())
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise ValueError(
            f"the tensors of {problem} take {needed / 1e9:.3g} GB, "
            f"more than this machine's {there / 1e9:.3g} GB"
        )


def empty(tensor: Tensor) -> np.ndarray:
    """An array of any content."""
    dtype = DTYPES[tensor.dtype]
    if 0 in tensor.shape:
        return np.empty(tensor.shape, dtype)
    lowest, highest = _reach(tensor)
    buffer = np.empty((highest - lowest) * dtype.itemsize, np.uint8)
    strides = [stride * dtype.itemsize for stride in tensor.strides]
    return np.ndarray(tensor.shape, dtype, buffer, -lowest * dtype.itemsize, strides)


def laid_out(name: str, values: np.ndarray, tensor: Tensor) -> np.ndarray:
    """An array that holds `values`; ValueError where its strides give one place two values."""
    array = empty(tensor)
    array[...] = values
    if not same_bits(array, np.broadcast_to(values, array.shape)):
        raise ValueError(
            f"{name}: strides {list(tensor.strides)} put different values into the same memory"
        )
    return array


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays of one dtype hold the same bits; NaN equals itself then."""
    bits = _BITS[a.dtype.itemsize]
    return np.array_equal(np.ascontiguousarray(a).view(bits), np.ascontiguousarray(b).view(bits))


def require_match(name: str, array: np.ndarray, tensor: Tensor) -> None:
    """Raises if an array is not what the problem describes: an engine would leave its memory."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, got {type(array).__name__}")
    if array.dtype != DTYPES[tensor.dtype]:
        raise TypeError(f"{name} must be {tensor.dtype}, got {array.dtype}")
    if array.shape != tensor.shape:
        raise ValueError(f"{name} must have shape {list(tensor.shape)}, got {list(array.shape)}")
    strides = [stride // array.itemsize for stride in array.strides]
    for size, got, expected in zip(array.shape, strides, tensor.strides, strict=True):
        if array.size > 0 and size > 1 and got != expected:
            raise ValueError(f"{name} must have strides {list(tensor.strides)}, got {strides}")


def _reach(tensor: Tensor) -> tuple[int, int]:
    """Offsets of the lowest element and past the highest, from the base."""
    if 0 in tensor.shape:
        return 0, 0
    ends = [(n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True)]
    return sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends) + 1
