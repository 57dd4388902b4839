"""Every rule about a call's arguments: one row each, raised alike eagerly, under FakeTensorMode and
in a compiled graph, with the same exception and the same text."""

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import deltaworks as dw
from deltaworks.ops import gated_delta_net
from run_op import same_bits

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


def valid_call():
    """T = 12, N = 2, heads (2, 2, 4), K = 16, V = 8."""
    rng = torch.Generator().manual_seed(0)
    return {
        "q": torch.randn(12, 2, 16, generator=rng).to(BF16),
        "k": torch.randn(12, 2, 16, generator=rng).to(BF16),
        "v": torch.randn(12, 4, 8, generator=rng).to(BF16),
        "g": -torch.rand(12, 4, generator=rng),
        "beta": torch.rand(12, 4, generator=rng),
        "cu_seqlens": torch.tensor([0, 5, 12]),
    }


def zeros(*shape, dtype=FP32, device=None, grad=False):
    return torch.zeros(shape, dtype=dtype, device=device, requires_grad=grad)


STATE = zeros(2, 4, 8, 16)
POOL = {"initial_state": STATE, "state_indices": torch.tensor([0, 1], dtype=torch.int32)}
SAFE = {"safe_gate": True}


def shape_row(name, expected, *shape, dtype=None, **others):
    """`name` with a wrong shape; the text says what was expected and what came."""
    dtype = dtype or (BF16 if name in ("q", "k", "v") else FP32)
    got = re.escape(str(list(shape)))
    text = rf"{name} must have shape .*{re.escape(expected)}.*, got {got}"
    label = f"{name}_of_shape_{'x'.join(map(str, shape))}"
    return (label, {name: zeros(*shape, dtype=dtype), **others}, ValueError, text)


def dtype_row(name, shape, dtype, allowed, **others):
    """`name` with a wrong dtype; the text lists the right ones."""
    got = str(dtype).removeprefix("torch.")
    text = rf"{name} must be .*{allowed}.*, got {got}"
    return (f"{name}_in_{got}", {name: zeros(*shape, dtype=dtype), **others}, TypeError, text)


def all_in(dtype, **others):
    names = ("q", "k", "v", "g", "beta")
    return {**{name: valid_call()[name].to(dtype) for name in names}, **others}


