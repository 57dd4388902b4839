"""The same invalid call gives the same exception and text in every language.

The table is that of the C++ tests (tests/cpp/problem_rows.cc), printed as JSON by deltaworks_rows;
there it runs through the C++ and the C interface, here through NumPy and PyTorch. A rule that has
no row, or none that a Python call can break, fails the test unless it is listed as one of the
binding's own.
"""

import functools
import json
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import deltaworks as dw
import deltaworks.numpy
import deltaworks.ops
from deltaworks import _library
from test_dlpack_capsules import produce

BUILD = Path(__file__).parents[2] / "build" / "dev-cpu"
KINDS = {1: ValueError, 2: TypeError, 3: dw.NotSupportedError}
OUTPUTS = {"o", "final_state", "dq", "dk", "dv", "dg", "dbeta", "da_log", "ddt_bias"}
OUTPUTS |= {"d_initial_state", "dw", "y", "dx", "ddt", "dA", "dB", "dC", "dD", "dz"}
FLOWS = {"gated_delta_net": "dO", "mamba2": "dy"}
# The options of each operation, beside those that all have.
COMMON = ("batch_invariant", "output_final_state", "overwrite_initial_state")
COMMON += ("checkpoint_every_n_tokens", "checkpoint_dtype", "plan_name")
DELTA = ("scale", "use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel", "allow_neg_eigval")
DELTA += ("safe_gate", "gate_domain")
TAKEN = {
    "gated_delta_net": DELTA,
    "kimi_delta_attention": (*DELTA, "gate", "gate_lower_bound"),
    "gated_delta_net_v2": (*DELTA, "gate", "gate_lower_bound", "beta_guard"),
    "gated_delta_product": (*DELTA, "num_householder"),
    "mamba2": ("dt_softplus", "dt_min", "dt_max"),
}
# A Python call cannot break these: it must name every required tensor, and outputs are described
# and allocated by the binding.
BINDINGS_OWN = {
    "missing",
    "pass",
    "gradient_of_absent",
    "gradient_dtype",
    "final_state_missing",
    "final_state_unasked",
    "memory",
    "option_of_other",  # a signature has no such option
}
CUDA, METAL = 2, 8  # DLPack's numbers of devices
PROCESS = {"threads"}  # of torch: its operators take torch's number


@functools.cache
def table():
    program = BUILD / "tests" / "cpp" / "deltaworks_rows"
    return json.loads(subprocess.run([program], capture_output=True, check=True, text=True).stdout)


def rows():
    """Rows about what a Python call passes."""
    for row in table()["rows"]:
        subject = row["text"].partition(": ")[2].split(" ")[0]
        if row["rule"] not in BINDINGS_OWN and subject not in OUTPUTS:
            yield row


def numpy_rows():
    """NumPy has no autograd, but a backward."""
    return [row for row in rows() if not row["problem"]["options"]["requires_gradient"]]


def torch_rows():
    """Only the forward's arguments are a user's, and of devices without memory meta is at hand."""

    def exists(x):
        return not x["device"].startswith("cuda") and all(s < NO_MEMORY for s in x["stride"])

    return [
        row
        for row in rows()
        if row["pass"] == "forward"
        and row["rule"] not in PROCESS
        and all(map(exists, row["problem"]["tensors"].values()))
    ]


def label(row):
    return f"{row['rule']}-{row['pass']}-{row['text']}"


def by_row(of):
    return pytest.mark.parametrize("row", of(), ids=label)


NO_MEMORY = 1 << 40  # elements
KEPT = []  # producers: their capsules call into them when they are freed


def on_device(array, device):
    """A DLPack tensor that claims to lie on a device; rejected, its memory is not read."""
    code, bits = {"bfloat16": (4, 16), "int64": (0, 64)}.get(array.dtype.name, (2, 32))
    kind, _, index = device.partition(":")
    place = (CUDA if kind == "cuda" else METAL, int(index or 0))
    KEPT.append(produce(array, code, bits, device=place))
    return KEPT[-1]


def numpy_dtype(name):
    names = {"bfloat16": ml_dtypes.bfloat16, "an unsupported dtype": np.uint16}
    return np.dtype(names.get(name, name))


def numpy_array(described, values):
    shape, stride = described["shape"], described["stride"]
    dtype = numpy_dtype(described["dtype"])
    count = 1 + sum(max(n - 1, 0) * s for n, s in zip(shape, stride, strict=True))
    memory = np.zeros(count if count < NO_MEMORY else 1, dtype)
    if values:
        memory[: len(values)] = values
    return np.lib.stride_tricks.as_strided(memory, shape, [s * dtype.itemsize for s in stride])


