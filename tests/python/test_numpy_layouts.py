"""Strided arrays are read where they lie and give the bits of contiguous ones."""

import itertools

import numpy as np
import pytest

import layouts
from cases import Case, build
from run_op import assert_same_bits
from test_numpy_kit import run, to_numpy

CASES = [
    Case(lengths=(17, 0, 70), tail=3, heads=(2, 2, 4), K=33, V=20),
    Case(
        lengths=(40, 5),
        heads=(4, 4, 1),
        K=64,
        V=64,
        io="bf16",
        beta="io",
        gate="bf16",
        state="bf16",
    ),
    Case(lengths=(33, 2), heads=(6, 2, 2), io="fp16", regime="safe", a_log="fp32", dt_bias="fp16"),
    Case(heads=(2, 2, 4), regime="safe", dt_bias="fp32", op="kda"),
    Case(heads=(2, 2, 4), io="bf16", w="io", guard=True, op="gdn2"),
    Case(heads=(2, 2, 4), tail=3, steps=2, token_major=True, op="gdp"),
    Case(heads=(2, 2, 4), io="fp16", D="channel", z=True, tail=3, op="mamba2"),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def torch_layout(layout):
    """One of layouts.py, as an array."""

    def convert(x):
        return to_numpy(layout(x))

    convert.__name__ = layout.__name__
    return convert


def reversed_axes(x):
    """Negative strides on every axis."""
    return np.flip(np.flip(to_numpy(x)).copy())


def fortran_order(x):
    return np.asfortranarray(to_numpy(x))


def field_of_a_record(x):
    """A field of a structured array whose other fields keep it aligned."""
    x = to_numpy(x)
    records = np.zeros(x.shape, [("other", x.dtype, 3), ("x", x.dtype)])
    records["x"] = x
    return records["x"]


def read_only(x):
    x = to_numpy(x).copy()
    x.flags.writeable = False
    return x


def memory_map(tmp_path):
    count = itertools.count()

    def convert(x):
        x = to_numpy(x)
        file = tmp_path / f"array{next(count)}"
        target = np.memmap(file, x.dtype, "w+", offset=x.itemsize, shape=x.shape)
        target[...] = x
        return target

    return convert


ALL = [
    *map(torch_layout, layouts.ALL),
    reversed_axes,
    fortran_order,
    field_of_a_record,
    read_only,
]


@pytest.mark.parametrize("layout", ALL, ids=lambda f: f.__name__)
@every_case
def test_layouts_agree_with_contiguous_arrays(case, layout):
    problem = build(case)
    views = [layout(x) for x in (*problem.inputs.values(), problem.d_o, problem.d_final)]
    assert any(
        not (x.flags.c_contiguous and x.flags.writeable) or x.ctypes.data % 16 for x in views
    ), "this layout changes nothing"
    assert_same_bits(run(problem, convert=layout), run(problem))


@every_case
def test_a_memory_map_is_an_array(case, tmp_path):
    problem = build(case)
    assert_same_bits(run(problem, convert=memory_map(tmp_path)), run(problem))


@pytest.mark.parametrize("axis", [0, 1, -1, None])
@every_case
def test_zero_strides_agree_with_copies(case, axis):
    """np.broadcast_to along one axis, and of a single number along all."""

    def broadcast(x):
        x = to_numpy(x)
        if x.dtype.kind == "i" or x.ndim < 2:  # offsets must increase
            return x
        first = x.flat[0] if axis is None else np.take(x, [0], axis)
        return np.broadcast_to(first, x.shape)

    problem = build(case)
    assert 0 in broadcast(problem.inputs[problem.op.q]).strides
    expected = run(problem, convert=lambda x: broadcast(x).copy())
    assert_same_bits(run(problem, convert=broadcast), expected)


def test_axes_of_length_one_may_have_any_stride():
    """NumPy gives them strides that are no multiples of the element, which nobody steps."""
    problem = build(Case(lengths=(1,), heads=(1, 1, 1), K=8, V=4, l2norm=True))

    def odd_strides(x):
        x = to_numpy(x)
        strides = [s + 1 if n == 1 else s for n, s in zip(x.shape, x.strides, strict=True)]
        return np.lib.stride_tricks.as_strided(x, x.shape, strides)

    assert odd_strides(problem.inputs["q"]).strides[0] % 4
    assert_same_bits(run(problem, convert=odd_strides), run(problem))
