"""Outputs larger than a cache are written past it, which changes no bit of them."""

import numpy as np
import pytest

from deltaworks.problem import Problem
from deltaworks.testing import execute
from deltaworks.testing.arrays import DTYPES, same_bits
from deltaworks.testing.inputs import make_inputs

# 32 MiB of outputs by token at least.
PROBLEMS = [
    "gdn:fwd:fp32:N1T8300H8K64V128:final",
    "gdn2:fwd:fp16:N1T8300H8K64V256",
    "mamba2:fwd:bf16:N1T16500H8P128S64:D:z",
    "kda:bwd:fp32:N1T2300H8K128V96",
    "gdn2:bwd:bf16:N1T3200H8K128V64",
    "gdp:bwd:fp16:N1T3300H8K128V128:n=2",
    "mamba2:bwd:fp32:N1T4500H8P64S64:D:z",
]


def run_at(offset, problem, inputs, monkeypatch):
    """The outputs, each so many bytes after the begin of a cache line."""

    def empty(tensor):
        bytes_ = int(np.prod(tensor.shape)) * DTYPES[tensor.dtype].itemsize
        buffer = np.empty(bytes_ + 128, np.uint8)
        begin = -buffer.ctypes.data % 64 + offset
        return buffer[begin : begin + bytes_].view(DTYPES[tensor.dtype]).reshape(tensor.shape)

    monkeypatch.setattr(execute, "empty", empty)
    return execute.run_problem(problem, inputs)


@pytest.mark.parametrize("text", PROBLEMS)
def test_the_bits_of_large_outputs_do_not_depend_on_where_they_lie(text, monkeypatch):
    problem = Problem(text)
    problem = problem.pinned(f"{problem.variant}_cpu")
    by_token = [t for name, t in problem.outputs.items() if t.shape[0] >= problem.dims.T]
    assert sum(int(np.prod(t.shape)) * DTYPES[t.dtype].itemsize for t in by_token) >= 32 << 20
    inputs = make_inputs(problem)
    aligned = run_at(0, problem, inputs, monkeypatch)
    elsewhere = run_at(4, problem, inputs, monkeypatch)
    assert aligned.keys() == elsewhere.keys() == problem.outputs.keys()
    for name, output in aligned.items():
        assert output.astype(np.float32).any(), name
        assert same_bits(output, elsewhere[name]), name
