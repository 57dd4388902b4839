"""deltaworks.testing: random inputs with a problem's own memory layout, and running on them."""

import numpy as np
import pytest
import torch

from deltaworks import NotSupportedError, Problem, ops
from deltaworks.cli.verify import PROBLEMS
from deltaworks.testing import make_inputs, run_problem
from deltaworks.testing.arrays import DTYPES, empty, laid_out, same_bits, span_bytes
from deltaworks.testing.execute import Run


def strides_in_elements(array):
    return tuple(stride // array.itemsize for stride in array.strides)


@pytest.mark.parametrize("text", PROBLEMS)
def test_inputs_are_what_the_problem_describes(text):
    problem = Problem(text)
    inputs = make_inputs(problem, seed=1)
    assert inputs.keys() == problem.inputs.keys()
    for name, tensor in problem.inputs.items():
        array = inputs[name]
        assert (array.dtype, array.shape) == (DTYPES[tensor.dtype], tensor.shape), name
        assert strides_in_elements(array) == tensor.strides, name
        assert np.isfinite(array.astype(np.float64)).all(), name


def test_inputs_come_from_the_seed():
    problem = Problem("gdn:fwd:bf16:N2T9H2K8V8:final")
    one, same, other = (make_inputs(problem, seed) for seed in (0, 0, 1))
    more = make_inputs(Problem("gdn:fwd:bf16:N2T9H2K8V8:final:state"), seed=0)
    for name in ("q", "k", "v", "g", "beta"):
        assert same_bits(one[name], same[name]) and same_bits(one[name], more[name])
        assert not same_bits(one[name], other[name])


@pytest.mark.parametrize("io", ["fp32", "bf16", "fp16", "fp64"])
def test_keys_are_no_longer_than_one_without_the_norm(io):
    keys = make_inputs(Problem(f"gdn:fwd:{io}:N1T500H2K40V4"))["k"].astype(np.float64)
    norms = np.sqrt(np.square(keys).sum(-1))
    assert 0.98 < norms.min() and norms.max() <= 1


def test_gates_and_betas_are_in_their_ranges():
    inputs = make_inputs(Problem("gdn:fwd:fp32:N1T500H2K4V4"))
    assert (inputs["g"] <= 0).all() and (inputs["g"] >= -1).all()
    assert (inputs["beta"] >= 0).all() and (inputs["beta"] <= 1).all()
    linear = make_inputs(Problem("gdn:fwd:fp32:N1T500H2K4V4:linear"))["g"]
    assert (linear > 0).all() and (linear <= 1).all()
    logits = make_inputs(Problem("gdn:fwd:fp32:N1T500H2K4V4:sigmoid"))["beta"]
    assert logits.min() < -1 and logits.max() > 1


def test_sequences():
    problem = Problem("gdn:fwd:fp32:N3T10H1K4V4:cu_seqlens=i64")
    assert make_inputs(problem)["cu_seqlens"].tolist() == [0, 3, 6, 10]
    assert make_inputs(problem, lengths=[2, 0, 7])["cu_seqlens"].tolist() == [0, 2, 2, 9]
    for lengths in ([1, 2], [5, 5, 1], [-1, 1, 1]):
        with pytest.raises(ValueError, match="3 numbers >= 0 with a sum of at most 10"):
            make_inputs(problem, lengths=lengths)


def test_pools():
    inputs = make_inputs(Problem("gdn:fwd:fp32:N3T9H1K4V4:pool=2"))
    assert sorted(inputs["state_indices"].tolist()) == [-1, 0, 1]
    inputs = make_inputs(Problem("gdn:fwd:fp32:N3T9H1K4V4:pool=50"))
    assert len(set(inputs["state_indices"].tolist())) == 3


def test_every_layout_runs_to_the_same_bits():
    dense = Problem("gdn:fwd:bf16:N2T12H2K8V4:l2norm")
    reversed_rows = Problem(
        "gdn:fwd:bf16:N2T12H2K8V4:l2norm:q@-20x9x1:k@3x100x40:v@8x-4x-1:o@30x14x3"
    )
    inputs = make_inputs(dense)
    moved = {
        name: laid_out(name, array, reversed_rows.tensors[name]) for name, array in inputs.items()
    }
    expected, got = run_problem(dense, inputs)["o"], run_problem(reversed_rows, moved)["o"]
    assert strides_in_elements(got) == (30, 14, 3)
    assert same_bits(got, expected)


def test_expanded_inputs():
    problem = Problem("gdn:fwd:fp32:N1T6H3K4V4:k@0x4x1:g@0x0:v@12x4x0")
    inputs = make_inputs(problem)
    assert (inputs["g"] == inputs["g"][0, 0]).all()
    assert np.ptp(inputs["v"], axis=2).max() == 0 and np.ptp(inputs["v"]) > 0
    contiguous = Problem("gdn:fwd:fp32:N1T6H3K4V4")
    dense = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    assert same_bits(run_problem(problem, inputs)["o"], run_problem(contiguous, dense)["o"])


def test_strides_that_share_memory_are_refused():
    with pytest.raises(ValueError, match=r"q: strides \[1, 1, 1\] put different values"):
        make_inputs(Problem("gdn:fwd:fp32:N1T6H3K4V4:q@1x1x1"))


def test_arrays_span_no_more_than_they_reach():
    tensor = Problem("gdn:fwd:fp32:N1T6H3K4V4:q@-100x7x2").tensors["q"]
    array = empty(tensor)
    assert span_bytes(tensor) == array.base.nbytes == 4 * (5 * 100 + 2 * 7 + 3 * 2 + 1)
    low, high = np.lib.array_utils.byte_bounds(array)
    assert high - low == array.base.nbytes and low == array.base.ctypes.data


def test_problems_beyond_memory_are_refused():
    with pytest.raises(ValueError, match="more than this machine's"):
        make_inputs(Problem("gdn:fwd:fp32:N1T100000000000H8K128V128"))


def test_runs_as_the_torch_operator_does():
    problem = Problem("gdn:bwd:bf16:N2T40H2HV4K16V8:l2norm:safe:a_log:state:final")
    inputs = make_inputs(problem, seed=3, lengths=[30, 10])
    tensors = {
        name: torch.from_numpy(array.astype(np.float32)).to(getattr(torch, str(array.dtype)))
        if array.dtype.kind != "i"
        else torch.from_numpy(array)
        for name, array in inputs.items()
    }
    flows = [tensors.pop("dO"), tensors.pop("d_final_state")]
    leaves = [x.requires_grad_() for name, x in tensors.items() if name != "cu_seqlens"]
    outputs = ops.gated_delta_net(
        **tensors, output_final_state=True, use_qk_l2norm_in_kernel=True, safe_gate=True
    )
    expected = torch.autograd.grad(outputs, leaves, flows)
    got = run_problem(problem, inputs)
    names = ("dq", "dk", "dv", "dg", "dbeta", "da_log", "d_initial_state")
    assert list(got) == list(names)
    for name, gradient in zip(names, expected, strict=True):
        assert np.array_equal(got[name].astype(np.float32), gradient.float().numpy()), name


def test_pins_the_plan():
    problem = Problem("gdn:fwd:fp32:N1T40H1K8V8")
    inputs = make_inputs(problem)
    fast, exact = run_problem(problem, inputs), run_problem(problem, inputs, "gdn_reference")
    assert not same_bits(fast["o"], exact["o"])
    np.testing.assert_allclose(fast["o"], exact["o"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "expected"),
    [
        (lambda x: x.pop("v"), ValueError, "v is missing"),
        (lambda x: x.update(w=x["v"]), ValueError, "w is no input of gdn:fwd"),
        (lambda x: x.update(v=x["v"].tolist()), TypeError, "v must be a NumPy array, got list"),
        (lambda x: x.update(v=x["v"].astype("f2")), TypeError, "v must be float32, got float16"),
        (lambda x: x.update(v=x["v"][:-1]), ValueError, r"v must have shape \[9, 2, 4\]"),
        (
            lambda x: x.update(v=np.zeros((9, 2, 8), np.float32)[..., ::2]),
            ValueError,
            r"v must have strides \[8, 4, 1\], got \[16, 8, 2\]",
        ),
        (lambda x: x["cu_seqlens"].fill(3), ValueError, "cu_seqlens must start at 0, got 3"),
    ],
)
def test_judges_inputs_before_it_runs(change, error, expected):
    problem = Problem("gdn:fwd:fp32:N1T9H2K4V4")
    inputs = make_inputs(problem)
    change(inputs)
    with pytest.raises(error, match=expected):
        run_problem(problem, inputs)


def test_other_devices_are_refused():
    problem = Problem("gdn:fwd:fp32:N1T9H2K4V4:device=cuda0")
    with pytest.raises(ValueError, match="q must be on the CPU to run on NumPy arrays: cuda0"):
        run_problem(problem, make_inputs(problem))


@pytest.mark.parametrize("plan_name", ["gdn_cpu", "gdn_reference"])
@pytest.mark.parametrize("strides", ["", ":initial_state@16x200x-4x1"])
def test_overwritten_states_are_an_output_and_the_inputs_stay(plan_name, strides):
    text = "gdn:fwd:fp32:N3T9H2K4V4:state=bf16"
    problem = Problem(f"{text}:overwrite{strides}")
    inputs = make_inputs(problem)
    before = inputs["initial_state"].copy()
    got = run_problem(problem, inputs, plan_name)
    expected = run_problem(Problem(f"{text}:final{strides}"), inputs, plan_name)
    assert list(got) == ["o", "final_state"]
    assert all(same_bits(got[name], expected[name]) for name in expected)
    assert not same_bits(got["final_state"], before)
    assert same_bits(inputs["initial_state"], before)
    assert strides_in_elements(got["final_state"]) == problem.tensors["initial_state"].strides


def test_a_run_may_be_repeated():
    problem = Problem("gdn:fwd:fp32:N1T9H2K4V4:state:overwrite")
    call = Run(problem, make_inputs(problem))
    call.time(2)
    call.execute()
    first = call.outputs["final_state"].copy()
    call.execute()
    assert same_bits(call.outputs["final_state"], first)


def test_nobody_runs_it():
    problem = Problem("gdn:fwd:fp32:N1T9H2K4V4:every=64")
    with pytest.raises(NotSupportedError):
        run_problem(problem, make_inputs(problem))
