"""What must not change a single bit: layouts, thread counts, repeats, later tokens, neighbours."""

import pytest
import torch

import layouts
from cases import Case, build
from deltaworks import ops
from operations import OPERATIONS
from run_op import assert_same_bits, run, same_bits

CASES = [
    Case(lengths=(17, 0, 70), tail=3, heads=(2, 2, 4), K=33, V=20),
    Case(
        lengths=(40, 5),
        heads=(4, 4, 1),
        K=64,
        V=64,
        io="bf16",
        beta="io",
        gate="bf16",
        state="bf16",
    ),
    Case(
        lengths=(33, 2),
        heads=(6, 2, 2),
        K=16,
        V=8,
        io="fp16",
        regime="safe",
        sigmoid="doubled",
        a_log="fp32",
        dt_bias="fp16",
        scale=0.3,
    ),
    Case(lengths=(90,), heads=(1, 1, 1), K=128, V=96, regime="resets", l2norm=False, state=None),
    Case(lengths=(17, 0, 70), tail=3, heads=(2, 2, 4), K=33, V=20, op="kda"),
    Case(
        lengths=(40, 5),
        heads=(4, 1, 1),
        K=64,
        V=64,
        io="bf16",
        gate="bf16",
        regime="safe",
        kind="softplus",
        a_log="fp32",
        dt_bias="bf16",
        op="kda",
    ),
    Case(lengths=(17, 0, 70), tail=3, heads=(2, 2, 4), K=33, V=20, guard=True, op="gdn2"),
    Case(
        lengths=(33, 2),
        heads=(6, 2, 2),
        io="fp16",
        beta="io",
        w="io",
        state="fp16",
        regime="safe",
        dt_bias="fp32",
        sigmoid="sigmoid",
        op="gdn2",
    ),
    Case(lengths=(17, 0, 40), tail=3, heads=(2, 2, 4), K=33, V=20, steps=2, op="gdp"),
    Case(
        lengths=(20, 5), heads=(4, 4, 1), io="bf16", beta="io", steps=3, token_major=True, op="gdp"
    ),
    Case(
        lengths=(17, 0, 70), tail=3, heads=(2, 2, 4), K=33, V=20, D="channel", z=True, op="mamba2"
    ),
    Case(
        lengths=(40, 5),
        heads=(1, 1, 2),
        K=128,
        V=64,
        io="bf16",
        gate="bf16",
        D="head",
        dt_bias="fp32",
        clamp=(0.1, 0.4),
        op="mamba2",
    ),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_op = pytest.mark.parametrize("op", OPERATIONS)
DELTA_RULES = [op for op in OPERATIONS if op != "mamba2"]


@every_case
def test_int32_and_int64_offsets_agree(case):
    problem = build(case)
    got = run(problem, cu_seqlens=problem.inputs["cu_seqlens"].int())
    assert_same_bits(got, run(problem))


@pytest.mark.parametrize("layout", layouts.ALL, ids=lambda f: f.__name__)
@every_case
def test_strided_inputs_agree_with_contiguous_ones(case, layout):
    problem = build(case)
    expected = run(problem)
    views = {name: layout(x) for name, x in problem.inputs.items()}
    if case.heads != (1, 1, 1):  # where one head's rows have a single dense layout
        assert any(not x.is_contiguous() or x.storage_offset() for x in views.values())
    problem.inputs = views
    problem.d_o = layout(problem.d_o)
    problem.d_final = layout(problem.d_final)
    assert_same_bits(run(problem), expected)


@every_case
def test_zero_strides_agree_with_copies(case):
    """Of every tensor, each axis in turn, the innermost included, then all axes at once."""
    problem = build(case)
    for name in [*problem.op.tokens, "initial_state", "D", "d_o", "d_final"]:
        flow = name.startswith("d_")
        original = getattr(problem, name) if flow else problem.inputs.get(name)
        if original is None:
            if name != "initial_state":
                continue
            original = torch.ones(len(case.lengths), case.out_heads, case.V, case.K)
        views = [layouts.expanded(original, axis) for axis in range(original.dim())]
        views.append(original.flatten()[0].expand(original.shape))
        for view in views:
            if flow:
                setattr(problem, name, view)
                got = run(problem)
                setattr(problem, name, view.contiguous())
                expected = run(problem)
            else:
                got = run(problem, **{name: view})
                expected = run(problem, **{name: view.contiguous()})
            assert_same_bits(got, expected)
        if flow:
            setattr(problem, name, original)


@pytest.mark.parametrize("gate", ["bf16", "fp16"])
@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "op,regime",
    [*((op, r) for op in DELTA_RULES for r in ("strong", "safe", "linear")), ("mamba2", "strong")],
)
def test_a_16_bit_gate_agrees_with_its_widening(op, regime, gate, io):
    problem = build(Case(gate=gate, io=io, regime=regime, op=op))
    name = problem.op.g
    narrow = problem.inputs[name]
    got, expected = run(problem), run(problem, **{name: narrow.float()})
    expected[name] = expected[name].to(narrow.dtype)
    assert_same_bits(got, expected)