def torch_tensor(described, values):
    names = {"an unsupported dtype": torch.uint16}
    dtype = names.get(described["dtype"]) or getattr(torch, described["dtype"])
    device = "cpu" if described["device"] == "cpu" else "meta"
    count = 1 + sum(
        max(n - 1, 0) * s for n, s in zip(described["shape"], described["stride"], strict=True)
    )
    tensor = torch.zeros(count, dtype=dtype, device=device)
    tensor = tensor.as_strided(described["shape"], described["stride"])
    if values:
        tensor.copy_(torch.tensor(values))
    return tensor


def arguments(row, make):
    """Tensors and options of the row's call; cu_seqlens holds the row's offsets, or valid ones."""
    tensors, options = row["problem"]["tensors"], dict(row["problem"]["options"])
    given = {}
    for name, described in tensors.items():
        if name in OUTPUTS:
            continue
        values = None
        if name == "cu_seqlens" and described["shape"] == [3]:
            values = row["offsets"] or [0, 5, 12]
        given[name] = make(described, values)
    for word in ("gate_domain", "gate"):
        options[word] = row[word] or options[word]
    for number in ("scale", "gate_lower_bound", "dt_min", "dt_max"):
        options[number] = None if options[number] is None else float(options[number])
    taken = (*COMMON, *TAKEN[row["problem"]["op"]], "requires_gradient")
    return given, {name: options[name] for name in taken}


def operator(module, row, suffix=""):
    return getattr(module, row["problem"]["op"] + suffix)


def check(error, row):
    assert type(error) is KINDS[row["status"]], error
    assert str(error) == row["text"]
    assert _library.last_rule() == row["rule"]


@by_row(numpy_rows)
def test_numpy_raises_what_the_table_says(row):
    given, options = arguments(row, numpy_array)
    for name, described in row["problem"]["tensors"].items():
        if name in given and described["device"] != "cpu":
            given[name] = on_device(given[name], described["device"])
    options.pop("requires_gradient")
    options["threads"] = row["problem"]["threads"]
    if options["checkpoint_dtype"] is not None:
        options["checkpoint_dtype"] = numpy_dtype(options["checkpoint_dtype"])
    call = operator(deltaworks.numpy, row)
    if row["pass"] == "backward":
        call = operator(deltaworks.numpy, row, "_backward")
        options.pop("output_final_state")
        given.setdefault(FLOWS.get(row["problem"]["op"], "dO"), None)
    with pytest.raises(Exception) as info:
        call(**given, **options)
    check(info.value, row)


@by_row(torch_rows)
def test_torch_raises_what_the_table_says(row):
    given, options = arguments(row, torch_tensor)
    if options["checkpoint_dtype"] is not None:
        options["checkpoint_dtype"] = getattr(torch, options["checkpoint_dtype"])
    if options.pop("requires_gradient"):
        given["g"].requires_grad_()
    with pytest.raises(Exception) as info:
        operator(deltaworks.ops, row)(**given, **options)
    check(info.value, row)


def test_every_rule_has_a_row_in_every_language():
    known = set(table()["rules"])
    assert {row["rule"] for row in table()["rows"]} == known
    assert {row["rule"] for row in numpy_rows()} == known - BINDINGS_OWN - {
        "pool_excludes_autograd"
    }
    # Gradients of states flow in through autograd, which judges them.
    assert {row["rule"] for row in torch_rows()} == known - BINDINGS_OWN - PROCESS - {
        "states_alike"
    }


@pytest.mark.parametrize("op", TAKEN)
def test_the_valid_calls_are_valid(op):
    """The rows differ from them by what the row says."""
    valid = table()["valid"][op]
    row = {"problem": valid["forward"], "offsets": [], "gate_domain": None, "gate": None}
    for module, make in ((deltaworks.ops, torch_tensor), (deltaworks.numpy, numpy_array)):
        given, options = arguments(row, make)
        options.pop("requires_gradient")
        o, final_state = operator(module, row)(**given, **options)
        assert o.shape == (12, 4, 8) and final_state.shape == (2, 4, 8, 16)
    row = row | {"problem": valid["backward"]}
    given, options = arguments(row, numpy_array)
    for name in ("requires_gradient", "output_final_state"):
        options.pop(name)
    gradients = operator(deltaworks.numpy, row, "_backward")(**given, **options)
    assert all(x is not None for x in gradients)
