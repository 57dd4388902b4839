"""deltaworks.testing.bounds and its token loop, against the tests' own tolerances and oracle."""

import re
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import bounds as torch_bounds
import oracle
from deltaworks import Problem, _library
from deltaworks._operations import OPERATIONS
from deltaworks.cli.verify import PROBLEMS
from deltaworks.testing import bounds, compare, make_inputs, run_problem
from deltaworks.testing.loop import token_loop

# Names of gradients there are those of their inputs, and of every output "o".
INPUT_OF = {
    gradient: name
    for operation in OPERATIONS.values()
    for name, gradient in operation.gradients.items()
} | {"y": "o"}
BACKWARD_FP32 = "gdn:bwd:fp32:N3T70H2HV4K33V17:l2norm:safe:a_log:dt_bias:state:final"


def to_torch(array):
    if array.dtype.kind == "i":
        return torch.from_numpy(np.ascontiguousarray(array))
    wide = torch.from_numpy(array.astype(np.float64))
    return wide.to(getattr(torch, str(array.dtype)))


def test_the_numbers_in_cpp_agree():
    text = (Path(__file__).parents[1] / "cpp" / "tolerances.h").read_text()

    def numbers(name):
        found = re.search(rf" {name}(?:\[\])? = ([^;]+);", text)[1].strip("{}")
        return [float(number) for number in found.split(", ")]

    dtypes = ("float32", "bfloat16", "float16")
    assert numbers("kForward") == [bounds.FORWARD[dtype] for dtype in dtypes]
    assert numbers("kBackward") == [bounds.BACKWARD[dtype] for dtype in dtypes]
    assert numbers("kVanished16") == [bounds.VANISHED["float16"]]
    for name, value in {
        "kGateSum": bounds.GATE_SUM,
        "kLoop": bounds.LOOP,
        "kLargest": bounds.MAXIMUM,
        "kNotTiny": bounds.NOT_TINY,
        "kGateFloor": bounds.GATE_FLOOR,
        "kSmallGroup": bounds.SMALL_GROUP,
    }.items():
        assert numbers(name) == [value], name


def test_the_bounds_agree():
    for io in torch_bounds.FORWARD:
        for dtype in torch_bounds.FORWARD:
            for name in ("o", "final_state", *INPUT_OF):
                expected = torch_bounds.bound(INPUT_OF.get(name, name), io, dtype)
                got = bounds.bound(name, *(str(x).removeprefix("torch.") for x in (io, dtype)))
                assert got == expected, (name, io, dtype)


def options_of(problem):
    """The oracle's, whose arguments each operation takes in part."""
    flags = problem.flags
    if problem.variant == "mamba2":
        low, high = problem.dt_bounds
        return dict(dt_softplus=not flags & _library.DT_LINEAR, dt_min=low, dt_max=high)
    return dict(
        scale=problem.scale,
        use_qk_l2norm_in_kernel=bool(flags & _library.L2NORM),
        use_beta_sigmoid_in_kernel=bool(flags & _library.BETA_SIGMOID),
        allow_neg_eigval=bool(flags & _library.ALLOW_NEG_EIGVAL),
        beta_guard=bool(flags & _library.BETA_GUARD),
        safe_gate=bool(flags & _library.SAFE_GATE),
        gate_domain=problem.gate_domain,
        gate_lower_bound=problem.gate_lower_bound,
        gate=problem.gate,
        num_householder=problem.num_householder,
    )


OTHERS = (
    "kda:bwd:fp32:N2T20H2HV4K12V5:safe:bound=-2:a_log:dt_bias:sigmoid:neg:scale=0.4:final",
    "kda:bwd:fp32:N2T20H2K12V5:linear",
    "gdn2:bwd:fp32:N2T20H2HV4K12V5:safe:softplus:a_log:l2norm:guard:final",
    "gdn2:fwd:bf16:N2T20H2K12V5:l2norm:sigmoid:guard:beta=bf16",
    "gdp:bwd:fp32:N2T20H2HV4K12V5:n=3:token_major:l2norm:sigmoid:state:final",
    "gdp:bwd:fp32:N2T20H2K12V5:n=1:token_major=k",
    "mamba2:bwd:fp32:N2T20H4G2P5S12:DP:z:linear_dt:dt_min=0.1:dt_max=0.8:dt_bias",
)


