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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.5},
        {"scale": -2.0},
        {"use_qk_l2norm_in_kernel": True},
        {"use_beta_sigmoid_in_kernel": True},
        {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
        {"safe_gate": True},
        {"gate_domain": "linear"},
    ],
    ids=str,
)
def test_an_option_takes_effect_though_only_it_differs(options):
    """One set of tensors, g in (0, 1) here; a plan kept for other options would show."""
    problem = build(Case(l2norm=False, heads=(2, 2, 4)))
    problem.inputs["g"] = 0.5 * torch.rand(57, 4, generator=torch.Generator().manual_seed(1))
    results = []
    for chosen in ({"use_beta_sigmoid_in_kernel": True, "scale": 0.1}, options):
        problem.options = chosen
        arguments = (problem.inputs, chosen, problem.d_o, problem.d_final)
        reference, loop = oracle.run(*arguments), oracle.run(*arguments, torch.float32)
        results.append(run(problem))
        bounds.assert_close(problem, results[-1], reference, loop)
    assert not torch.equal(results[0]["o"], results[1]["o"])


@pytest.mark.parametrize("reset", [-torch.inf, -1e4, -90.0])
@pytest.mark.parametrize("resets", [5, 13, 27])
def test_gates_after_many_resets_keep_their_digits(resets, reset):
    """An fp32 prefix sum past the resets would have lost the small gates that follow."""
    problem = build(Case(lengths=(64,), regime="resets", heads=(2, 2, 4)))
    g = problem.inputs["g"]
    g[:] = -0.1 * torch.rand(g.shape, generator=torch.Generator().manual_seed(1))
    g[1 : 1 + resets] = reset
    arguments = (problem.inputs, problem.options, problem.d_o, problem.d_final)
    reference, loop = oracle.run(*arguments), oracle.run(*arguments, torch.float32)
    bounds.assert_close(problem, run(problem), reference, loop)


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


@pytest.mark.parametrize("tokens", [4, 40])
@pytest.mark.parametrize("heads", [(1, 1, 1), (2, 2, 4)])
def test_expanding_states_are_finite_where_the_fp32_loop_is(tokens, heads):
    """With unnormalised keys, |k|^2 of about 16, the state grows some 3-fold a token."""
    problem, loop = expanding(tokens, heads)
    for name, value in run(problem).items():
        assert loop[name].isfinite().all() and value.isfinite().all(), name
    assert loop["o"].abs().max() > 10.0 ** (tokens // 3)


@pytest.mark.parametrize("heads", [(1, 1, 1), (2, 2, 4)])
def test_outputs_are_finite_until_the_fp32_loop_overflows(heads):
    """Up to the token before: within the last one the order of operations decides."""
    problem, loop = expanding(150, heads)
    rows = run(problem)["o"][:150].isfinite().all(-1)
    loop_rows = loop["o"][:150].isfinite().all(-1)
    for head in range(rows.shape[1]):
        finite = loop_rows[:, head]
        overflow = 150 if finite.all() else finite.int().argmin().item()
        assert overflow > 80
        assert rows[: overflow - 1, head].all(), f"head {head}"
    assert not loop_rows.all()


@pytest.mark.parametrize("l2norm", [False, True])
@pytest.mark.parametrize("reset", [-torch.inf, -1e4])
def test_a_reset_empties_even_a_state_near_overflow(reset, l2norm):
    """The decay comes first: 0 times the state, and never 0 times a product that overflowed."""
    problem = build(Case(lengths=(40,), K=64, l2norm=l2norm))
    problem.inputs["initial_state"][:] = 3e38
    problem.inputs["g"][0] = reset
    problem.d_final[:] = 0
    arguments = (problem.inputs, problem.options, problem.d_o, problem.d_final)
    reference, loop = oracle.run(*arguments), oracle.run(*arguments, torch.float32)
    got = run(problem)
    for name in ("o", "final_state", "v"):
        assert loop[name].isfinite().all()
        bounds.assert_tensor_close(problem, name, got[name], reference, loop)
    assert (got["initial_state"] == 0).all()  # nothing of that state is left to matter


@pytest.mark.parametrize("q_size,k_size", [(1, 30), (100, 1)])
def test_a_state_near_overflow_is_read_after_its_decay(q_size, k_size):
    """Products with the state before its decay would overflow; those of the recurrence do not."""
    problem = build(Case(lengths=(40,), K=64, l2norm=False))
    problem.inputs["initial_state"].normal_().mul_(1e37)
    problem.inputs["g"][0] = -80
    problem.inputs["q"][0] = q_size
    problem.inputs["k"][0] = k_size
    problem.inputs["beta"][0] = 1 / (64 * k_size**2)
    problem.d_final[:] = 0
    arguments = (problem.inputs, problem.options, problem.d_o, problem.d_final)
    reference, loop = oracle.run(*arguments), oracle.run(*arguments, torch.float32)
    got = run(problem)
    for name in ("o", "final_state", "q", "k", "v"):
        assert loop[name].isfinite().all()
        bounds.assert_tensor_close(problem, name, got[name], reference, loop)


@pytest.mark.parametrize("K", [4, 16, 32])
def test_equal_keys_with_beta_two_are_within_their_bounds(K):
    """Reflections about one key: a key's rounding must not act alike on every pair of rows."""
    problem = build(Case(lengths=(512,), K=K, V=K, heads=(1, 1, 1), l2norm=False))
    key = problem.inputs["k"][0, 0]
    problem.inputs["k"][:] = key / key.norm()
    problem.inputs["g"][:] = 0
    problem.inputs["beta"][:] = 2
    arguments = (problem.inputs, problem.options, problem.d_o, problem.d_final)
    reference, loop = oracle.run(*arguments), oracle.run(*arguments, torch.float32)
    bounds.assert_close(problem, run(problem), reference, loop)


def expanding(tokens, heads):
    """(problem, results of the fp32 loop)."""
    problem = build(Case(lengths=(tokens, 3), heads=heads, regime="raw", l2norm=False))
    arguments = (problem.inputs, problem.options, problem.d_o, problem.d_final)
    return problem, oracle.run(*arguments, torch.float32)


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
