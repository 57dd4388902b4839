"""deltaworks.Problem: strings as values, what they describe, and what is wrong with them."""

import copy
import pickle

import pytest

from deltaworks import NotSupportedError, Problem, _library
from deltaworks.cli.verify import PROBLEMS

BF16 = "gdn:fwd:bf16:N4T8192H16HV32K128V128:l2norm"


def test_describes_the_call():
    problem = Problem(BF16)
    assert (problem.op, problem.pass_, problem.variant) == ("gated_delta_net", "forward", "gdn")
    assert problem.dims == (8192, 4, 128, 128, 16, 16, 32, 32)
    assert problem.dims.HO == 32
    q, g = problem.tensors["q"], problem.tensors["g"]
    assert q == ("bfloat16", (8192, 16, 128), (2048, 128, 1), "cpu")
    assert (g.dtype, g.shape) == ("float32", (8192, 32))
    assert list(problem.inputs) == ["q", "k", "v", "g", "beta", "cu_seqlens"]
    assert list(problem.outputs) == ["o"]
    assert problem.flags == _library.L2NORM
    assert problem.scale is None and problem.gate_domain == "log"
    assert problem.plan_name == "gdn_cpu"


@pytest.mark.parametrize(
    ("text", "op", "name", "shape"),
    [
        ("kda:fwd:bf16:N1T9H2HV4K16V8", "kimi_delta_attention", "g", (9, 4, 16)),
        ("gdn2:fwd:bf16:N1T9H2HV4K16V8:w=bf16", "gated_delta_net_v2", "w", (9, 4, 8)),
        ("gdp:fwd:bf16:N1T9H2K16V8:n=3", "gated_delta_product", "k", (27, 2, 16)),
        ("gdp:fwd:bf16:N1T9H2K16V8:n=3:token_major", "gated_delta_product", "beta", (9, 3, 2)),
        ("mamba2:fwd:bf16:N1T9H4G2P8S16", "mamba2", "B", (9, 2, 16)),
        ("mamba2:fwd:bf16:N1T9H4G2P8S16:dt_max=0.1:DP:z", "mamba2", "D", (4, 8)),
    ],
)
def test_describes_every_operation(text, op, name, shape):
    problem = Problem(text)
    assert (problem.op, str(problem)) == (op, text)
    assert problem.tensors[name].shape == shape
    assert Problem(str(problem)) == problem


def test_describes_the_options():
    problem = Problem(
        "gdn:bwd:fp16:N2T9H2K3V5:linear:scale=0.25:state=bf16:final:-dk:q@999x40x2:device=cuda1"
    )
    assert problem.pass_ == "backward"
    assert (problem.gate_domain, problem.scale) == ("linear", 0.25)
    assert problem.tensors["q"] == ("float16", (9, 2, 3), (999, 40, 2), "cuda1")
    assert problem.tensors["d_final_state"].dtype == "bfloat16"
    assert list(problem.inputs)[-2:] == ["dO", "d_final_state"]
    assert list(problem.outputs) == ["dq", "dv", "dg", "dbeta", "d_initial_state"]


@pytest.mark.parametrize("text", PROBLEMS)
def test_canonical_strings_give_the_problem_back(text):
    problem = Problem.parse(text)
    assert Problem(str(problem)) == problem
    assert str(Problem(str(problem))) == str(problem)
    assert eval(repr(problem)) == problem
    assert pickle.loads(pickle.dumps(problem)) == copy.deepcopy(problem) == problem


def test_equal_by_what_is_described():
    one = Problem("gdn:fwd:fp32:N1T7H2K4V4:l2norm:final")
    other = Problem("gdn:fwd:fp32:K4V4HK2HV2H2T7N1:final:beta=fp32:l2norm:q@8x4x1")
    assert one == other and hash(one) == hash(other) and len({one, other}) == 1
    different = Problem("gdn:fwd:fp32:N1T7H2K4V4:l2norm:final:q@9x4x1")
    assert one != different and one != str(one)


def test_pins_plans():
    problem = Problem(BF16)
    pinned = problem.pinned("gdn_reference")
    assert str(pinned) == BF16 + ":plan=gdn_reference"
    assert (problem.pinned_plan, pinned.pinned_plan) == (None, "gdn_reference")
    assert pinned.plan_name == "gdn_reference"
    assert pinned.pinned(None) == problem


def test_a_struct_is_the_callers_own():
    problem = Problem(BF16)
    struct = problem.struct()
    struct.flags = 0
    assert Problem.from_struct(struct) == Problem(BF16.removesuffix(":l2norm"))
    assert problem.flags == _library.L2NORM


def test_explains():
    cpu, reference = Problem(BF16).explain()
    assert (cpu.plan_name, cpu.accepts, cpu.reasons) == ("gdn_cpu", True, ())
    assert cpu.workspace_bytes > 0 and "thread" in cpu.configuration
    assert reference.plan_name == "gdn_reference" and not reference.accepts
    assert "bfloat16" in reference.reasons[0]


def test_the_final_state_may_be_in_place():
    problem = Problem("gdn:fwd:bf16:N1T8H1K8V4:state=bf16:overwrite:initial_state@64x32x8x1")
    assert problem.overwrites and not Problem(BF16).overwrites
    assert "final_state" not in problem.tensors and "initial_state" in problem.inputs
    assert list(problem.outputs) == ["o", "final_state"]
    assert problem.outputs["final_state"] == problem.tensors["initial_state"]


def test_nobody_runs_it():
    problem = Problem("gdn:fwd:bf16:N1T8H1K8V8:every=64")
    with pytest.raises(NotSupportedError, match="checkpoint_every_n_tokens"):
        problem.plan_name  # noqa: B018


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected VARIANT:PASS:IO:DIMS"),
        ("gla:fwd:fp32:N1T1H1K1V1", "gla"),
        ("gdp:fwd:fp32:N1T1H1K1V1", "n=STEPS"),
        ("gdn:fwd:fp32:N1T1H1K1V1:frobnicate", "frobnicate"),
        ("gdn:fwd:fp32:N1T1H1K1V1\0:l2norm", "NUL"),
        ("gdn:fwd:fp32:N1T1H1K600V1", "must be in 1..512, got 600"),
        ("gdn:fwd:fp32:N1T1H1K1V1:neg", "allow_neg_eigval needs"),
    ],
)
def test_says_what_is_wrong(text, expected):
    with pytest.raises(ValueError, match=expected):
        Problem(text)


def test_wants_a_string():
    with pytest.raises(TypeError, match="problem string must be a str, got NoneType"):
        Problem(None)
