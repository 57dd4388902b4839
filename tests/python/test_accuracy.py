"""Outputs and every gradient against the float64 token loop, within the bounds of bounds.py."""

import functools
import itertools
import random

import pytest
import torch

import bounds
import oracle
from cases import AXES, DIMS, REGIMES, Case, axes_of, build, every_operation, valid
from operations import OPERATIONS
from pairwise import complete
from run_op import plan_of, run

FP64 = {
    "io": ("fp64",),
    "gate": ("fp64",),
    "beta": ("fp64",),
    "state": (None, "fp64"),
    "a_log": (None, "fp64"),
    "dt_bias": (None, "fp64"),
    "w": ("fp64",),
    "skip": ("fp64",),
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
    Case(lengths=(8192,), heads=(1, 1, 1), K=16, V=16, regime="slow_fast", op="kda"),
    Case(lengths=(8192,), heads=(1, 1, 1), K=16, V=16, regime="weak", guard=True, op="gdn2"),
    Case(lengths=(4096,), heads=(1, 1, 1), K=16, V=16, regime="resets", steps=2, op="gdp"),
    Case(lengths=(8192,), heads=(1, 1, 2), K=16, V=16, regime="weak", D="head", op="mamba2"),
    *(
        Case(lengths=(512,), heads=(1, 1, 1), K=32, V=32, regime="beta_two", l2norm=False, op=op)
        for op in ("kda", "gdn2", "gdp")
    ),
]
every_op = pytest.mark.parametrize("op", OPERATIONS)
delta_rules = pytest.mark.parametrize("op", [op for op in OPERATIONS if op != "mamba2"])


def check(case, plan_name="cpu", executed=None):
    check_problem(build(case), plan_name, executed)


def check_problem(problem, plan_name="cpu", executed=None, names=None):
    """Results, those of `names` or all, are within their bounds; returns them."""
    reference = oracle.of(problem)
    loop = oracle.of(problem, torch.float32) if problem.case.io == "fp32" else None
    got = run(problem, plan_name, executed=plan_of(problem, executed))
    for name in names or got:
        bounds.assert_tensor_close(problem, name, got[name], reference, loop)
    return got


@pytest.mark.parametrize("case", every_operation(), ids=str)
def test_outputs_and_gradients_are_within_their_bounds(case):
    check(case)


@pytest.mark.parametrize("case", LONG, ids=str)
def test_long_sequences_are_within_their_bounds(case):
    check(case)


@pytest.mark.parametrize("case", [c for c in every_operation() if c.io != "fp16"][::5], ids=str)
def test_reference_engine_is_within_the_bounds(case):
    check(case, "reference")


@pytest.mark.parametrize("case", every_operation(**FP64), ids=str)
def test_float64_goes_to_the_reference_engine_and_is_exact(case):
    check(case, plan_name=None, executed="reference")


@pytest.mark.parametrize("io", ["fp32", "bf16", "fp16"])
@every_op
def test_cpu_engine_is_chosen_where_no_plan_is_named(op, io):
    check(Case(io=io, op=op), plan_name=None, executed="cpu")


@pytest.mark.parametrize("dim", [1, 511, 512])
@every_op
def test_extreme_head_dims_are_within_their_bounds(op, dim):
    check(Case(lengths=(3, 0, 9), K=dim, V=5, l2norm=dim > 1, op=op))
    check(Case(lengths=(3, 0, 9), K=5, V=dim, op=op))


@pytest.mark.parametrize("regime", ["moderate", "weak"])
def test_scalar_keys_may_be_normalised(regime):
    """Their gradient cancels to nothing, so q and k are left out."""
    problem = build(Case(K=1, regime=regime))
    for name in ("q", "k"):
        problem.inputs[name] += problem.inputs[name].sign()  # well above the norm's 1e-6
    names = {"o", "final_state", *problem.op.differentiable} - {"q", "k", "a_log", "dt_bias"}
    got = check_problem(problem, names=sorted(names))
    assert got["q"].abs().max() < 1e-3 and got["k"].abs().max() < 1e-3


