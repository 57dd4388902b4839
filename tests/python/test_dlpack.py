"""torch tensors through DLPack: read in place, whatever their strides, and refused as errors."""

import numpy as np
import pytest
import torch

import layouts
import run_op
from cases import Case, build
from deltaworks.numpy import gated_delta_net, gated_delta_net_backward
from run_op import assert_same_bits
from test_errors import failure, valid_call
from test_numpy_kit import run, to_numpy
from test_numpy_layouts import CASES

every_case = pytest.mark.parametrize("case", CASES, ids=str)


def as_it_is(x):
    return x


def zero_strides(x):
    return x if x.dtype in (torch.int32, torch.int64) else layouts.expanded(x, 0)


@pytest.mark.parametrize("layout", [as_it_is, *layouts.ALL, zero_strides], ids=lambda f: f.__name__)
@every_case
def test_torch_tensors_give_the_bits_of_the_torch_operator(case, layout):
    problem = build(case)
    problem.inputs = {name: layout(x) for name, x in problem.inputs.items()}
    problem.d_o, problem.d_final = layout(problem.d_o), layout(problem.d_final)
    assert_same_bits(run(problem, convert=as_it_is), run_op.run(problem))


def test_float64_tensors_go_to_the_reference_engine():
    problem = build(Case(io="fp64", gate="fp64", beta="fp64", state="fp64"))
    got = run(problem, None, "gdn_reference", convert=as_it_is)
    assert_same_bits(got, run(problem, None, "gdn_reference"))


def test_arrays_and_tensors_mix_in_a_call():
    problem = build(CASES[1])
    turn = iter((as_it_is, to_numpy) * 20)
    assert_same_bits(run(problem, convert=lambda x: next(turn)(x)), run(problem))


@pytest.mark.parametrize("tokens,sequences", [(0, 2), (5, 0)])
def test_empty_tensors_have_no_memory(tokens, sequences):
    rows = torch.ones(tokens, 2, 4)
    state = torch.ones(sequences, 2, 4, 4)
    inputs = dict(q=rows, k=rows, v=rows, g=rows[..., 0], beta=rows[..., 0], initial_state=state)
    inputs |= dict(cu_seqlens=torch.zeros(sequences + 1, dtype=torch.int64))
    o, final_state = gated_delta_net(**inputs, output_final_state=True)
    assert o.shape == rows.shape and not o.any()
    assert (final_state == 1).all() and final_state.shape == state.shape
    assert gated_delta_net_backward(**inputs, dO=rows).dv.shape == rows.shape


def test_a_tensor_that_requires_grad_is_refused_in_its_own_words():
    arguments = valid_call()
    arguments["v"].requires_grad_()
    kind, text = failure(lambda: gated_delta_net(**arguments))
    assert kind is BufferError
    assert text == (
        "gated_delta_net: v: Can't export tensors that require gradient, use tensor.detach()"
    )


def test_a_tensor_without_memory_is_refused():
    arguments = valid_call() | {"g": torch.zeros(12, 4, device="meta")}
    kind, text = failure(lambda: gated_delta_net(**arguments))
    assert kind is BufferError and text.startswith("gated_delta_net: g: ") and "meta" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"beta": torch.rand(12, 4).double()},
        {"beta": torch.rand(12, 5)},
        {"g": torch.zeros(12, 4, dtype=torch.int64)},
        {"g": torch.zeros(12, 4, dtype=torch.bool)},
        {"g": torch.zeros(12, 4, dtype=torch.complex128)},
        {"g": torch.zeros(12, 4, dtype=torch.float8_e5m2)},
        {"cu_seqlens": torch.zeros(3, dtype=torch.uint8)},
        {"q": torch.zeros(())},
        {"q": torch.zeros(1, 2, 3, 4, 5)},
        {"cu_seqlens": torch.tensor([0, 7, 5])},
    ],
    ids=str,
)
def test_bad_tensors_raise_what_the_torch_operator_raises(changes):
    from deltaworks import ops

    arguments = valid_call() | changes
    expected = failure(lambda: ops.gated_delta_net(**arguments))
    assert failure(lambda: gated_delta_net(**arguments)) == expected


def test_results_can_go_back_to_torch():
    problem = build(Case(io="fp32"))
    o, _ = gated_delta_net(**problem.inputs, **problem.options)
    tensor = torch.from_dlpack(o)
    assert tensor.data_ptr() == o.ctypes.data and np.array_equal(tensor.numpy(), o)
