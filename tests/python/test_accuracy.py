"""Outputs and every gradient against the float64 token loop, within the bounds of bounds.py."""

import itertools
import random

import pytest
import torch

import bounds
import oracle
from cases import AXES, DIMS, HEADS, LENGTHS, REGIMES, Case, build, pairs, valid
from run_op import run

FP64 = {
    "io": ("fp64",),
    "gate": ("fp64",),
    "beta": ("fp64",),
    "state": (None, "fp64"),
    "a_log": (None, "fp64"),
    "dt_bias": (None, "fp64"),
    "lengths": ((1,), (17,), (0, 33, 5), (64,)),
    "K": (1, 8, 33),
    "V": (1, 8, 33),
}
LONG = [
    Case(lengths=(8192,), heads=(1, 1, 1), K=32, V=16, regime="weak"),
    Case(lengths=(8192, 0, 64), heads=(1, 1, 2), K=16, V=33, regime="resets", io="bf16"),
    Case(lengths=(8192,), heads=(1, 1, 1), K=64, V=64, regime="safe", io="bf16", sigmoid="sigmoid"),
    Case(lengths=(8192,), heads=(2, 1, 1), K=8, V=16, regime="repeated", io="fp16", beta="io"),
    Case(lengths=(512,), heads=(1, 1, 1), K=32, V=32, regime="beta_two", l2norm=False),
]


NEARLY_OVERFLOWN = 2.0**121


def check(case, plan_name="gdn_cpu", executed=None):
    problem = build(case)
    arguments = (problem.inputs, problem.options, problem.d_o, problem.d_final)
    reference = oracle.run(*arguments)
    loop = oracle.run(*arguments, torch.float32) if case.io == "fp32" else None
    bounds.assert_close(problem, run(problem, plan_name, executed=executed), reference, loop)


@pytest.mark.parametrize("case", pairs(), ids=str)
def test_outputs_and_gradients_are_within_their_bounds(case):
    check(case)


@pytest.mark.parametrize("case", LONG, ids=str)
def test_long_sequences_are_within_their_bounds(case):
    check(case)


@pytest.mark.parametrize("case", [c for c in pairs() if c.io != "fp16"][::5], ids=str)
def test_reference_engine_is_within_the_bounds(case):
    check(case, "gdn_reference")


@pytest.mark.parametrize("case", pairs(**FP64), ids=str)
def test_float64_goes_to_the_reference_engine_and_is_exact(case):
    check(case, plan_name=None, executed="gdn_reference")


@pytest.mark.parametrize("io", ["fp32", "bf16", "fp16"])
def test_cpu_engine_is_chosen_where_no_plan_is_named(io):
    check(Case(io=io), plan_name=None, executed="gdn_cpu")


@pytest.mark.parametrize("dim", [1, 511, 512])
def test_extreme_head_dims_are_within_their_bounds(dim):
    check(Case(lengths=(3, 0, 9), K=dim, V=5, l2norm=dim > 1))
    check(Case(lengths=(3, 0, 9), K=5, V=dim))


@pytest.mark.parametrize("regime", ["moderate", "weak"])
def test_scalar_keys_may_be_normalised(regime):
    """Their gradient cancels to nothing, so q and k are left out."""
    problem = build(Case(K=1, regime=regime))
    for name in ("q", "k"):
        problem.inputs[name] += problem.inputs[name].sign()  # well above the norm's 1e-6
    arguments = (problem.inputs, problem.options, problem.d_o, problem.d_final)
    reference, loop = oracle.run(*arguments), oracle.run(*arguments, torch.float32)
    got = run(problem)
    for name in set(got) - {"q", "k"}:
        bounds.assert_tensor_close(problem, name, got[name], reference, loop)
    assert got["q"].abs().max() < 1e-3 and got["k"].abs().max() < 1e-3


@pytest.mark.parametrize("regime", ["safe", "moderate"])
def test_extreme_logits_and_gate_parameters(regime):
    """Betas of exactly 0 and 1, amplitudes near the ends of fp32, gates that saturate."""
    safe = regime == "safe"
    problem = build(
        Case(lengths=(40,), regime=regime, sigmoid="sigmoid", a_log="fp32" if safe else None)
    )
    inputs = problem.inputs
    inputs["beta"][::3] = torch.tensor([-torch.inf, 200.0])
    inputs["beta"][1::3] = torch.tensor([-120.0, torch.inf])
    if safe:
        inputs["a_log"] = torch.tensor([80.0, -80.0])
        inputs["g"] -= 82  # exp(80) softplus(-82 + ...) is about 0.1
        inputs["g"][5] = -torch.inf
        inputs["g"][7] = torch.tensor([0.0, 1e30])
    else:
        inputs["g"][5::7] = torch.tensor([-110.0, -1e38])
        inputs["g"][6::7] = torch.tensor([-0.0, -1e-30])
    arguments = (inputs, problem.options, problem.d_o, problem.d_final)
    reference, loop = oracle.run(*arguments), oracle.run(*arguments, torch.float32)
    bounds.assert_close(problem, run(problem), reference, loop)


@pytest.mark.parametrize("tokens", [4, 40, 150])
@pytest.mark.parametrize("heads", [(1, 1, 1), (2, 2, 4)])
def test_unnormalised_keys_are_finite_where_the_fp32_loop_is(tokens, heads):
    """With |k|^2 of about 16 the state grows some 3-fold a token and overflows before token 150."""
    case = Case(lengths=(tokens, 3), heads=heads, regime="raw", l2norm=False)
    problem = build(case)
    loop = oracle.run(problem.inputs, problem.options, problem.d_o, problem.d_final, torch.float32)
    assert loop["o"].isfinite().all() == (tokens < 150)
    assert loop["o"][loop["o"].isfinite()].abs().max() > 10.0 ** (tokens // 8)
    for name, value in run(problem).items():
        expected = loop[name].isfinite()
        if not expected.all():  # another order of operations overflows up to 2^7 sooner
            expected = loop[name].abs() < NEARLY_OVERFLOWN
        assert value.isfinite()[expected].all(), name


def wider_product():
    """Every (regime, io, lengths, heads) with the other axes drawn; and all regimes at 8192."""
    rng = random.Random(1)
    cases = []
    for regime, io, lengths, heads in itertools.product(REGIMES, AXES["io"], LENGTHS, HEADS):
        row = {"regime": regime, "io": io, "lengths": lengths, "heads": heads}
        for axis in rng.sample(list(AXES), len(AXES)):
            options = [x for x in AXES[axis] if valid({**row, axis: x})]
            row.setdefault(axis, rng.choice(options))
        cases.append(Case(**row, seed=len(cases)))
    for regime, io in itertools.product(REGIMES, AXES["io"]):
        two = regime == "beta_two"
        row = {"lengths": (512 if two else 8192,), "regime": regime, "io": io, "l2norm": not two}
        cases.append(Case(heads=(1, 1, 1), K=32, V=32, **row))
    for key_dim, value_dim in itertools.product(DIMS, DIMS):
        cases.append(Case(lengths=(65, 3), K=key_dim, V=value_dim, l2norm=key_dim > 1))
    return cases


@pytest.mark.full
@pytest.mark.parametrize("case", wider_product(), ids=str)
def test_wider_product_is_within_the_bounds(case):
    check(case)