ROWS = [
    # ranks
    shape_row("q", "[T, H, K]", 12, 32),
    shape_row("k", "[T, HK, K]", 12, 2, 16, 1),
    shape_row("v", "[T, HV, V]", 12),
    shape_row("g", "[T, HO]", 12, 4, 16),
    shape_row("beta", "[T, HO]", 12),
    shape_row("cu_seqlens", "[N+1]", 3, 1, dtype=torch.int64),
    shape_row("cu_seqlens", "[N+1]", dtype=torch.int64),
    shape_row("cu_seqlens", "[N+1]", 0, dtype=torch.int64),
    shape_row("a_log", "[HO]", 1, 4, **SAFE),
    shape_row("dt_bias", "[HO]", **SAFE),
    shape_row("initial_state", "[N, HO, V, K]", 4, 8, 16),
    ("q_of_rank_5", {"q": zeros(12, 2, 16, 1, 1, dtype=BF16)}, ValueError, r"q must have shape"),
    # every axis
    shape_row("k", "[12, 2, 16]", 11, 2, 16),
    shape_row("k", "[12, 2, 16]", 12, 2, 15),
    shape_row("v", "[12, 4, 8]", 13, 4, 8),
    shape_row("g", "[12, 4]", 12, 2),
    shape_row("g", "[12, 4]", 11, 4),
    shape_row("beta", "[12, 4]", 12, 2),
    shape_row("beta", "[12, 4]", 13, 4),
    shape_row("a_log", "[4]", 2, **SAFE),
    shape_row("dt_bias", "[4]", 1, **SAFE),
    shape_row("initial_state", "[2, 4, 8, 16]", 3, 4, 8, 16),
    shape_row("initial_state", "[2, 4, 8, 16]", 1, 4, 8, 16),
    shape_row("initial_state", "[2, 4, 8, 16]", 2, 2, 8, 16),
    shape_row("initial_state", "[2, 4, 8, 16]", 2, 4, 16, 8),
    # heads and head dims
    (
        "heads_of_q_and_v_do_not_divide",
        {"v": zeros(12, 3, 8, dtype=BF16), "g": zeros(12, 3), "beta": zeros(12, 3)},
        ValueError,
        r"head counts? of q and v .*multiple.* 2 and 3",
    ),
    (
        "k_has_neither_head_count",
        {"k": zeros(12, 1, 16, dtype=BF16)},
        ValueError,
        r"k must have as many heads as q \(2\) or v \(4\), got 1",
    ),
    (
        "K_is_0",
        {"q": zeros(12, 2, 0, dtype=BF16), "k": zeros(12, 2, 0, dtype=BF16)},
        ValueError,
        r"key dim.*1\.\.512, got 0",
    ),
    (
        "K_is_513",
        {"q": zeros(12, 2, 513, dtype=BF16), "k": zeros(12, 2, 513, dtype=BF16)},
        ValueError,
        r"key dim.*1\.\.512, got 513",
    ),
    ("V_is_0", {"v": zeros(12, 4, 0, dtype=BF16)}, ValueError, r"value dim.*1\.\.512, got 0"),
    ("V_is_513", {"v": zeros(12, 4, 513, dtype=BF16)}, ValueError, r"value dim.*1\.\.512, got 513"),
    # dtypes
    dtype_row("q", (12, 2, 16), torch.int32, "bfloat16"),
    dtype_row("k", (12, 2, 16), FP32, "bfloat16"),
    dtype_row("v", (12, 4, 8), FP16, "bfloat16"),
    dtype_row("g", (12, 4), FP64, "float32, bfloat16 or float16"),
    dtype_row("g", (12, 4), torch.int64, "float32, bfloat16 or float16"),
    dtype_row("beta", (12, 4), FP64, "float32 or bfloat16"),
    dtype_row("beta", (12, 4), FP16, "float32 or bfloat16"),
    dtype_row("a_log", (4,), FP64, "float32, bfloat16 or float16", **SAFE),
    dtype_row("dt_bias", (4,), torch.int32, "float32, bfloat16 or float16", **SAFE),
    dtype_row("initial_state", (2, 4, 8, 16), FP64, "float32, bfloat16 or float16"),
    dtype_row("initial_state", (2, 4, 8, 16), torch.int8, "float32, bfloat16 or float16"),
    dtype_row("beta", (12, 4), torch.bool, "float32 or bfloat16"),
    (
        "fp32_io_with_bf16_beta",
        all_in(FP32, beta=zeros(12, 4, dtype=BF16)),
        TypeError,
        r"beta must be float32, got bfloat16",
    ),
    (
        "fp64_io_with_fp32_gate",
        all_in(FP64, g=zeros(12, 4)),
        TypeError,
        r"g must be float64.* got float32",
    ),
    (
        "fp64_io_with_fp32_state",
        all_in(FP64, initial_state=STATE),
        TypeError,
        r"initial_state must be float64.* got float32",
    ),
    (
        "cu_seqlens_in_float32",
        {"cu_seqlens": torch.tensor([0.0, 5, 12])},
        ValueError,
        r"cu_seqlens must be int32 or int64, got float32",
    ),
    (
        "cu_seqlens_in_int16",
        {"cu_seqlens": torch.tensor([0, 5, 12], dtype=torch.int16)},
        ValueError,
        r"cu_seqlens must be int32 or int64, got ",
    ),
    # combinations
    (
        "neg_eigval_without_sigmoid",
        {"allow_neg_eigval": True},
        ValueError,
        r"allow_neg_eigval needs use_beta_sigmoid_in_kernel",
    ),
    ("a_log_without_safe_gate", {"a_log": zeros(4)}, ValueError, r"a_log needs safe_gate"),
    ("dt_bias_without_safe_gate", {"dt_bias": zeros(4)}, ValueError, r"dt_bias needs safe_gate"),
    (
        "linear_with_safe_gate",
        {"gate_domain": "linear", **SAFE},
        ValueError,
        r"gate_domain.*linear.* excludes safe_gate",
    ),
    (
        "unknown_gate_domain",
        {"gate_domain": "cubic"},
        ValueError,
        r"gate_domain must be .*log.*linear.*, got .*cubic",
    ),
    (
        "negative_cadence",
        {"checkpoint_every_n_tokens": -64},
        ValueError,
        r"checkpoint_every_n_tokens must be >= 0, got -64",
    ),
    (
        "bad_checkpoint_dtype",
        {"checkpoint_every_n_tokens": 64, "checkpoint_dtype": torch.int32},
        ValueError,
        r"checkpoint_dtype must be .*, got .*int32",
    ),
    (
        "indices_without_state",
        {"state_indices": POOL["state_indices"]},
        ValueError,
        r"state_indices needs initial_state",
    ),
    (
        "overwrite_without_state",
        {"overwrite_initial_state": True},
        ValueError,
        r"overwrite_initial_state needs initial_state",
    ),
    (
        "indices_with_autograd",
        {**POOL, "q": zeros(12, 2, 16, dtype=BF16, grad=True)},
        ValueError,
        r"state_indices excludes autograd",
    ),
    (
        "overwrite_with_autograd",
        {
            "initial_state": STATE,
            "overwrite_initial_state": True,
            "g": zeros(12, 4, grad=True),
        },
        ValueError,
        r"overwrite_initial_state excludes autograd",
    ),
    (
        "overwritten_state_alone_with_autograd",
        {"initial_state": zeros(2, 4, 8, 16, grad=True), "overwrite_initial_state": True},
        ValueError,
        r"overwrite_initial_state excludes autograd",
    ),
    *(
        (
            f"overwritten_state_overlaps_{name}",
            {"initial_state": state, "overwrite_initial_state": True},
            ValueError,
            r"initial_state is written and must not overlap itself, got shape \[2, 4, 8, 16\]",
        )
        for name, state in [
            ("expanded", zeros(4, 8, 16).expand(2, 4, 8, 16)),
            ("sliding", zeros(40, 16).as_strided((2, 4, 8, 16), (128, 32, 16, 1))),
        ]
    ),
    (
        "indices_with_checkpoints",
        {**POOL, "checkpoint_every_n_tokens": 64},
        ValueError,
        r"state_indices excludes checkpoints",
    ),
    # valid, and nobody takes it
    (
        "checkpoints_are_not_there_yet",
        {"checkpoint_every_n_tokens": 64},
        dw.NotSupportedError,
        r"gdn_cpu: .*checkpoint.*gdn_reference: .*checkpoint",
    ),
    (
        "pools_are_not_there_yet",
        POOL,
        dw.NotSupportedError,
        r"gdn_cpu: .*state_indices.*gdn_reference: .*state_indices",
    ),
    (
        "fp64_pinned_to_the_cpu_engine",
        all_in(FP64, plan_name="gdn_cpu"),
        dw.NotSupportedError,
        r"gdn_cpu: .*float64",
    ),
    (
        "unknown_plan",
        {"plan_name": "gdn_abacus"},
        ValueError,
        r"plan_name .*gdn_abacus.*gdn_cpu.*gdn_reference|gdn_cpu.*gdn_reference.*gdn_abacus",
    ),
    # devices
    *(
        (
            f"{name}_on_another_device",
            {name: zeros(*shape, dtype=dtype, device="meta"), **others},
            ValueError,
            rf"{name} must be on q's device \(cpu\), got ",
        )
        for name, shape, dtype, others in [
            ("k", (12, 2, 16), BF16, {}),
            ("beta", (12, 4), FP32, {}),
            ("cu_seqlens", (3,), torch.int64, {}),
            ("a_log", (4,), FP32, SAFE),
            ("initial_state", (2, 4, 8, 16), FP32, {}),
        ]
    ),
]
MALFORMED = [
    ("starts_above_0", [1, 5, 12], r"cu_seqlens must start at 0, got 1"),
    ("starts_below_0", [-1, 5, 12], r"cu_seqlens must start at 0, got -1"),
    ("decreases", [0, 7, 5], r"cu_seqlens must not decrease, got 7 then 5"),
    ("ends_past_T", [0, 5, 13], r"cu_seqlens must end .*T = 12, got 13"),
    ("passes_T_and_comes_back", [0, 40, 12], r"cu_seqlens must not decrease, got 40 then 12"),
    ("goes_negative", [0, -3, 12], r"cu_seqlens must not decrease, got 0 then -3"),
    ("one_offset_not_0", [3], r"cu_seqlens must start at 0, got 3"),
]


