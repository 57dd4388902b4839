"""Arguments that are no tensors, or no tensors that can be read: the same error from PyTorch (in
every mode) and from NumPy."""

import contextlib
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import deltaworks.numpy
import new_operations
from deltaworks import Problem, _hooks, _library, ops
from deltaworks.ops import gated_delta_net
from test_errors import check_text, compiled, failure, raises_alike, same_bits, split, table
from test_numpy_errors import on_numpy
from test_numpy_kit import to_numpy

BITS = {
    "use_qk_l2norm_in_kernel": _library.L2NORM,
    "use_beta_sigmoid_in_kernel": _library.BETA_SIGMOID,
    "allow_neg_eigval": _library.ALLOW_NEG_EIGVAL,
    "safe_gate": _library.SAFE_GATE,
    "batch_invariant": _library.BATCH_INVARIANT,
    "output_final_state": _library.OUTPUT_FINAL_STATE,
    "overwrite_initial_state": _library.OVERWRITE_INITIAL_STATE,
}
NOT_TEXT = "must hold no NUL and no lone surrogate, got "


def row(name, value, kind, pattern):
    return f"{name}={ascii(value)[:24]}", {name: value}, kind, pattern


ROWS = [
    *(row(name, "yes", TypeError, f"{name} must be a bool, got str") for name in BITS),
    row("output_final_state", 1, TypeError, "output_final_state must be a bool, got int"),
    row("safe_gate", None, TypeError, "safe_gate must be a bool, got NoneType"),
    row("scale", "1", TypeError, "scale must be a number or None, got str"),
    row("scale", 1j, TypeError, "scale must be a number or None, got complex"),
    row("scale", 10**400, ValueError, "scale must fit float64, got int beyond it"),
    row("scale", -(2**1024) + 2**970, ValueError, "scale must fit float64, got int beyond it"),
    row("scale", Fraction(10**400), ValueError, "scale must fit float64, got Fraction beyond it"),
    row("scale", float("inf"), ValueError, "scale must be finite, got inf"),
    row("plan_name", 7, TypeError, "plan_name must be a str or None, got int"),
    row("plan_name", "gdn_cpu\0", ValueError, rf"plan_name {NOT_TEXT}'gdn_cpu\\x00'"),
    row("plan_name", "gdn_\ud800", ValueError, rf"plan_name {NOT_TEXT}'gdn_\\ud800'"),
    row("plan_name", "gdn_café", ValueError, "plan_name must be one of .*, got gdn_café"),
    row("gate_domain", None, TypeError, "gate_domain must be a str, got NoneType"),
    row("gate_domain", "log\0linear", ValueError, rf"gate_domain {NOT_TEXT}'log\\x00linear'"),
    row("gate_domain", "\udfff", ValueError, rf"gate_domain {NOT_TEXT}'\\udfff'"),
    *(
        row("checkpoint_every_n_tokens", value, kind, f"checkpoint_every_n_tokens {text}")
        for value, kind, text in (
            (64.0, TypeError, "must be an int, got float"),
            ("64", TypeError, "must be an int, got str"),
            (2**63, ValueError, "must fit int64, got 9223372036854775808"),
            (-(2**63) - 1, ValueError, "must fit int64, got -9223372036854775809"),
            (-(2**63), ValueError, "must be >= 0, got -9223372036854775808"),
            (10**400, ValueError, "must fit int64, got one of 1329 bits"),
        )
    ),
    row("checkpoint_dtype", 7, TypeError, "checkpoint_dtype must be a dtype or None, got int"),
    row("checkpoint_dtype", "f33", TypeError, "checkpoint_dtype must be a dtype or None, got str"),
    (
        "the_first_of_two",
        {"scale": "1", "checkpoint_dtype": 7},
        TypeError,
        "scale must be a number or None, got str",
    ),
    (
        "kinds_before_rules",
        {"scale": "1", "allow_neg_eigval": True},
        TypeError,
        "scale must be a number or None, got str",
    ),
]


