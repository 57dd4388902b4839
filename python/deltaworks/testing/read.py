"""Reads a captured call; whatever the file holds, it is a call or a ValueError."""

from __future__ import annotations

import os

import numpy as np

from deltaworks.problem import Problem
from deltaworks.testing import files
from deltaworks.testing.arrays import DTYPES, dense_bytes, laid_out, span_bytes
from deltaworks.testing.captures import FORMAT

_KEYS = {"format", "problem", "op", "pass", "tensors", "deltaworks", "build", "isa"}
# Strides may spread tensors over this many times their size, and a little for small ones.
_SPREAD, _SPREAD_BYTES = 16, 1 << 20


def read_capture(source: str | os.PathLike | bytes) -> tuple[Problem, dict[str, np.ndarray]]:
    """The problem of a captured call and its inputs, in the strides that they had.

    `source` is a path or a file's content. Raises ValueError where it is not a captured call or
    does not agree with itself, OSError where it cannot be read.
    """
    arrays, metadata, size = files.load(source)
    problem = _problem(metadata)
    tensors = problem.inputs
    _same_names("tensors", set(metadata["tensors"].split()), tensors.keys())
    _same_names("file", arrays.keys(), tensors.keys())
    for name, tensor in tensors.items():
        if arrays[name].dtype != DTYPES[tensor.dtype]:
            raise ValueError(f"{name} must be {tensor.dtype}, got {arrays[name].dtype}")
        if arrays[name].shape != tensor.shape:
            raise ValueError(
                f"{name} must have shape {list(tensor.shape)}, got {list(arrays[name].shape)}"
            )
    _require_spread(problem, tensors.values(), size)
    _require_spread(
        problem, problem.outputs.values(), sum(map(dense_bytes, problem.outputs.values()))
    )
    return problem, {name: laid_out(name, arrays[name], tensors[name]) for name in tensors}


def _require_spread(problem, tensors, size: int) -> None:
    """Tensors of `size` bytes without gaps must not take many times as much with them."""
    needed, allowed = sum(map(span_bytes, tensors)), _SPREAD * size + _SPREAD_BYTES
    if needed > allowed:
        raise ValueError(
            f"the strides of {problem} spread its tensors over {needed} bytes, "
            f"more than {allowed} for {size} bytes"
        )


def _problem(metadata: dict[str, str]) -> Problem:
    version = metadata.get("format")
    if version != FORMAT:
        raise ValueError(f"not a captured call: format must be {FORMAT!r}, got {version!r}")
    _same_names("metadata", metadata.keys(), _KEYS)
    try:
        problem = Problem(metadata["problem"])
        problem.dims  # noqa: B018, judges the problem
    except TypeError as error:
        raise ValueError(str(error)) from None
    for key, value in (("op", problem.op), ("pass", problem.pass_)):
        if metadata[key] != value:
            raise ValueError(f"{key} must be {value} as the problem says, got {metadata[key]!r}")
    return problem


def _same_names(what: str, got: set[str], expected: set[str]) -> None:
    if missing := sorted(expected - got):
        raise ValueError(f"{what}: {', '.join(missing)} missing")
    if unknown := sorted(got - expected):
        raise ValueError(f"{what}: {', '.join(map(repr, unknown))} unknown")
