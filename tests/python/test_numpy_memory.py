"""What a call of the NumPy operators allocates: its outputs and its plan's workspace."""

import gc
import tracemalloc

import numpy as np
import pytest

from cases import Case, build
from deltaworks import _library
from deltaworks import numpy as operators
from deltaworks.numpy import gated_delta_net, gated_delta_net_backward
from operations import OPERATIONS
from test_memory import OWN
from test_numpy_kit import to_numpy
from test_numpy_layouts import ALL

# Python's own objects of a call; a copy of beta, the smallest array, would take 55 kB.
OBJECTS = 30_000


def zero_strides(x):
    x = to_numpy(x)
    return x if x.dtype.kind == "i" else np.broadcast_to(x[:1], x.shape)


def peak_of(function):
    """(result, bytes at the peak of a call over those before it)."""
    function()  # plans are made once
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        result = function()
        return result, tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def arguments(layout, **options):
    case = Case(lengths=(2000, 0, 1450), tail=3, heads=(2, 2, 4), K=48, V=40, **options)
    problem = build(case)
    inputs = {name: layout(x) for name, x in problem.inputs.items()} | problem.options
    flow = {"o": "dO", "y": "dy"}[problem.op.output]
    return inputs, {flow: layout(problem.d_o), "d_final_state": layout(problem.d_final)}


def check(function, results):
    got, peak = peak_of(function)
    booked = sum(array.nbytes for array in results(got)) + _library.last_workspace_bytes()
    assert booked <= peak <= booked + OBJECTS


@pytest.mark.parametrize("layout", [*ALL, zero_strides], ids=lambda f: f.__name__)
@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_call_allocates_its_outputs_and_its_workspace(op, io, layout):
    inputs, flows = arguments(layout, io=io, op=op, **OWN[op])
    name = OPERATIONS[op].name
    forward, backward = (getattr(operators, name + suffix) for suffix in ("", "_backward"))
    check(lambda: forward(**inputs, output_final_state=True), lambda got: got)
    check(
        lambda: backward(**inputs, **flows),
        lambda got: [x for x in got if x is not None],
    )


def test_dlpack_tensors_are_not_copied():
    inputs, flows = arguments(lambda x: x, io="bf16")
    check(lambda: gated_delta_net(**inputs, output_final_state=True), lambda got: got)
    check(
        lambda: gated_delta_net_backward(**inputs, **flows),
        lambda got: [x for x in got if x is not None],
    )


def test_a_backward_allocates_the_wanted_gradients_only():
    inputs, flows = arguments(to_numpy)
    check(
        lambda: gated_delta_net_backward(**inputs, **flows, wanted=["beta"]),
        lambda got: [got.dbeta],
    )


def test_the_measure_sees_a_copy():
    x = np.ones((3453, 4), np.float32)
    _, peak = peak_of(lambda: x.copy())
    assert x.nbytes <= peak and x.nbytes > OBJECTS


def test_calls_leave_nothing_behind():
    """Arrays, plans and errors of 200 calls are gone afterwards."""
    inputs, flows = arguments(to_numpy)
    bad = inputs | {"beta": inputs["beta"][:-1]}

    def call():
        gated_delta_net(**inputs)
        gated_delta_net_backward(**inputs, **flows)
        with pytest.raises(ValueError):
            gated_delta_net(**bad)

    call()
    gc.collect()
    tracemalloc.start()
    try:
        call()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(50):
            call()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < OBJECTS
    finally:
        tracemalloc.stop()
