"""What must not change a single bit: layouts, repeats, later tokens, neighbours; and what is exact.

Results are compared on the device. Long cases have few heads, so that an engine may cut their
sequences into segments.
"""

import itertools
import sys
from dataclasses import replace

import kit
import torch
from kit import IO, moved, run, spans, test, with_options

import layouts
from cases import DTYPES, Case, build
from deltaworks.ops import gated_delta_net, last_plan
from run_op import assert_same_bits, bits, same_bits

TOKEN_TENSORS = ("q", "k", "v", "g", "beta")
FEW = dict(heads=(1, 1, 2), K=64, V=64)
CASES = [
    Case((17, 0, 70), 3, (2, 2, 4), 48, 80, "bf16"),
    Case((40, 5), 0, (4, 4, 1), 64, 64, "bf16", gate="bf16", beta="io", state="bf16"),
    Case(
        (33, 2),
        heads=(6, 2, 2),
        K=16,
        V=16,
        io="fp16",
        regime="safe",
        sigmoid="doubled",
        a_log="fp32",
        dt_bias="fp16",
        scale=0.3,
        state="fp16",
    ),
    Case((200,), 0, (1, 1, 1), 128, 192, "bf16", state=None, regime="resets", l2norm=False),
]
LONG = [
    Case((4097, 3), 0, io="bf16", **FEW),
    Case((8192,), 5, io="fp16", regime="weak", **FEW),
]


def on_device(case, **options):
    return with_options(moved(build(case)), **options)


@test
def int32_and_int64_offsets_agree():
    for case in (*CASES, LONG[0]):
        problem = on_device(case)
        got = run(problem, cu_seqlens=problem.inputs["cu_seqlens"].int())
        assert_same_bits(got, run(problem))


@test
def a_16_bit_gate_agrees_with_its_widening():
    for io, gate in itertools.product(IO, IO):
        for regime in ("moderate", "strong", "safe", "linear"):
            problem = on_device(Case((17, 0, 70), 0, (2, 2, 4), 64, 64, io, gate, regime=regime))
            got = run(problem)
            assert_same_bits(run(problem, g=problem.inputs["g"].float()), got)


@test
def an_absent_gate_parameter_acts_as_zeros():
    for io, regime in itertools.product(IO, ("safe", "safe_bound")):
        problem = on_device(Case((17, 70), 0, (2, 2, 4), 64, 64, io, regime=regime))
        zeros = torch.zeros(4, device=kit.DEVICE)
        expected = run(problem)
        for changes in ({"a_log": zeros}, {"dt_bias": zeros}, {"a_log": zeros, "dt_bias": zeros}):
            assert_same_bits(run(problem, **changes), expected)


@test
def states_of_16_bits_are_the_fp32_states_rounded_once():
    for io, state in itertools.product(IO, IO):
        for lengths in ((40, 3, 0), (4097,)):
            problem = on_device(Case(lengths, 0, io=io, state=state, **FEW))
            got = run(problem)
            wide = run(problem, initial_state=problem.inputs["initial_state"].float())
            assert same_bits(got["final_state"], wide["final_state"].to(DTYPES[state]))
            assert same_bits(got["o"], wide["o"])


@test
def outputs_do_not_depend_on_whether_the_state_is_asked_for():
    for case in (*CASES, LONG[0]):
        problem = on_device(case)
        o, state = gated_delta_net(**problem.inputs, plan_name=kit.PLAN, **problem.options)
        assert last_plan() == kit.PLAN and state is None
        assert same_bits(o, run(problem)["o"])


@test
def strided_inputs_agree_with_contiguous_ones():
    for case in (*CASES, LONG[0]):
        problem = on_device(case)
        expected = run(problem)
        for layout in layouts.ALL:
            views = {name: layout(x) for name, x in problem.inputs.items()}
            if case.heads != (1, 1, 1):  # where one head's rows have a single dense layout
                assert any(not x.is_contiguous() or x.storage_offset() for x in views.values())
            assert_same_bits(run(problem, **views), expected)