@table(ROWS, "changes", "kind", "pattern")
def test_torch_raises_alike_in_every_mode(changes, kind, pattern):
    raises_alike(changes, kind, f"{pattern}$")


@table(ROWS, "changes", "kind", "pattern")
def test_numpy_raises_as_torch(changes, kind, pattern):
    tensors, options = split(changes)
    expected = failure(lambda: gated_delta_net(**tensors, **options))
    arguments = on_numpy(changes)
    assert failure(lambda: deltaworks.numpy.gated_delta_net(**arguments)) == expected
    backward = deltaworks.numpy.gated_delta_net_backward
    assert failure(lambda: backward(**arguments, dO=None)) == expected


@pytest.mark.parametrize("value", [torch.tensor(1), torch.nn.Parameter(torch.ones(()))])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("safe_gate", "a bool"),
        ("scale", "a number or None"),
        ("plan_name", "a str or None"),
        ("gate_domain", "a str"),
        ("checkpoint_every_n_tokens", "an int"),
        ("checkpoint_dtype", "a dtype or None"),
    ],
)
def test_a_tensor_is_none_of_them(name, expected, value):
    tensors, _ = split({})
    got = failure(lambda: gated_delta_net(**tensors, **{name: value}))
    check_text(got, TypeError, f"{name} must be {expected}, got Tensor$")


def test_no_number_is_too_long_to_be_named():
    """Python prints no int of more than 4300 digits."""
    tensors, _ = split({})
    for name in ("scale", "checkpoint_every_n_tokens"):
        got = failure(lambda name=name: gated_delta_net(**tensors, **{name: 10**5000}))
        check_text(got, ValueError, f"{name} must fit ")


@pytest.mark.parametrize("value", [True, np.bool_(True)], ids=["bool", "numpy_bool"])
@pytest.mark.parametrize("name", BITS)
def test_each_flag_reaches_the_library_from_both_doors(name, value, monkeypatch):
    """Also where the call is not valid with this flag alone."""
    seen = []
    monkeypatch.setattr(_hooks, "call_hook", lambda problem, _: seen.append(problem.flags))
    for operator, convert in (
        (gated_delta_net, lambda x: x),
        (deltaworks.numpy.gated_delta_net, to_numpy),
    ):
        arguments = {argument: convert(x) for argument, x in split({})[0].items()}
        with contextlib.suppress(ValueError):
            operator(**arguments, **{name: value})
    assert seen == [BITS[name]] * 2


def test_values_of_numpy_count():
    tensors, _ = split({})
    expected = gated_delta_net(**tensors, scale=0.5, use_qk_l2norm_in_kernel=True)[0]
    for scale in (np.float32(0.5), np.float64(0.5), np.longdouble(0.5), Fraction(1, 2)):
        o, state = gated_delta_net(
            **tensors,
            scale=scale,
            use_qk_l2norm_in_kernel=np.bool_(True),
            output_final_state=np.bool_(False),
            checkpoint_every_n_tokens=np.int64(0),
        )
        assert same_bits(o, expected) and state is None


@pytest.mark.parametrize("name", ["q", "v", "beta", "cu_seqlens", "a_log", "initial_state"])
def test_something_else_than_a_tensor_is_a_type_error(name):
    tensors, options = split({"safe_gate": True})
    tensors[name] = [1.0, 2.0]
    check_text(failure(lambda: gated_delta_net(**tensors, **options)), TypeError, name)


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "cu_seqlens"])
def test_none_for_a_required_tensor_is_a_type_error(name):
    tensors, options = split({})
    tensors[name] = None
    check_text(failure(lambda: gated_delta_net(**tensors, **options)), TypeError, name)


LAYOUTS = [
    ("q", torch.Tensor.to_sparse, "layout torch.sparse_coo"),
    ("v", torch.Tensor.to_sparse_csr, "layout torch.sparse_csr"),
    ("beta", torch.Tensor.to_mkldnn, "layout torch._mkldnn"),
    ("g", lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged), "layout torch.jagged"),
]


