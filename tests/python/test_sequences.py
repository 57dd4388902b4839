"""Sequences in a batch: carried states, empty ones, rows past the end, the reach of a NaN."""

import pytest
import torch

import bounds
import oracle
from cases import Case, build
from deltaworks import ops
from run_op import CPU, assert_same_bits, run, same_bits

TOKEN_TENSORS = ("q", "k", "v", "g", "beta")


@pytest.mark.parametrize("io", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("regime", ["moderate", "weak", "resets"])
def test_three_pieces_with_a_carried_state_agree_with_one_call(io, regime):
    """Forward and, through the carried states, backward. Sequences of 1 and 2 rows leave pieces
    empty."""
    problem = build(Case(lengths=(70, 1, 2, 33), heads=(2, 2, 4), io=io, regime=regime))
    arguments = (problem.inputs, problem.options, problem.d_o, problem.d_final)
    reference = oracle.run(*arguments)
    loop = oracle.run(*arguments, torch.float32)

    leaves = {n: problem.inputs[n].clone().requires_grad_() for n in oracle.DIFFERENTIABLE[:5]}
    leaves["initial_state"] = problem.inputs["initial_state"].clone().requires_grad_()
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
        part, state = ops.gated_delta_net(
            *(leaves[name][rows] for name in TOKEN_TENSORS),
            lengths.cumsum(0),
            initial_state=state,
            output_final_state=True,
            plan_name=CPU,
            **problem.options,
        )
        assert ops.last_plan() == CPU
        o = o.index_copy(0, rows, part)
    grads = torch.autograd.grad([o, state], list(leaves.values()), [problem.d_o, problem.d_final])
    assert ops.last_plan() == CPU
    got = {"o": o.detach(), "final_state": state.detach(), **dict(zip(leaves, grads, strict=True))}
    bounds.assert_close(problem, got, reference, loop)


@pytest.mark.parametrize("state", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("lengths", [(0, 9), (9, 0), (4, 0, 5), (0, 0, 9, 0, 0), (0,), (0, 0)])
def test_an_empty_sequence_passes_its_state_through(lengths, state):
    """final_state = initial_state and d_initial_state = d_final_state, bit for bit."""
    problem = build(Case(lengths=lengths, state=state, io="bf16"))
    got = run(problem)
    for n in [n for n, length in enumerate(lengths) if length == 0]:
        assert same_bits(got["final_state"][n], problem.inputs["initial_state"][n])
        assert same_bits(got["initial_state"][n], problem.d_final[n])


@pytest.mark.parametrize("plan_name", [CPU, "gdn_reference"])
def test_an_empty_sequence_without_a_state_ends_at_zero(plan_name):
    problem = build(Case(lengths=(0, 9, 0), state=None))
    poison()
    got = run(problem, plan_name)
    assert not got["final_state"][[0, 2]].any()
    assert got["final_state"][1].abs().max() > 0.1


@pytest.mark.parametrize("plan_name", [CPU, "gdn_reference"])
@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("lengths", [(9, 0, 21), (0,), ()])
def test_rows_past_the_end_are_zero_and_never_read(lengths, io, plan_name):
    """Their inputs and incoming gradients hold NaN, and so does the memory that outputs reuse."""
    case = Case(lengths=lengths, tail=40, io=io, heads=(2, 2, 4))
    problem, end = build(case), sum(lengths)
    expected = run(problem, plan_name)
    for name in TOKEN_TENSORS:
        problem.inputs[name][end:] = torch.nan
    problem.d_o[end:] = torch.nan
    for _ in range(3):
        poison()
        got = run(problem, plan_name)
        for name in ("o", *TOKEN_TENSORS):
            assert not got[name][end:].any(), name
        assert_same_bits(got, expected)


def poison():
    """Leaves freed memory of many sizes full of NaN."""
    blocks = [torch.full((size,), torch.nan) for size in range(64, 20000, 500) for _ in range(3)]
    del blocks


@pytest.mark.parametrize("plan_name", [CPU, "gdn_reference"])
@pytest.mark.parametrize("state", [None, "fp32"])
def test_no_token_at_all(state, plan_name):
    """T = 0 with one empty sequence, and N = 0 with and without rows."""
    for lengths, tail in [((0,), 0), ((), 0), ((), 7)]:
        problem = build(Case(lengths=lengths, tail=tail, state=state))
        got = run(problem, plan_name)
        assert got["o"].shape == (tail, 2, 8) and not got["o"].any()
        assert got["final_state"].shape == (len(lengths), 2, 8, 16)
        for name in TOKEN_TENSORS:
            assert got[name].shape == problem.inputs[name].shape and not got[name].any()


def test_zero_heads_give_empty_outputs_or_a_value_error():
    problem = build(Case(heads=(0, 0, 0), state=None))
    try:
        got = run(problem)
    except ValueError as error:
        assert str(error).startswith("gated_delta_net: ")
    else:
        assert got["o"].shape == (57, 0, 8) and got["q"].shape == (57, 0, 16)


@pytest.mark.parametrize("name", [*TOKEN_TENSORS, "initial_state", "d_o", "d_final"])
@pytest.mark.parametrize("io", ["fp32", "bf16"])
def test_a_nan_stays_in_its_sequence_and_head(name, io):
    """Heads of q, k, v in groups: a NaN may reach the rows of its sequence that share its head."""
    case = Case(lengths=(20, 18, 35), heads=(2, 2, 4), io=io, regime="safe", a_log="fp32")
    problem = build(case)
    clean = run(problem)
    sequence, start, end = 1, 20, 38
    target = getattr(problem, name) if name.startswith("d_") else problem.inputs[name]
    if name in ("initial_state", "d_final"):
        target[sequence, 1] = torch.nan
    else:
        target[start + 7, 1] = torch.nan
    got = run(problem)

    shared = name in ("q", "k")  # head 1 of 2 serves heads 2 and 3 of 4
    hit = {"wide": {2, 3} if shared else {1}, "narrow": {1} if shared else {0}}
    assert any(value.isnan().any() for value in got.values()), "the NaN must show somewhere"
    for result, value in got.items():
        heads = hit["narrow" if result in ("q", "k") else "wide"]
        for head in range(value.shape[-1 if result == "a_log" else 1]):
            if result == "a_log":
                if head not in heads:
                    assert same_bits(value[head], clean[result][head]), f"a_log of head {head}"
                continue
            keep = torch.ones(value.shape[0], dtype=torch.bool)
            if head in heads:
                if result in ("final_state", "initial_state"):
                    keep[sequence] = False
                else:
                    keep[start:end] = False
            assert same_bits(value[keep, head], clean[result][keep, head]), f"{result} head {head}"


@pytest.mark.parametrize("plan_name", [CPU, "gdn_reference"])
def test_inputs_are_not_written(plan_name):
    problem = build(Case(lengths=(9, 0, 21), tail=2, heads=(2, 2, 4), regime="safe", a_log="fp32"))
    before = {name: x.clone() for name, x in problem.inputs.items()}
    flows = problem.d_o.clone(), problem.d_final.clone()
    run(problem, plan_name)
    assert_same_bits(problem.inputs, before)
    assert same_bits(problem.d_o, flows[0]) and same_bits(problem.d_final, flows[1])
