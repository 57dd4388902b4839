"""One operation as a special case of another, by the library itself and by the oracle."""

import pytest
import torch

import bounds
import oracle
from cases import Case, build
from operations import GDN, GDN2, GDP, KDA
from run_op import assert_same_bits, run

SHAPE = {"lengths": (17, 0, 70), "tail": 3, "heads": (2, 2, 4), "K": 33, "V": 20}
FP64 = dict.fromkeys(("io", "gate", "beta", "state"), "fp64")
TIGHT = 1e-12


class Twin:
    """A problem's tensors as another operation's; bounds and run_op read it as a problem."""

    def __init__(self, problem, op, options=None, **inputs):
        self.case, self.op, self.may_vanish = problem.case, op, problem.may_vanish
        self.inputs = {**problem.inputs, **inputs}
        self.options = {**problem.options, **(options or {})}
        self.d_o, self.d_final = problem.d_o, problem.d_final


def channels(x, count):
    """A number a head for `count` channels, by a zero stride."""
    return x[..., None].expand(*x.shape, count)


def as_gdn2(problem):
    beta = problem.inputs["beta"]
    case = problem.case
    return Twin(problem, GDN2, beta=channels(beta, case.K), w=channels(beta, case.V))


def as_kda(problem):
    return Twin(problem, KDA, g=channels(problem.inputs["g"], problem.case.K))


def summed(x):
    return x.double().sum(-1)


def check_sum(name, got, expected, bound):
    error, scale = (got - expected.double()).square().mean(), expected.double().square().mean()
    assert scale > 0 and (error / scale).sqrt() < bound, name


@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("regime", ["moderate", "strong", "slow_fast", "resets"])
def test_gdn2_with_one_beta_is_kda(regime, io):
    """Outputs, and the gradients with respect to what both have; beta's is the sum of those of
    GDN-2's beta and w."""
    problem = build(Case(op="kda", io=io, regime=regime, **SHAPE))
    reference, loop = oracle.of(problem), oracle.of(problem, torch.float32)
    got = run(as_gdn2(problem))
    common = {name: got[name] for name in reference if name != "beta"}
    bounds.assert_close(problem, common, reference, loop)
    total = summed(got["beta"]) + summed(got["w"])
    check_sum("beta", total, reference["beta"], 2e-2 if io == "bf16" else 2e-5)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("regime", ["moderate", "strong", "weak", "resets"])
def test_kda_with_equal_channels_is_gdn(regime, io):
    problem = build(Case(io=io, regime=regime, **SHAPE))
    reference, loop = oracle.of(problem), oracle.of(problem, torch.float32)
    got = run(as_kda(problem))
    got["g"] = summed(got["g"]).float()
    bounds.assert_close(problem, got, reference, loop)


@pytest.mark.parametrize("twin", [as_kda, as_gdn2], ids=lambda f: f.__name__)
def test_identities_in_float64(twin):
    problem = build(Case(op="gdn" if twin is as_kda else "kda", **FP64, **SHAPE))
    got, expected = run(twin(problem), "reference"), run(problem, "reference")
    if twin is as_kda:
        got["g"] = summed(got["g"])
    else:
        got["beta"] = summed(got["beta"]) + summed(got["w"])
    for name, value in expected.items():
        error = (got[name] - value).abs().max() / value.abs().max()
        assert error < TIGHT, f"{name}: {error:.1e}"


@pytest.mark.parametrize("token_major", [False, True])
@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("regime", ["moderate", "safe", "linear", "beta_two"])
def test_gdp_of_one_step_is_gdn_to_the_bit(regime, engine, token_major):
    """Forward and every gradient."""
    safe = {"a_log": "fp32", "dt_bias": "bf16"} if regime == "safe" else {}
    for io in ("fp32", "bf16", "fp16"):
        case = Case(io=io, regime=regime, l2norm=regime != "beta_two", **safe, **SHAPE)
        problem = build(case)
        expected = run(problem, engine)
        rows = {name: problem.inputs[name] for name in ("k", "v", "beta")}
        if token_major:
            rows = {name: x[:, None] for name, x in rows.items()}
        got = run(Twin(problem, GDP, {"num_householder": 1}, **rows), engine)
        for name in rows:
            got[name] = got[name].reshape(expected[name].shape)
        assert_same_bits(got, expected)


def test_gdp_of_two_steps_is_gdn_on_twice_the_rows():
    """A second row without a decay, read after it."""
    problem = build(Case(op="gdp", steps=2, regime="moderate", **SHAPE))
    tokens, scale = problem.case.tokens, problem.case.K**-0.5
    q, g = problem.inputs["q"], problem.inputs["g"]
    inputs = {
        "q": q.repeat_interleave(2, 0),
        "g": torch.stack([g, torch.zeros_like(g)], 1).flatten(0, 1),
        "cu_seqlens": 2 * problem.inputs["cu_seqlens"],
    }
    twin = Twin(problem, GDN, **inputs)
    twin.options = {"use_qk_l2norm_in_kernel": True, "scale": scale}
    twin.d_o = torch.stack([torch.zeros_like(problem.d_o), problem.d_o], 1).flatten(0, 1)
    got = run(twin)
    for name in ("o", "q", "g"):
        first = 1 if name == "o" else 0  # o is read after the second step, g acts before the first
        got[name] = got[name].unflatten(0, (tokens, 2))
        got[name] = got[name].sum(1) if name == "q" else got[name][:, first]
    reference, loop = oracle.of(problem), oracle.of(problem, torch.float32)
    bounds.assert_close(problem, got, reference, loop)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mamba2_is_a_delta_rule_that_erases_nothing(io, dtype):
    """GDN-2 of the oracle with beta = 0, the step's gates and writes; then D, z."""
    case = Case(op="mamba2", io=io, D="channel", z=True, dt_bias="fp32", **SHAPE)
    problem = build(case)
    wide = {n: x.double() for n, x in problem.inputs.items() if n != "cu_seqlens"}
    step = torch.nn.functional.softplus(wide["dt"] + wide["dt_bias"])
    heads, rows = case.out_heads, (case.tokens, case.out_heads)
    delta = {
        "q": wide["C"].repeat_interleave(heads // 2, 1),
        "k": wide["B"].repeat_interleave(heads // 2, 1),
        "v": wide["x"],
        "g": channels(wide["A"] * step, case.K),
        "beta": torch.zeros(*rows, case.K, dtype=torch.float64),
        "w": channels(step, case.V),
        "initial_state": wide["initial_state"],
        "cu_seqlens": problem.inputs["cu_seqlens"],
    }
    states = oracle.run(delta, {"scale": 1.0}, op=GDN2.name)
    y = (states["o"] + wide["D"] * wide["x"]) * torch.nn.functional.silu(wide["z"])
    y[sum(case.lengths) :] = 0
    expected = oracle.of(problem, dtype)
    tight = TIGHT if dtype == torch.float64 else 1e-5
    for got, other in ((expected["o"], y), (expected["final_state"], states["final_state"])):
        assert (got - other).abs().max() < tight * other.abs().max()
    got = run(problem, backward=False)
    bounds.assert_close(problem, got, {**states, "o": y}, oracle.of(problem, torch.float32))