@pytest.mark.parametrize("io", ["bf16", "fp16"])
@pytest.mark.parametrize(
    "op,regime",
    [*((op, r) for op in DELTA_RULES for r in ("moderate", "safe")), ("mamba2", "moderate")],
)
def test_16_bit_results_are_the_fp32_results_rounded_once(op, regime, io):
    """The CPU engine rounds no operand, so a call with all tensors widened gives the same numbers
    before the last rounding, which is to the nearest, ties to even."""
    dtypes = {"gate": io, "beta": "io", "w": "io", "state": io, "skip": io, "V": 64}
    heads = (2, 2, 4) if op == "mamba2" else (4, 2, 2)
    a_log = io if regime == "safe" or op == "mamba2" else None
    own = {"D": "head", "z": True, "steps": 2} if op in ("mamba2", "gdp") else {}
    problem = build(Case(op=op, io=io, regime=regime, a_log=a_log, heads=heads, **own, **dtypes))
    got = run(problem)
    dtype = got["o"].dtype
    problem.d_o, problem.d_final = problem.d_o.float(), problem.d_final.float()
    wide = {name: x.float() for name, x in problem.inputs.items() if x.is_floating_point()}
    expected = {name: x.to(dtype) for name, x in run(problem, **wide).items()}
    assert_same_bits(got, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("V", [1, 67])
@pytest.mark.parametrize("plan_name", ["gdn_cpu", "gdn_reference"])
def test_results_round_to_nearest_even(plan_name, V, dtype):
    """Sequences of one token with k = q = v = 1: outputs and states are beta, here fp32 numbers
    half-way between two of `dtype`, subnormal ones and ones past its range; and a NaN."""
    fraction_bits = {torch.bfloat16: 16, torch.float16: 13}[dtype]
    half = 1 << (fraction_bits - 1)
    ties = (torch.arange(300) << fraction_bits) + half + torch.tensor([0, 0, 0, 1, -1]).repeat(60)
    beta = ((127 << 23) + ties).int().view(torch.float32)
    tiny = beta * torch.finfo(dtype).tiny / 4
    special = torch.tensor([65519.0, 65520.0, 3.3961e38, 3.4e38, torch.nan])
    wrapping_nan = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    beta = torch.cat([beta, -beta, tiny, special, wrapping_nan])[:, None]
    T = len(beta)
    o, final_state = ops.gated_delta_net(
        torch.ones(T, 1, 1, dtype=dtype),
        torch.ones(T, 1, 1, dtype=dtype),
        torch.ones(T, 1, V, dtype=dtype),
        torch.zeros(T, 1),
        beta,
        torch.arange(T + 1),
        scale=1.0,
        initial_state=torch.zeros(T, 1, V, 1, dtype=dtype),
        output_final_state=True,
        plan_name=plan_name,
    )
    expected = beta.to(dtype)[:, :, None].expand(T, 1, V)
    for got in (o, final_state[..., 0]):
        assert got.dtype == dtype
        assert torch.equal(got.isnan(), expected.isnan())
        number = ~expected.isnan()
        assert same_bits(got[number], expected[number])


@pytest.mark.parametrize("state", ["bf16", "fp16"])
@every_op
def test_16_bit_states_are_the_fp32_states_rounded_once(op, state):
    problem = build(Case(state=state, lengths=(40, 3, 0), op=op))
    got = run(problem)
    dtype = got["final_state"].dtype
    problem.d_final = problem.d_final.float()
    expected = run(problem, initial_state=problem.inputs["initial_state"].float())
    for name in ("final_state", "initial_state"):
        assert same_bits(got[name], expected[name].to(dtype)), name
    tokens = [name for name in problem.op.tokens if name in got]
    assert_same_bits(got, expected, ["o", *tokens])


@pytest.mark.parametrize("name", ["a_log", "dt_bias"])
@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("regime", ["safe", "safe_bound"])
@pytest.mark.parametrize("op", DELTA_RULES)
def test_an_absent_gate_parameter_acts_as_zeros(op, name, io, regime):
    problem = build(Case(io=io, regime=regime, heads=(2, 2, 4), op=op))
    channels = problem.inputs["g"].shape[2:] if name == "dt_bias" else ()
    with_zeros = run(problem, **{name: torch.zeros(4, *channels)})
    assert_same_bits(with_zeros, run(problem))


@pytest.mark.parametrize("io", ["fp32", "bf16"])
def test_an_absent_step_bias_acts_as_zeros(io):
    problem = build(Case(io=io, heads=(2, 2, 4), op="mamba2"))
    assert_same_bits(run(problem, dt_bias=torch.zeros(4)), run(problem))


@every_case
def test_thread_count_changes_nothing(case):
    problem = build(case)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(problem))
    finally:
        torch.set_num_threads(before)
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


