"""The NumPy operators compute what the torch operators compute, and what the oracle says."""

import numpy as np
import pytest
import torch

import bounds
import oracle
import run_op
from cases import Case, build, every_operation
from deltaworks.numpy import gated_delta_net, gated_delta_net_backward
from run_op import assert_same_bits, plan_of
from test_numpy_kit import run, to_numpy

SMALL = {
    "lengths": ((17, 0, 40),),
    "tail": (0, 3),
    "heads": ((2, 2, 4), (4, 4, 1), (6, 2, 2), (1, 1, 2)),
    "K": (16, 33),
    "V": (8,),
    "scale": (None, 0.3),
}
FP64 = {"io": ("fp64",), "gate": ("fp64",), "beta": ("fp64",)}
FP64 |= dict.fromkeys(("state", "a_log", "dt_bias"), (None, "fp64"))
FP64 |= dict.fromkeys(("w", "skip"), ("fp64",))


def check(case, plan_name="cpu", executed=None):
    problem = build(case)
    executed = plan_of(problem, executed)
    got = run(problem, plan_name, executed)
    assert_same_bits(got, run_op.run(problem, plan_name, executed=executed))
    loop = oracle.of(problem, torch.float32) if case.io == "fp32" else None
    bounds.assert_close(problem, got, oracle.of(problem), loop)


@pytest.mark.parametrize("case", every_operation(**SMALL), ids=str)
def test_every_pair_of_dtypes_and_options_is_right(case):
    check(case)


@pytest.mark.parametrize("case", every_operation(**SMALL)[::4], ids=str)
def test_the_reference_engine_takes_every_dtype_when_pinned(case):
    check(case, "reference")


@pytest.mark.parametrize("case", every_operation(**SMALL, **FP64)[::2], ids=str)
def test_float64_goes_to_the_reference_engine(case):
    check(case, plan_name=None, executed="reference")


def test_a_longer_problem_is_right():
    check(Case(lengths=(700, 0, 300), tail=24, heads=(2, 2, 4), K=64, V=64, io="bf16"))


def arguments(case=None):
    problem = build(case or Case())
    return {name: to_numpy(x) for name, x in problem.inputs.items()}, to_numpy(problem.d_o)


def test_results_are_fresh_arrays_of_the_inputs_dtypes():
    inputs, d_o = arguments(Case(io="bf16", state="fp16"))
    o, final_state = gated_delta_net(**inputs, output_final_state=True)
    gradients = gated_delta_net_backward(**inputs, dO=d_o)
    assert type(o) is type(final_state) is np.ndarray
    assert o.dtype == inputs["q"].dtype and final_state.dtype == np.float16
    for array in (o, final_state, gradients.dq, gradients.d_initial_state):
        assert array.flags.c_contiguous and array.flags.writeable and array.base is None
    assert type(gradients).__name__ == "GatedDeltaNetGradients"
    assert gradients._fields[:5] == ("dq", "dk", "dv", "dg", "dbeta")


def test_the_final_state_is_none_unless_asked_for():
    inputs, _ = arguments()
    assert gated_delta_net(**inputs)[1] is None


def test_arguments_have_the_order_of_the_torch_operator():
    inputs, d_o = arguments()
    names = ("q", "k", "v", "g", "beta", "cu_seqlens")
    positional = [inputs[name] for name in names]
    state = inputs["initial_state"]
    o, final_state = gated_delta_net(*positional, 0.5, state, True, True)
    expected = gated_delta_net(
        **inputs, scale=0.5, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    assert (o == expected[0]).all() and (final_state == expected[1]).all()
    got = gated_delta_net_backward(*positional, d_o, 0.5, state, True, True)
    expected = gated_delta_net_backward(**inputs, dO=d_o, scale=0.5, use_qk_l2norm_in_kernel=True)
    assert all((a == b).all() for a, b in zip(got, expected, strict=True) if a is not None)


@pytest.mark.parametrize(
    "wanted", [(), ("beta",), ["v", "q"], {"initial_state"}, iter(("g", "a_log", "k"))], ids=str
)
def test_the_wanted_gradients_are_those_of_all(wanted):
    inputs, d_o = arguments()
    everything = gated_delta_net_backward(**inputs, dO=d_o)
    names = tuple(wanted)
    got = gated_delta_net_backward(**inputs, dO=d_o, wanted=iter(names))
    for name, one, whole in zip(oracle.DIFFERENTIABLE, got, everything, strict=True):
        if name in names and name in inputs:
            assert (one == whole).all() and np.abs(one).max() > 0
        else:
            assert one is None


@pytest.mark.parametrize("missing", ["dO", "d_final_state", "both"])
def test_a_missing_gradient_that_flows_in_counts_as_zeros(missing):
    problem = build(Case())
    inputs = {name: to_numpy(x) for name, x in problem.inputs.items()}
    flows = {"dO": to_numpy(problem.d_o), "d_final_state": to_numpy(problem.d_final)}
    absent = flows if missing == "both" else (missing,)
    got = gated_delta_net_backward(**inputs, **{**flows, **dict.fromkeys(absent)})
    zeros = {name: np.zeros_like(flows[name]) for name in absent}
    expected = gated_delta_net_backward(**inputs, **{**flows, **zeros})
    for one, other in zip(got, expected, strict=True):
        assert (one is None and other is None) or (one == other).all()
    assert missing == "both" or np.abs(expected.dv).max() > 0


@pytest.mark.parametrize("tokens,sequences", [(0, 2), (0, 0), (5, 0), (0, 1)])
def test_empty_problems_have_empty_results(tokens, sequences):
    rows = np.ones((tokens, 2, 4), np.float32)
    state = np.arange(sequences * 2 * 4 * 4, dtype=np.float32).reshape(sequences, 2, 4, 4)
    inputs = dict(q=rows, k=rows, v=rows, g=rows[..., 0], beta=rows[..., 0])
    inputs |= dict(cu_seqlens=np.zeros(sequences + 1, np.int32), initial_state=state)
    o, final_state = gated_delta_net(**inputs, output_final_state=True)
    assert o.shape == rows.shape and not o.any()  # rows past the last sequence are zeros
    assert (final_state == state).all()
    gradients = gated_delta_net_backward(**inputs, dO=rows, d_final_state=state)
    assert gradients.dq.shape == rows.shape and not gradients.dq.any()
    assert (gradients.d_initial_state == state).all()