@pytest.mark.parametrize("text", [*PROBLEMS, BACKWARD_FP32, *OTHERS])
def test_the_token_loop_is_the_oracles(text):
    problem = Problem(text)
    inputs = make_inputs(problem, seed=5)
    got = token_loop(problem, inputs, np.float64)
    tensors = {name: to_torch(array) for name, array in inputs.items()}
    flow, final = problem.operation.flows.values()
    flows = tensors.pop(flow, None), tensors.pop(final, None)
    expected = oracle.run(tensors, options_of(problem), *flows, op=problem.op)
    assert got.keys() == problem.outputs.keys()
    for name, value in got.items():
        assert value.dtype == np.float64 and value.shape == problem.outputs[name].shape
        reference = expected[INPUT_OF.get(name, name)].numpy()
        scale = np.sqrt(np.square(reference).mean())
        assert scale > 1e-4, name
        assert np.abs(value - reference).max() < 1e-10 * scale, name


def test_the_token_loop_works_in_fp32():
    problem = Problem(BACKWARD_FP32)
    inputs = make_inputs(problem)
    narrow, wide = token_loop(problem, inputs), token_loop(problem, inputs, np.float64)
    for name, value in narrow.items():
        assert value.dtype == np.float32
        error = np.sqrt(np.square(value - wide[name]).mean() / np.square(wide[name]).mean())
        assert 1e-8 < error < 1e-5, name


def judged_by_torch(problem, inputs, got, reference, loop):
    """Whether tests/python/bounds.py accepts a tensor, by name."""
    results = [
        {INPUT_OF.get(name, name): to_torch(array) for name, array in arrays.items()}
        for arrays in (got, reference, loop)
    ]
    results[1] = {name: tensor.double() for name, tensor in results[1].items()}
    described = types.SimpleNamespace(
        inputs={name: to_torch(array) for name, array in inputs.items()}, may_vanish=set()
    )
    verdicts = {}
    for name in got:
        port = INPUT_OF.get(name, name)
        try:
            torch_bounds.assert_tensor_close(
                described, port, results[0][port], results[1], results[2]
            )
            verdicts[name] = True
        except AssertionError:
            verdicts[name] = False
    return verdicts


def everywhere(part):
    def spoil(x, rng):
        noise = rng.standard_normal(x.shape)
        return x + part * noise * np.sqrt(np.square(x.astype(np.float64)).mean())

    return spoil


def one_place(part):
    def spoil(x, rng):
        x = x.astype(np.float64)
        x[tuple(rng.integers(0, size) for size in x.shape)] += part * np.sqrt(np.square(x).mean())
        return x

    return spoil


def one_head(part):
    def spoil(x, rng):
        x = x.astype(np.float64)
        if x.ndim > 1:
            x[:, -1] *= 1 + part
        return x

    return spoil


@pytest.mark.parametrize(
    "text",
    [
        BACKWARD_FP32,
        "gdn:fwd:fp32:N2T40H2K16V8:l2norm:final",
        "gdn:fwd:bf16:N3T70H2HV4K33V17:l2norm:state:final",
        "gdn:bwd:bf16:N2T50H2K16V8:l2norm:safe:a_log:dt_bias=bf16:g=bf16:state=bf16:final",
        "gdn:bwd:fp16:N2T50H4HK1HV1K16V8:sigmoid",
        "kda:bwd:fp32:N2T40H2HV4K16V8:safe:a_log:dt_bias:l2norm:state:final",
        "kda:bwd:bf16:N2T40H2K16V8:l2norm:g=bf16:final",
        "gdn2:bwd:fp32:N2T40H2K16V8:l2norm:state:final",
        "gdp:bwd:fp32:N2T30H2HV4K16V8:n=2:token_major=k,beta:l2norm:final",
        "gdp:bwd:bf16:N2T30H2K16V8:n=3:l2norm",
        "mamba2:bwd:fp32:N2T40H4G2P8S16:D:z:dt_bias:state:final",
        "mamba2:bwd:bf16:N2T40H4G2P8S16:DP=bf16:z:dt=bf16:final",
    ],
)
@pytest.mark.parametrize("spoil", [everywhere, one_place, one_head])
def test_both_judges_say_the_same(text, spoil):
    problem = Problem(text)
    inputs = make_inputs(problem)
    reference = run_problem(problem, inputs, f"{problem.variant}_reference")
    loop = token_loop(problem, inputs)
    rng = np.random.default_rng(0)
    seen = set()
    for part in (0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 30):
        got = {
            name: spoil(part)(array, rng).astype(array.dtype) for name, array in reference.items()
        }
        rows = {row.tensor: row.ok for row in compare(problem, inputs, got)}
        assert rows == judged_by_torch(problem, inputs, got, reference, loop), part
        seen.update(rows.values())
    assert seen == {True, False}