@pytest.mark.parametrize("lengths", [(2500,), (1500, 3, 700)])
@every_op
def test_thread_count_changes_nothing_in_long_sequences(op, lengths):
    test_thread_count_changes_nothing(Case(lengths=lengths, heads=(1, 1, 2), K=32, V=64, op=op))


@every_case
def test_repeats_give_the_same_bits(case):
    problem = build(case)
    first = run(problem)
    for _ in range(7):
        assert_same_bits(run(problem), first)


@pytest.mark.parametrize("change", ["moderate", "resets", "weak"])
@every_case
def test_outputs_do_not_depend_on_later_tokens(case, change):
    """Every cut of the longest sequence: all inputs are replaced after it."""
    problem = build(case)
    regime = "safe" if case.regime == "safe" else change
    tokens = [name for name in problem.op.tokens if name in problem.inputs]
    other = build(Case(**{**vars(case), "seed": 99, "regime": regime}))
    start, end = max(spans(case), key=lambda span: span[1] - span[0])
    expected = run(problem, backward=False)["o"]
    for token in range(start, end - 1):
        later = {}
        for name in tokens:
            rows = rows_of(problem, name, token + 1, end)
            later[name] = problem.inputs[name].clone()
            later[name][rows] = other.inputs[name][rows]
        got = run(problem, backward=False, **later)["o"]
        assert same_bits(got[: token + 1], expected[: token + 1]), f"cut after token {token}"
        assert not same_bits(got, expected)


@pytest.mark.parametrize(
    "case",
    [
        *CASES,
        Case(lengths=(700, 3, 129, 0, 64, 64), heads=(1, 1, 2), K=32, V=40),
        Case(lengths=(9, 30) * 12, heads=(2, 2, 4), K=24, V=96),
        *(
            Case(lengths=(300, 3, 129, 0, 64), heads=(1, 1, 2), K=32, V=40, op=op)
            for op in OPERATIONS
            if op != "gdn"
        ),
    ],
    ids=str,
)
def test_a_sequence_alone_agrees_with_itself_in_the_batch(case):
    problem = build(case)
    problem.options["batch_invariant"] = True
    batch = run(problem)
    for n, (start, end) in enumerate(spans(case)):
        alone = build(case)
        alone.options["batch_invariant"] = True
        for name in problem.op.tokens:
            if name in problem.inputs:
                alone.inputs[name] = problem.inputs[name][rows_of(problem, name, start, end)]
        if "initial_state" in problem.inputs:
            alone.inputs["initial_state"] = problem.inputs["initial_state"][n : n + 1]
        alone.inputs["cu_seqlens"] = torch.tensor([0, end - start])
        alone.d_o = problem.d_o[start:end]
        alone.d_final = problem.d_final[n : n + 1]
        got = run(alone)
        for name, value in got.items():
            if name in problem.op.parameters:
                continue  # sums over the whole batch
            state = name in ("final_state", "initial_state")
            rows = slice(n, n + 1) if state else rows_of(problem, name, start, end)
            part = batch[name][rows]
            assert same_bits(value, part), f"{name} of sequence {n}"


def rows_of(problem, name, start, end):
    """The rows of tokens start:end in an input or output of the operation."""
    rows = len(problem.inputs[name]) if name in problem.inputs else problem.case.tokens
    steps = rows // problem.case.tokens
    return slice(start * steps, end * steps)


def spans(case):
    ends = torch.tensor(case.lengths).cumsum(0).tolist()
    return [(end - length, end) for end, length in zip(ends, case.lengths, strict=True)]


def test_the_pinned_engine_is_the_one_under_test():
    """Guards the file: run() asserts the executed plan, so a wrong name cannot pass."""
    with pytest.raises(AssertionError):
        run(build(CASES[0]), plan_name=None, executed="gdn_reference")
    assert run(build(CASES[0]), plan_name=None, executed="gdn_cpu")