@pytest.mark.filterwarnings("ignore:Sparse|The PyTorch API of nested tensors")
@pytest.mark.parametrize(("name", "convert", "got"), LAYOUTS, ids=[row[2] for row in LAYOUTS])
def test_tensors_must_be_strided(name, convert, got):
    tensors, _ = split({})
    tensors[name] = convert(tensors[name][0] if "csr" in got else tensors[name])
    text = f"{name} must be a strided tensor, got {got}$"
    check_text(failure(lambda: gated_delta_net(**tensors)), TypeError, text)
    if "jagged" in got:  # torch itself lets no other into a graph
        check_text(failure(compiled({}), tensors), TypeError, text)


def test_a_fake_sparse_tensor_is_refused_as_well():
    tensors, _ = split({})
    tensors["q"] = tensors["q"].to_sparse()
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(x) for name, x in tensors.items()}
        got = failure(lambda: gated_delta_net(**fake))
    check_text(got, TypeError, "q must be a strided tensor, got layout torch.sparse_coo$")


# Of the operations that test_errors.py does not have: arguments of their own.
KDA, GDN2, GDP = "kimi_delta_attention", "gated_delta_net_v2", "gated_delta_product"
SAFE = {"safe_gate": True}
OWN = [
    (KDA, {"gate": 1}, TypeError, "gate must be a str, got int"),
    (KDA, {"gate": "\0"}, ValueError, rf"gate {NOT_TEXT}'\\x00'"),
    (KDA, {"gate": "tanh", **SAFE}, ValueError, "gate must be 'sigmoid' or 'softplus', got 'tanh'"),
    (KDA, {"gate": "softplus"}, ValueError, "gate='softplus' needs safe_gate"),
    (
        KDA,
        {"gate_lower_bound": "-5"},
        TypeError,
        "gate_lower_bound must be a number or None, .* str",
    ),
    (KDA, {"gate_lower_bound": -5}, ValueError, "gate_lower_bound needs safe_gate"),
    (KDA, {"gate_lower_bound": 0, **SAFE}, ValueError, "gate_lower_bound must be .* < 0, got 0"),
    (
        KDA,
        {"gate_lower_bound": -1.5, "gate": "softplus", **SAFE},
        ValueError,
        "gate_lower_bound excludes gate='softplus'",
    ),
    (KDA, {"dt_bias": torch.zeros(4), **SAFE}, ValueError, r"dt_bias must have shape \[HO, K\].*"),
    (GDN2, {"beta_guard": 1}, TypeError, "beta_guard must be a bool, got int"),
    (GDN2, {"beta_guard": True}, ValueError, "beta_guard needs use_qk_l2norm_in_kernel"),
    (GDN2, {"w": None}, TypeError, "w must be a.*, got NoneType"),
    (GDN2, {"w": torch.zeros(12, 4, 9)}, ValueError, r"w must have shape .*, got \[12, 4, 9\]"),
    (GDP, {"num_householder": 3.0}, TypeError, "num_householder must be an int, got float"),
    (GDP, {"num_householder": 0}, ValueError, "num_householder must be >= 1, got 0"),
    (GDP, {"num_householder": 2}, ValueError, r"k must have shape .*T\*n.*, got \[36, 2, 16\]"),
    (GDP, {"v": torch.zeros(12, 2, 4, 8)}, ValueError, r"v must have .*, got \[12, 2, 4, 8\]"),
    ("mamba2", {"dt_softplus": None}, TypeError, "dt_softplus must be a bool, got NoneType"),
    ("mamba2", {"dt_min": None}, TypeError, "dt_min must be a number, got NoneType"),
    ("mamba2", {"dt_max": "1"}, TypeError, "dt_max must be a number or None, got str"),
    ("mamba2", {"dt_min": 2, "dt_max": 1}, ValueError, "dt_min must be <= dt_max, got 2 and 1"),
    ("mamba2", {"x": None}, TypeError, "x must be a.*, got NoneType"),
    ("mamba2", {"C": torch.zeros(12, 4, 16)}, ValueError, ".*B and C .*"),
    ("mamba2", {"D": torch.zeros(4, 7)}, ValueError, r"D must have shape .*, got \[4, 7\]"),
    ("mamba2", {"z": torch.zeros(12, 4)}, ValueError, r"z must have shape .*, got \[12, 4\]"),
]