def split(changes):
    """The call with `changes`, as (tensors, other arguments)."""
    arguments = {**valid_call(), **changes}
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    return tensors, {name: x for name, x in arguments.items() if name not in tensors}


def table(rows, *names):
    """Parametrises a test by rows whose first entry is the row's name."""
    return pytest.mark.parametrize(names, [r[1:] for r in rows], ids=[r[0] for r in rows])


def failure(function, *arguments):
    """(type, text) of what the call raises."""
    with pytest.raises(Exception) as info:
        function(*arguments)
    return info.type, str(info.value)


def compiled(options):
    torch._dynamo.reset()

    def call(tensors):
        return gated_delta_net(**tensors, **options)

    return torch.compile(call, fullgraph=True, backend="aot_eager")


def check_text(got, expected_type, pattern):
    kind, text = got
    assert kind is expected_type, f"{kind.__name__}: {text}"
    assert re.search(rf"^gated_delta_net: .*(?:{pattern})", text, re.DOTALL), text


def raises_alike(changes, kind, pattern):
    """Eagerly, under FakeTensorMode and from a compiled graph; inputs stay as they are."""
    tensors, options = split(changes)
    before = {n: x.detach().clone() for n, x in tensors.items() if x.device.type == "cpu"}
    eager = failure(lambda: gated_delta_net(**tensors, **options))
    check_text(eager, kind, pattern)
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(x) for name, x in tensors.items()}
        assert failure(lambda: gated_delta_net(**fake, **options)) == eager
    assert failure(compiled(options), tensors) == eager
    for name, x in before.items():
        assert same_bits(tensors[name], x), f"{name} was written"


