"""Sequences in a batch: carried states, empty ones, rows past the end, the reach of a NaN."""

import pytest
import torch

import bounds
import oracle
from cases import Case, build
from operations import OPERATIONS
from run_op import assert_same_bits, call, leaves_of, run, same_bits

every_op = pytest.mark.parametrize("op", OPERATIONS)
engines = pytest.mark.parametrize("plan_name", ["cpu", "reference"])
# What a row needs besides its defaults, to have every tensor.
WHOLE = {
    "gdn": {"regime": "safe", "a_log": "fp32"},
    "kda": {"regime": "safe", "a_log": "fp32"},
    "gdn2": {"regime": "safe", "a_log": "fp32", "guard": True},
    "gdp": {"regime": "safe", "a_log": "fp32", "steps": 2},
    "mamba2": {"D": "channel", "z": True, "dt_bias": "fp32"},
}


def token_tensors(problem):
    return [name for name in problem.op.tokens if name in problem.inputs]


def rows_by_token(problem, name, x):
    """[tokens, rows of a token, ...]: a token of gated_delta_product has several."""
    return x.unflatten(0, (problem.case.tokens, len(x) // max(problem.case.tokens, 1)))


@pytest.mark.parametrize("io", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("regime", ["moderate", "weak", "resets"])
@every_op
def test_three_pieces_with_a_carried_state_agree_with_one_call(op, io, regime):
    """Forward and, through the carried states, backward. Sequences of 1 and 2 rows leave pieces
    empty."""
    own = {"gdp": {"steps": 2}, "mamba2": {"D": "head", "z": True}}.get(op, {})
    case = Case(lengths=(70, 1, 2, 33), heads=(2, 2, 4), io=io, regime=regime, op=op, **own)
    problem = build(case)
    reference, loop = oracle.of(problem), oracle.of(problem, torch.float32)

    leaves = leaves_of(problem, problem.op.differentiable)
    offsets = problem.inputs["cu_seqlens"].tolist()
    o = torch.zeros_like(problem.d_o)
    state = leaves["initial_state"]
    for piece in range(3):
        cuts = [
            (a + (b - a) * piece // 3, a + (b - a) * (piece + 1) // 3)
            for a, b in zip(offsets, offsets[1:], strict=False)
        ]
        rows = torch.cat([torch.arange(a, b) for a, b in cuts])
        lengths = torch.tensor([0, *(b - a for a, b in cuts)])
        tensors = {**leaves, "initial_state": state}
        for name in token_tensors(problem):
            tensors[name] = rows_by_token(problem, name, leaves[name])[rows].flatten(0, 1)
        part, state = call(problem, tensors, cu_seqlens=lengths.cumsum(0))
        o = o.index_copy(0, rows, part)
    grads = torch.autograd.grad([o, state], list(leaves.values()), [problem.d_o, problem.d_final])
    got = {"o": o.detach(), "final_state": state.detach(), **dict(zip(leaves, grads, strict=True))}
    bounds.assert_close(problem, got, reference, loop)


@pytest.mark.parametrize("state", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("lengths", [(0, 9), (9, 0), (4, 0, 5), (0, 0, 9, 0, 0), (0,), (0, 0)])
@every_op
def test_an_empty_sequence_passes_its_state_through(op, lengths, state):
    """final_state = initial_state and d_initial_state = d_final_state, bit for bit."""
    problem = build(Case(lengths=lengths, state=state, io="bf16", op=op))
    got = run(problem)
    for n in [n for n, length in enumerate(lengths) if length == 0]:
        assert same_bits(got["final_state"][n], problem.inputs["initial_state"][n])
        assert same_bits(got["initial_state"][n], problem.d_final[n])


@engines
@every_op
def test_an_empty_sequence_without_a_state_ends_at_zero(op, plan_name):
    problem = build(Case(lengths=(0, 9, 0), state=None, op=op))
    poison()
    got = run(problem, plan_name)
    assert not got["final_state"][[0, 2]].any()
    assert got["final_state"][1].abs().max() > 0.1


@engines
@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("lengths", [(9, 0, 21), (0,), ()])
@every_op
def test_rows_past_the_end_are_zero_and_never_read(op, lengths, io, plan_name):
    """Their inputs and incoming gradients hold NaN, and so does the memory that outputs reuse."""
    own = {"gdp": {"steps": 2}, "mamba2": {"z": True}}.get(op, {})
    case = Case(lengths=lengths, tail=40, io=io, heads=(2, 2, 4), op=op, **own)
    problem, end = build(case), sum(lengths)
    expected = run(problem, plan_name)
    for name in token_tensors(problem):
        rows_by_token(problem, name, problem.inputs[name])[end:] = torch.nan
    problem.d_o[end:] = torch.nan
    for _ in range(3):
        poison()
        got = run(problem, plan_name)
        for name in ("o", *token_tensors(problem)):
            assert not rows_by_token(problem, name, got[name])[end:].any(), name
        assert_same_bits(got, expected)


def poison():
    """Leaves freed memory of many sizes full of NaN."""
    blocks = [torch.full((size,), torch.nan) for size in range(64, 20000, 500) for _ in range(3)]
    del blocks


@engines
@pytest.mark.parametrize("state", [None, "fp32"])
@every_op
def test_no_token_at_all(op, state, plan_name):
    """T = 0 with one empty sequence, and N = 0 with and without rows."""
    for lengths, tail in [((0,), 0), ((), 0), ((), 7)]:
        problem = build(Case(lengths=lengths, tail=tail, state=state, op=op))
        got = run(problem, plan_name)
        assert got["o"].shape == (tail, 2, 8) and not got["o"].any()
        assert got["final_state"].shape == (len(lengths), 2, 8, 16)
        for name in token_tensors(problem):
            assert got[name].shape == problem.inputs[name].shape and not got[name].any()


@every_op
def test_zero_heads_give_empty_outputs_or_a_value_error(op):
    problem = build(Case(heads=(0, 0, 0), state=None, op=op))
    try:
        got = run(problem)
    except ValueError as error:
        assert str(error).startswith(f"{problem.op.name}: ")
    else:
        assert got["o"].shape == (57, 0, 8) and got[problem.op.q].shape == (57, 0, 16)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
@every_op
def test_a_nan_stays_in_its_sequence_and_head(op, io):
    """Of every tensor. Heads of q, k, v in groups: a NaN may reach the rows of its sequence that
    share its head."""
    case = Case(lengths=(20, 18, 35), heads=(2, 2, 4), io=io, op=op, **WHOLE[op])
    clean = run(build(case))
    for name in (*token_tensors(build(case)), "initial_state", "d_o", "d_final"):
        check_reach(build(case), clean, name)


def check_reach(problem, clean, name):
    sequence, start, end = 1, 20, 38
    target = getattr(problem, name) if name.startswith("d_") else problem.inputs[name]
    if name in ("initial_state", "d_final"):
        target[sequence, 1] = torch.nan
    elif name in problem.op.tokens:
        rows_by_token(problem, name, target)[start + 7, :, 1] = torch.nan
    else:
        target[start + 7, 1] = torch.nan
    got = run(problem)

    shared = name in problem.op.narrow  # head 1 of 2 serves heads 2 and 3 of 4
    hit = {"wide": {2, 3} if shared else {1}, "narrow": {1} if shared else {0}}
    assert any(value.isnan().any() for value in got.values()), f"a NaN in {name} must show"
    for result, value in got.items():
        heads = hit["narrow" if result in problem.op.narrow else "wide"]
        if result in problem.op.parameters:
            for head in set(range(len(value))) - heads:
                assert same_bits(value[head], clean[result][head]), f"{result} of head {head}"
            continue
        state = result in ("final_state", "initial_state")
        pair = [x if state else rows_by_token(problem, result, x) for x in (value, clean[result])]
        for head in range(value.shape[1]):
            keep = torch.ones(len(pair[0]), dtype=torch.bool)
            if head in heads:
                keep[sequence if state else slice(start, end)] = False
            a, b = (x[keep][:, head] if state else x[keep][:, :, head] for x in pair)
            assert same_bits(a, b), f"NaN in {name}: {result} of head {head}"


@engines
@every_op
def test_inputs_are_not_written(op, plan_name):
    problem = build(Case(lengths=(9, 0, 21), tail=2, heads=(2, 2, 4), op=op, **WHOLE[op]))
    before = {name: x.clone() for name, x in problem.inputs.items()}
    flows = problem.d_o.clone(), problem.d_final.clone()
    run(problem, plan_name)
    assert_same_bits(problem.inputs, before)
    assert same_bits(problem.d_o, flows[0]) and same_bits(problem.d_final, flows[1])
