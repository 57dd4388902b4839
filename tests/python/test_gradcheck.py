"""Gradients against finite differences in float64, on the reference engine: every option."""

import dataclasses

import pytest
import torch

from cases import Case, build
from operations import OPERATIONS
from run_op import call, leaves_of

DELTA = [
    Case(l2norm=False),
    Case(),
    Case(sigmoid="sigmoid"),
    Case(sigmoid="doubled"),
    Case(regime="safe"),
    Case(regime="safe", a_log="fp64", dt_bias="fp64"),
    Case(regime="safe", heads=(4, 1, 1), a_log="fp64"),
    Case(regime="linear"),
    Case(regime="weak", heads=(6, 2, 2)),
    Case(heads=(2, 4, 4), scale=0.3),
    Case(heads=(2, 2, 4), state=None),
    Case(regime="beta_two", l2norm=False),
]
CHANNELS = [
    Case(regime="safe", kind="softplus", a_log="fp64", dt_bias="fp64"),
    Case(regime="safe", kind="bounded", a_log="fp64", dt_bias="fp64", heads=(2, 2, 4)),
]
STEPS = [
    Case(),
    Case(D="head"),
    Case(D="channel", z=True, dt_bias="fp64"),
    Case(z=True, heads=(1, 1, 4)),
    Case(dt_softplus=False, dt_bias="fp64", heads=(2, 2, 4)),
    Case(clamp=(0.1, 0.4), D="head", seed=3),
    Case(state=None, D="head", heads=(1, 1, 2)),
]
OWN = {
    "gdn": DELTA,
    "kda": [*DELTA, *CHANNELS],
    # gates so strong that no row needs the guard: what it changes counts as not changed
    "gdn2": [*DELTA, *CHANNELS, Case(regime="strong", guard=True)],
    "gdp": [
        *DELTA,
        Case(steps=2, heads=(2, 2, 4)),
        Case(steps=3, token_major=True),
        Case(steps=2, token_major=True, regime="safe", sigmoid="sigmoid", dt_bias="fp64"),
    ],
    "mamba2": STEPS,
}
FP64 = dict.fromkeys(("io", "gate", "beta", "w", "skip"), "fp64")
FP64 |= {"lengths": (3, 0, 2), "tail": 1, "K": 3, "V": 2}


def float64(case, op):
    a_log = "fp64" if op == "mamba2" else case.a_log
    state = None if case.state is None else "fp64"
    return dataclasses.replace(case, op=op, state=state, a_log=a_log, **FP64)


ROWS = [float64(case, op) for op in OPERATIONS for case in OWN[op]]


@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case.op}-{case.regime}")
def test_gradcheck_in_float64(case):
    problem = build(case)
    if case.regime == "linear":  # finite differences need room below and above alpha
        problem.inputs["g"] = problem.inputs["g"].clamp(0.1, 0.9)
    if case.regime == "strong":
        problem.inputs["g"] -= 1
    leaves = leaves_of(problem, problem.op.differentiable)

    def function(*tensors):
        tensors = dict(zip(leaves, tensors, strict=True))
        return call(problem, tensors, plan_name=None, executed=f"{case.op}_reference")

    assert all(leaf.dtype == torch.float64 for leaf in leaves.values())
    assert torch.autograd.gradcheck(function, list(leaves.values()), atol=1e-6, rtol=1e-5)


def test_every_row_differs():
    assert len(set(ROWS)) == len(ROWS)