@table(ROWS, "changes", "kind", "pattern")
def test_rule_raises_alike_in_every_mode(changes, kind, pattern):
    raises_alike(changes, kind, pattern)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@table(MALFORMED, "values", "pattern")
def test_malformed_cu_seqlens_raise_before_anything_is_written(values, pattern, dtype):
    offsets = torch.tensor(values, dtype=dtype)
    state = torch.ones(len(values) - 1, 4, 8, 16)
    tensors, options = split({"cu_seqlens": offsets, "initial_state": state})
    for plan_name in ("gdn_cpu", "gdn_reference"):
        options["plan_name"] = plan_name
        check_text(failure(lambda: gated_delta_net(**tensors, **options)), ValueError, pattern)
        tensors["v"].requires_grad_()
        check_text(failure(lambda: gated_delta_net(**tensors, **options)), ValueError, pattern)
        tensors["v"].requires_grad_(False)
    assert (state == 1).all()


def test_malformed_cu_seqlens_raise_when_a_compiled_graph_runs():
    """One graph, good and bad offsets: the text is the eager one, and the graph lives on."""
    tensors, options = split({})
    call = compiled(options)
    expected = call(tensors)[0]
    for name, values, pattern in MALFORMED[:4]:
        bad = {**tensors, "cu_seqlens": torch.tensor(values)}
        got = failure(call, bad)
        check_text(got, ValueError, pattern)
        assert got == failure(lambda bad=bad: gated_delta_net(**bad, **options)), name
    assert same_bits(call(tensors)[0], expected)


def test_strided_cu_seqlens_are_read_by_their_stride():
    tensors, options = split({})
    expected = gated_delta_net(**tensors, **options)[0]
    tensors["cu_seqlens"] = torch.tensor([0, 99, 5, -7, 12, 1])[::2]
    assert same_bits(gated_delta_net(**tensors, **options)[0], expected)


def test_in_place_options_are_allowed_without_grad_mode():
    """Under no_grad a parameter may keep requires_grad; then the missing engine is what raises."""
    tensors, options = split({**POOL, "q": zeros(12, 2, 16, dtype=BF16, grad=True)})
    with torch.no_grad():
        got = failure(lambda: gated_delta_net(**tensors, **options))
    check_text(got, dw.NotSupportedError, "state_indices")


def test_not_supported_is_a_not_implemented_error():
    assert issubclass(dw.NotSupportedError, NotImplementedError)


def test_the_valid_call_is_valid():
    """Every row of the table differs from it by what the row says."""
    tensors, options = split({})
    o, final_state = gated_delta_net(**tensors, **options)
    assert o.isfinite().all() and o.abs().max() > 0.01 and final_state is None


def test_the_operator_works_after_errors():
    tensors, options = split({})
    expected = gated_delta_net(**tensors, **options)[0]
    for changes, *_ in [row[1:] for row in ROWS]:
        bad, bad_options = split(changes)
        failure(lambda bad=bad, o=bad_options: gated_delta_net(**bad, **o))
    assert same_bits(gated_delta_net(**tensors, **options)[0], expected)


def test_memory_that_is_not_there_is_torchs_error():
    T = 2**40
    q = torch.zeros(1, 1, 8).expand(T, 1, 8)
    g = torch.zeros(1, 1).expand(T, 1)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory for what a call writes"):
        gated_delta_net(q, q, q, g, g, torch.zeros(1, dtype=torch.int64))