DELTA_OPTIONS = [
    {},
    {"scale": 0.5},
    {"scale": -2.0},
    {"use_qk_l2norm_in_kernel": True},
    {"use_beta_sigmoid_in_kernel": True},
    {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
    {"safe_gate": True},
    {"gate_domain": "linear"},
]
CHANNEL_OPTIONS = [
    *DELTA_OPTIONS,
    {"safe_gate": True, "gate": "softplus"},
    {"safe_gate": True, "gate_lower_bound": -1.0},
]
STEP_OPTIONS = [{"dt_softplus": False}, {"dt_min": 0.8}, {"dt_max": 0.9}]
OPTIONS = [
    *(("gdn", options) for options in DELTA_OPTIONS),
    *(("kda", options) for options in CHANNEL_OPTIONS),
    *(("gdn2", options) for options in CHANNEL_OPTIONS),
    ("gdn2", {"use_qk_l2norm_in_kernel": True, "beta_guard": True}),
    *(("gdp", options) for options in DELTA_OPTIONS),
    *(("mamba2", options) for options in STEP_OPTIONS),
]


@pytest.mark.parametrize("op,options", OPTIONS, ids=str)
def test_an_option_takes_effect_though_only_it_differs(op, options):
    """One set of tensors, g in (0, 1) here; a plan kept for other options would show."""
    problem = build(Case(l2norm=False, heads=(2, 2, 4), op=op))
    always, first = {}, {"use_beta_sigmoid_in_kernel": True, "scale": 0.1}
    if op == "mamba2":
        first = {}
    else:
        g = problem.inputs["g"]
        g[:] = 0.5 * torch.rand(g.shape, generator=torch.Generator().manual_seed(1))
    if op == "gdp":
        always = {"num_householder": 1}
    results = []
    for chosen in (first, options):
        problem.options = always | chosen
        results.append(check_problem(problem))
    assert not torch.equal(results[0]["o"], results[1]["o"])


@pytest.mark.parametrize("reset", [-torch.inf, -1e4, -90.0])
@pytest.mark.parametrize("resets", [5, 13, 27])
@delta_rules
def test_gates_after_many_resets_keep_their_digits(op, resets, reset):
    """An fp32 prefix sum past the resets would have lost the small gates that follow."""
    problem = build(Case(lengths=(64,), regime="resets", heads=(2, 2, 4), op=op))
    g = problem.inputs["g"]
    g[:] = -0.1 * torch.rand(g.shape, generator=torch.Generator().manual_seed(1))
    g[1 : 1 + resets] = reset
    check_problem(problem)


@pytest.mark.parametrize("reset", [-torch.inf, -1e4])
@pytest.mark.parametrize("op", ["kda", "gdn2"])
def test_a_reset_of_some_channels_leaves_the_others(op, reset):
    """Each channel's prefix sum has resets of its own: no row may act as another's reference."""
    problem = build(Case(lengths=(70,), regime="resets", heads=(2, 2, 4), op=op))
    g = problem.inputs["g"]
    generator = torch.Generator().manual_seed(2)
    g[:] = -0.02 * torch.rand(g.shape, generator=generator)
    g[torch.rand(g.shape, generator=generator) < 0.05] = reset
    check_problem(problem)


@pytest.mark.parametrize("op", ["kda", "gdn2"])
def test_a_saturated_sigmoid_gate_has_no_gradient(op):
    """Amplitudes near the ends of fp32: gates at 0 and at the lower bound."""
    problem = build(Case(lengths=(40,), regime="safe", a_log="fp32", op=op))
    problem.inputs["a_log"] = torch.tensor([80.0, -80.0])
    problem.inputs["g"][7] = 1e3
    got = check_problem(problem, names=["o", "final_state", "q", "k", "v", "beta"])
    assert not got["g"].any() or got["g"].abs().max() < 1e-30
    assert got["a_log"].abs().max() < 1e-20


@pytest.mark.parametrize("regime", ["safe", "moderate"])
@delta_rules
def test_extreme_logits_and_gate_parameters(op, regime):
    """Betas of exactly 0 and 1, amplitudes near the ends of fp32, gates that saturate."""
    safe = regime == "safe"
    kind = "softplus" if safe and OPERATIONS[op].per_channel else "default"
    a_log = "fp32" if safe else None
    problem = build(
        Case(lengths=(40,), regime=regime, sigmoid="sigmoid", a_log=a_log, kind=kind, op=op)
    )
    beta, g = (problem.inputs[name] for name in ("beta", "g"))

    def by_head(x, first, second):
        return torch.tensor([first, second]).reshape(-1, *(1 for _ in x.shape[2:]))

    beta[::3] = by_head(beta, -torch.inf, 200.0)
    beta[1::3] = by_head(beta, -120.0, torch.inf)
    if safe:
        problem.inputs["a_log"] = torch.tensor([80.0, -80.0])
        g -= 82  # exp(80) softplus(-82 + ...) is about 0.1
        g[5] = -torch.inf
        g[7] = by_head(g, 0.0, 1e30)
    else:
        g[5::7] = by_head(g, -110.0, -1e38)
        g[6::7] = by_head(g, -0.0, -1e-30)
    check_problem(problem)


@pytest.mark.parametrize("tokens", [4, 40])
@pytest.mark.parametrize("heads", [(1, 1, 1), (2, 2, 4)])
@delta_rules
def test_expanding_states_are_finite_where_the_fp32_loop_is(op, heads, tokens):
    """With unnormalised keys, |k|^2 of about 16, the state grows some 3-fold a token."""
    problem, loop = expanding(tokens, heads, op)
    for name, value in run(problem).items():
        assert loop[name].isfinite().all() and value.isfinite().all(), name
    assert loop["o"].abs().max() > 10.0 ** (tokens // 3)


@pytest.mark.parametrize("heads", [(1, 1, 1), (2, 2, 4)])
@delta_rules
def test_outputs_are_finite_until_the_fp32_loop_overflows(op, heads):
    """Up to the token before: within the last one the order of operations decides."""
    problem, loop = expanding(150, heads, op)
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
@delta_rules
def test_a_reset_empties_even_a_state_near_overflow(op, reset, l2norm):
    """The decay comes first: 0 times the state, and never 0 times a product that overflowed."""
    problem = build(Case(lengths=(40,), K=64, l2norm=l2norm, op=op))
    problem.inputs["initial_state"][:] = 3e38
    problem.inputs["g"][0] = reset
    problem.d_final[:] = 0
    names = ("o", "final_state", "v")
    loop = oracle.of(problem, torch.float32)
    assert all(loop[name].isfinite().all() for name in names)
    got = check_problem(problem, names=names)
    assert (got["initial_state"] == 0).all()  # nothing of that state is left to matter


@pytest.mark.parametrize("q_size,k_size", [(1, 30), (100, 1)])
@delta_rules
def test_a_state_near_overflow_is_read_after_its_decay(op, q_size, k_size):
    """Products with the state before its decay would overflow; those of the recurrence do not."""
    problem = build(Case(lengths=(40,), K=64, l2norm=False, op=op))
    problem.inputs["initial_state"].normal_().mul_(1e37)
    problem.inputs["g"][0] = -80
    problem.inputs["q"][0] = q_size
    problem.inputs["k"][0] = k_size
    problem.inputs["beta"][0] = 1 / (64 * k_size**2)
    problem.d_final[:] = 0
    names = ("o", "final_state", "q", "k", "v")
    loop = oracle.of(problem, torch.float32)
    assert all(loop[name].isfinite().all() for name in names)
    check_problem(problem, names=names)


@pytest.mark.parametrize("regime", ["growth", "queries"])
@delta_rules
def test_no_factor_overflows_before_its_product(op, regime):
    """A state of 1e-33 that grows by exp(78) after slow decays, and queries of 1e34 that read one
    of 1e-10: what multiplies them is as large as a float can be, the products are not."""
    problem = build(Case(lengths=(40,), K=64, l2norm=False, op=op))
    inputs = problem.inputs
    inputs["g"][:20] = -0.01
    if regime == "growth":
        inputs["g"][20] = 78
        inputs["v"][: 20 * len(inputs["v"]) // len(inputs["q"])] *= 1e-33
        inputs["initial_state"] *= 1e-33
    else:
        inputs["q"] *= 1e34
        inputs["v"] *= 1e-10
        inputs["initial_state"] *= 1e-10
    problem.d_final[:] = 0
    names = ("o", "final_state") if regime == "growth" else ("o",)
    loop = oracle.of(problem, torch.float32)
    assert all(loop[name].isfinite().all() for name in names)
    check_problem(problem, names=names)


@pytest.mark.parametrize("op", ["kda", "gdn2"])
def test_growth_that_nothing_reads_is_nothing(op):
    """Gates grow beyond what a float holds over rows 16 to 23, whose queries are zero, from a state
    that is empty by then, and a reset ends it: as the recurrence is walked all is finite."""
    problem = build(Case(lengths=(32,), K=64, l2norm=False, op=op))
    inputs = problem.inputs
    inputs["g"][:] = -0.1
    inputs["g"][8:16] = -30
    inputs["g"][16:24] = 11.5
    inputs["g"][24] = -110
    inputs["q"][16:24] = 0
    inputs["k"][:16] = 0
    assert all(value.isfinite().all() for value in oracle.of(problem, torch.float32).values())
    check_problem(problem)


@pytest.mark.parametrize("K", [4, 16, 32])
@delta_rules
def test_equal_keys_with_beta_two_are_within_their_bounds(op, K):
    """Reflections about one key: a key's rounding must not act alike on every pair of rows."""
    problem = build(Case(lengths=(512,), K=K, V=K, heads=(1, 1, 1), l2norm=False, op=op))
    key = problem.inputs["k"][0, 0]
    problem.inputs["k"][:] = key / key.norm()
    problem.inputs["g"][:] = 0
    problem.inputs["beta"][:] = 2
    check_problem(problem)


def expanding(tokens, heads, op):
    """(problem, results of the fp32 loop)."""
    problem = build(Case(lengths=(tokens, 3), heads=heads, regime="raw", l2norm=False, op=op))
    return problem, oracle.of(problem, torch.float32)


def drawn(rng, row, op, seed):
    """A case with the values of `row`, its other axes drawn; draws that fit nothing are redone."""
    fits = functools.partial(valid, op=op)
    attempts = (complete(dict(row), axes_of(op), fits, {}, rng) for _ in range(100))
    return Case(**next(filter(None, attempts)), op=op, seed=seed)


def wider_product():
    """Every (regime, io, lengths), of gated_delta_net with every heads too, the other axes drawn;
    and all regimes at 8192."""
    rng = random.Random(1)
    cases = []
    for op in OPERATIONS:
        names = ("regime", "io", "lengths", "heads")[: 4 if op == "gdn" else 3]
        for values in itertools.product(*(axes_of(op)[name] for name in names)):
            row = dict(zip(names, values, strict=True))
            cases.append(drawn(rng, row, op, len(cases)))
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
