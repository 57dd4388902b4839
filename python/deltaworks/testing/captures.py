"""Writes an operator call to a file from which it can be run again: capture()."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from deltaworks import _hooks, _library
from deltaworks.numpy._arrays import view
from deltaworks.problem import Problem
from deltaworks.testing import files
from deltaworks.testing.arrays import DTYPES

FORMAT = "deltaworks call 1"


class Capture:
    """The hook that waits for its call."""

    def __init__(self, path: Path, call: int):
        self.path = path
        self.calls = 0  # seen so far
        self.problem: Problem | None = None  # of the captured call
        self.written = False
        self._call = call
        self._lock = threading.Lock()
        self._next = _hooks.call_hook

    def __call__(self, struct: _library.Problem, tensors: dict[str, Any]) -> None:
        with self._lock:
            number, self.calls = self.calls, self.calls + 1
        if number == self._call:
            self._write(struct, tensors)
        if self._next is not None:
            self._next(struct, tensors)

    def _write(self, struct, tensors):
        try:
            problem = Problem.from_struct(struct)
        except (ValueError, TypeError):
            return  # not valid, has no string: the operator raises the same, and says more
        self.problem = problem
        here = problem.struct()  # the values are brought to the CPU
        for tensor in here.described():
            tensor.device_type, tensor.device_index = _library.CPU, 0
        problem = Problem.from_struct(here)
        described = problem.inputs
        arrays = {
            name: _values(tensors[name], DTYPES[tensor.dtype], name)
            for name, tensor in described.items()
        }
        metadata = {
            "format": FORMAT,
            "problem": str(problem),
            "op": problem.op,
            "pass": problem.pass_,
            "tensors": " ".join(described),
            **files.provenance(),
        }
        files.save(self.path, arrays, metadata)
        self.written = True


@contextlib.contextmanager
def capture(path: str | os.PathLike, call: int = 0) -> Iterator[Capture]:
    """Captures the call-th operator call inside the block, forward or backward, torch or NumPy.

    Calls are counted from 0, in the order in which they are made. The file is written before the
    call runs, so that it is there whatever becomes of the call, unless the problem itself is not
    valid. Not seen and not counted are calls inside graphs of torch.compile, and calls on tensors
    without data (FakeTensor, meta). Raises RuntimeError after a block without errors in which that
    call was not made.
    """
    if call < 0:
        raise ValueError(f"capture: call must be >= 0, got {call}")
    hook = Capture(Path(path), call)
    before, _hooks.call_hook = _hooks.call_hook, hook
    try:
        yield hook
    finally:
        _hooks.call_hook = before
    if hook.calls <= call:
        raise RuntimeError(
            f"capture: call {call} was not seen, the block made {hook.calls} operator calls; calls "
            f"inside graphs of torch.compile and on tensors without data cannot be captured"
        )
    if not hook.written:
        raise RuntimeError(f"capture: call {call} is not valid, nothing was written")


def _values(tensor, dtype: np.dtype, name: str) -> np.ndarray:
    """The values of a NumPy array or of any library's tensor, row-major."""
    if hasattr(tensor, "detach"):  # torch gives out no memory of a tensor that needs a gradient
        tensor = tensor.detach().cpu()
    seen = view(tensor, name)
    values = np.empty(seen.shape, dtype)
    if values.size:
        ends = [(n - 1) * s for n, s in zip(seen.shape, seen.strides, strict=True)]
        lowest, highest = sum(min(x, 0) for x in ends), sum(max(x, 0) for x in ends) + 1
        memory = (ctypes.c_char * ((highest - lowest) * dtype.itemsize)).from_address(
            seen.address + lowest * dtype.itemsize
        )
        strides = [stride * dtype.itemsize for stride in seen.strides]
        values[...] = np.ndarray(seen.shape, dtype, memory, -lowest * dtype.itemsize, strides)
    return values