@pytest.mark.parametrize(
    "text",
    [
        "kda:bwd:fp32:N2T9H2K8V4:safe:a_log:dt_bias:final",
        "gdn2:bwd:fp32:N2T9H2K8V4:l2norm:guard",
        "gdp:bwd:fp32:N2T9H2K8V4:n=2",
        "mamba2:bwd:fp32:N2T9H4G2P4S8:D:z:dt_bias:state",
    ],
)
def test_tokens_of_no_sequence_are_zero(text):
    problem = Problem(text)
    inputs = make_inputs(problem, lengths=[2, 4])
    for name, value in token_loop(problem, inputs).items():
        if value.shape[0] in (9, 18):
            assert (value[-3 * value.shape[0] // 9 :] == 0).all(), name
    rows = compare(problem, inputs, run_problem(problem, inputs))
    assert all(row.ok for row in rows)
    assert {row.tensor for row in rows} == problem.outputs.keys()


def test_rows_hold_the_errors():
    problem = Problem("gdn:fwd:bf16:N2T40H2K16V8:l2norm")
    inputs = make_inputs(problem)
    got = run_problem(problem, inputs)
    [row] = compare(problem, inputs, got)
    assert row.tensor == "o" and row.ok and not row.tiny and row.bound == 1e-2
    got["o"] = (got["o"] * np.float32(1.5)).astype(got["o"].dtype)
    [row] = compare(problem, inputs, got)
    assert not row.ok and row.error == pytest.approx(0.5, rel=0.02)
    assert 45 < row.worst < 60
    got["o"][3, 1, 2] = np.nan
    [row] = compare(problem, inputs, got)
    assert not row.ok and np.isnan(row.error)


def test_one_wrong_token_among_thousands_is_out_of_bounds():
    problem = Problem("gdn:fwd:bf16:N1T3000H1K8V8:l2norm")
    inputs = make_inputs(problem)
    got = run_problem(problem, inputs)
    assert compare(problem, inputs, got)[0].ok
    got["o"][1000] = got["o"][1001]
    [row] = compare(problem, inputs, got)
    assert not row.ok


def test_nothing_is_tested_where_the_reference_is_zero():
    problem = Problem("gdn:bwd:fp32:N1T4H1K8V8:-dO")
    inputs = make_inputs(problem)
    got = run_problem(problem, inputs)
    assert all(row.tiny and row.ok for row in compare(problem, inputs, got))
    got["dv"][2, 0, 3] = 1e-12
    wrong = {row.tensor for row in compare(problem, inputs, got) if not row.ok}
    assert wrong == {"dv"}


@pytest.mark.parametrize("text", ["N0T0H1", "N2T0H1:final", "N1T3H0", "N0T5H2"])
@pytest.mark.parametrize("pass_", ["fwd", "bwd"])
@pytest.mark.parametrize("variant", ["gdn", "kda", "gdn2", "gdp", "mamba2"])
def test_empty_problems(variant, pass_, text):
    dims, *options = text.split(":")
    dims += "P8S8" if variant == "mamba2" else "K8V8"
    options += {"gdp": ["n=2"], "mamba2": ["D", "z"]}.get(variant, [])
    problem = Problem(":".join([variant, pass_, "fp32", dims, *options]))
    inputs = make_inputs(problem)
    rows = compare(problem, inputs, run_problem(problem, inputs))
    assert [row.tensor for row in rows] == list(problem.outputs)
    assert all(row.ok and row.tiny for row in rows)