@pytest.mark.parametrize(
    ("name", "changes", "kind", "text"), OWN, ids=[f"{r[0]}-{'-'.join(r[1])}" for r in OWN]
)
def test_options_of_one_operation_are_judged_alike(name, changes, kind, text):
    arguments = {**new_operations.calls()[name], **changes}
    operator = getattr(ops, name)
    eager = failure(lambda: operator(**arguments))
    assert eager[0] is kind and re.fullmatch(f"{name}: {text}", eager[1], re.DOTALL), eager
    torch._dynamo.reset()
    compiled = torch.compile(lambda: operator(**arguments), fullgraph=True, backend="aot_eager")
    assert failure(compiled) == eager
    with FakeTensorMode() as mode:
        assert failure(lambda: operator(**on_tensors(arguments, mode.from_tensor))) == eager
    arrays = on_tensors(arguments, to_numpy)
    in_numpy = kind, eager[1].replace("a Tensor", "an array")
    assert failure(lambda: getattr(deltaworks.numpy, name)(**arrays)) == in_numpy
    backward = getattr(deltaworks.numpy, f"{name}_backward")
    flow = "dy" if name == "mamba2" else "dO"
    assert failure(lambda: backward(**arrays, **{flow: None})) == in_numpy


def on_tensors(arguments, convert):
    return {n: convert(x) if isinstance(x, torch.Tensor) else x for n, x in arguments.items()}


WIRE = [
    (KDA, {"gate_lower_bound": -3, **SAFE}, "gate_lower_bound", -3.0),
    (KDA, {"gate": "softplus", **SAFE}, "gate", b"softplus"),
    (GDN2, {"beta_guard": True, "use_qk_l2norm_in_kernel": True}, "flags", _library.BETA_GUARD),
    (GDP, {}, "num_householder", 3),
    ("mamba2", {"dt_softplus": False}, "flags", _library.DT_LINEAR),
    ("mamba2", {"dt_softplus": np.bool_(False)}, "flags", _library.DT_LINEAR),
    ("mamba2", {"dt_min": 0.25}, "dt_min", 0.25),
    ("mamba2", {"dt_max": Fraction(1, 2)}, "dt_max", 0.5),
    ("mamba2", {"dt_max": 7}, "flags", _library.HAS_DT_MAX),
]


@pytest.mark.parametrize(("name", "changes", "field", "value"), WIRE)
def test_options_of_one_operation_reach_the_library(name, changes, field, value, monkeypatch):
    """From both doors, and the tensors under the operation's own names."""
    seen = []
    monkeypatch.setattr(_hooks, "call_hook", lambda *call: seen.append(call))
    arguments = {**new_operations.calls()[name], **changes}
    for package, convert in ((ops, lambda x: x), (deltaworks.numpy, to_numpy)):
        with contextlib.suppress(deltaworks.NotSupportedError):
            getattr(package, name)(**on_tensors(arguments, convert))
    assert len(seen) == 2
    given = {n for n, x in arguments.items() if isinstance(x, torch.Tensor)}
    for problem, tensors in seen:
        got = getattr(problem, field)
        assert got & value if field == "flags" else got == value
        assert set(tensors) == given


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (7, TypeError, "must be a str, got int"),
        ("gdn\0", ValueError, rf"{NOT_TEXT}'gdn\\x00'"),
        ("\ud800", ValueError, rf"{NOT_TEXT}'\\ud800'"),
    ],
)
def test_texts_of_problems_are_judged_alike(value, kind, text):
    with pytest.raises(kind, match=f"^problem string {text}"):
        Problem(value)
    with pytest.raises(kind, match=f"^plan_name {text}"):
        Problem("gdn:fwd:fp32:N1T8H1K4V4").pinned(value)