@test
def a_joint_projection_agrees_with_its_parts():
    """q, k and v as views of one tensor, side by side over heads and inside a row of features."""
    for io, features in itertools.product(IO, (64, 65)):
        problem = on_device(Case((17, 0, 70), 3, (2, 2, 4), 64, 64, io))
        expected = run(problem)
        rows = [problem.inputs[name] for name in ("q", "k", "v")]
        heads = torch.cat(rows, 1).split([2, 2, 4], 1)
        joint = rows[0].new_full((rows[0].shape[0], 8 * 64 + features - 64), 7)
        joint[:, features - 64 :] = torch.cat([x.flatten(1) for x in rows], 1)
        flat = joint[:, features - 64 :].split([128, 128, 256], 1)
        for parts in (heads, [x.unflatten(1, (-1, 64)) for x in flat]):
            assert_same_bits(run(problem, **dict(zip("qkv", parts, strict=True))), expected)


@test
def zero_strides_agree_with_copies():
    """Each axis in turn, the innermost included, then all axes at once."""
    for case in CASES:
        problem = on_device(case)
        for name in (*TOKEN_TENSORS, "initial_state"):
            x = problem.inputs.get(name)
            if x is None:  # this case starts from zero
                x = torch.ones(len(case.lengths), 1, case.V, case.K, device=kit.DEVICE)
            views = [layouts.expanded(x, axis) for axis in range(x.dim())]
            for view in (*views, x.flatten()[0].expand(x.shape)):
                got = run(problem, **{name: view})
                assert_same_bits(got, run(problem, **{name: view.contiguous()}))


@test
def rows_past_the_end_are_zero_and_never_read():
    for io, lengths in itertools.product(IO, ((9, 0, 70), (0,), (), (4097,))):
        problem, end = on_device(Case(lengths, 150, io=io, **FEW)), sum(lengths)
        expected = run(problem)
        late = {name: problem.inputs[name].clone() for name in TOKEN_TENSORS}
        for x in late.values():
            x[end:] = torch.nan
        got = run(problem, **late)
        assert not got["o"][end:].any()
        assert_same_bits(got, expected)


@test
def no_token_at_all():
    """T = 0 with one empty sequence, and N = 0 with and without rows."""
    for lengths, tail in (((0,), 0), ((0, 0), 70), ((), 0), ((), 7)):
        for state in (None, "fp32"):
            problem = on_device(Case(lengths, tail, (2, 2, 4), 64, 48, "bf16", state=state))
            got = run(problem)
            assert got["o"].shape == (tail, 4, 48) and not got["o"].any()
            assert got["final_state"].shape == (len(lengths), 4, 48, 64)
            if state is None:
                assert not got["final_state"].any()


@test
def an_empty_sequence_passes_its_state_through():
    for io, state in itertools.product(IO, ("fp32", "bf16", "fp16", None)):
        for lengths in ((0, 9), (9, 0), (4, 0, 5), (0, 0, 90, 0, 0), (0,), (0, 4097, 0)):
            problem = on_device(Case(lengths, 0, io=io, state=state, **FEW))
            final = run(problem)["final_state"]
            for n in [n for n, length in enumerate(lengths) if length == 0]:
                if state is None:
                    assert not bits(final[n]).any()
                else:
                    assert same_bits(final[n], problem.inputs["initial_state"][n])


@test
def repeats_give_the_same_bits():
    for case in (*CASES, *LONG):
        problem = on_device(case)
        first = run(problem)
        for _ in range(5):
            assert_same_bits(run(problem), first)


@test
def inputs_are_not_written():
    for case in (*CASES, LONG[0]):
        problem = on_device(case)
        before = {name: x.clone() for name, x in problem.inputs.items()}
        run(problem)
        assert_same_bits(problem.inputs, before)


@test
def a_sequence_alone_agrees_with_itself_in_the_batch():
    batches = [
        *CASES,
        Case((700, 3, 129, 0, 64, 64), 0, io="bf16", **FEW),
        Case((9, 30, 64) * 12, 0, (2, 2, 4), 48, 96, "fp16"),
        Case((4096, 1, 0, 777, 64), 0, io="bf16", regime="weak", **FEW),
        Case((8192, 100), 0, io="fp16", **FEW),
    ]
    for case in batches:
        problem = on_device(case, batch_invariant=True)
        batch = run(problem)
        for n, (start, end) in enumerate(spans(case)):
            changes = {name: problem.inputs[name][start:end] for name in TOKEN_TENSORS}
            if "initial_state" in problem.inputs:
                changes["initial_state"] = problem.inputs["initial_state"][n : n + 1]
            changes["cu_seqlens"] = torch.tensor([0, end - start], device=kit.DEVICE)
            alone = run(problem, **changes)
            assert same_bits(alone["o"], batch["o"][start:end]), f"o of sequence {n}"
            assert same_bits(alone["final_state"], batch["final_state"][n : n + 1]), f"state of {n}"


def cuts(length):
    """Tokens of a sequence after which it is changed: all of a short one; in a long one those about
    the borders of chunks and of the segments that powers of two would give."""
    if length <= 200:
        return range(length - 1)
    powers = [2**n for n in range(13)]
    near = {p + shift for p in (*powers, 192, 3072, 6144) for shift in (-2, -1, 0)}
    return sorted(token for token in near | {1000, length - 2} if 0 <= token < length - 1)


@test
def outputs_do_not_depend_on_later_tokens():
    """All five inputs are replaced after the cut."""
    for case, change in itertools.product((*CASES, *LONG), ("moderate", "resets", "weak")):
        problem = on_device(case)
        regime = "safe" if case.regime == "safe" else change
        other = on_device(replace(case, seed=99, regime=regime))
        start, end = max(spans(case), key=lambda span: span[1] - span[0])
        expected = run(problem)["o"]
        for token in cuts(end - start):
            cut = start + token + 1
            later = {name: problem.inputs[name].clone() for name in TOKEN_TENSORS}
            for name, x in later.items():
                x[cut:end] = other.inputs[name][cut:end]
            got = run(problem, **later)["o"]
            assert same_bits(got[:cut], expected[:cut]), f"cut after token {token} of {case}"
            assert not same_bits(got, expected)


@test
def a_nan_stays_in_its_sequence_and_head():
    """Heads of q, k, v in groups: a NaN may reach the rows of its sequence that share its head."""
    names = (*TOKEN_TENSORS, "initial_state", "a_log", "dt_bias")
    cases = [
        Case((20, 70, 35), 0, heads, 64, 64, io, regime="safe", a_log="fp32", dt_bias="fp32")
        for io, heads in itertools.product(IO, ((2, 2, 4), (4, 2, 2)))
    ]
    long = Case((3, 4097, 300), 0, io="bf16", regime="safe", a_log="fp32", dt_bias="fp32", **FEW)
    for case, name in itertools.product((*cases, long), names):
        problem = on_device(case)
        clean = run(problem)
        x = problem.inputs[name].clone()
        start, end = spans(case)[1]
        heads = clean["o"].shape[1]
        per_head = x.dim() == 1  # a parameter, which acts on every sequence
        head = x.shape[0 if per_head else 1] - 1
        x[(head,) if per_head else (1 if name == "initial_state" else start + 7, head)] = torch.nan
        got = run(problem, **{name: x})

        group = heads // x.shape[0 if per_head else 1]
        rows = torch.zeros(clean["o"].shape[:2], dtype=torch.bool)
        rows[slice(None) if per_head else slice(start, end), group * head :] = True
        states = torch.zeros(clean["final_state"].shape[:2], dtype=torch.bool)
        states[slice(None) if per_head else 1, group * head :] = True
        hit = got["o"][start + 7, group * head :]
        assert hit.isnan().any(-1).all(), f"the NaN of {name} does not show"
        for result, reached in (("o", rows), ("final_state", states)):
            keep = ~reached.to(kit.DEVICE)
            assert same_bits(got[result][keep], clean[result][keep]), f"{result}, NaN in {name}"


if __name__ == "__main__":
    sys.exit(kit.main())
