"""Bad calls of the NumPy operators: what the torch operator raises, and what only arrays can do."""

import re

import ml_dtypes
import numpy as np
import pytest
import torch

import deltaworks
import test_errors
from deltaworks.numpy import gated_delta_net, gated_delta_net_backward
from test_errors import failure
from test_numpy_kit import to_numpy


def on_numpy(changes):
    """A row of test_errors as a NumPy call; None where it is about what NumPy does not have."""
    arguments = {**test_errors.valid_call(), **changes}
    for name, x in arguments.items():
        if isinstance(x, torch.Tensor):
            if x.requires_grad or x.device.type != "cpu":
                return None
            arguments[name] = to_numpy(x)
        elif isinstance(x, torch.dtype):
            arguments[name] = np.dtype(str(x).removeprefix("torch."))
    return arguments


SHARED = [row for row in test_errors.ROWS if on_numpy(row[1]) is not None]


def valid_call(**changes):
    return on_numpy({}) | changes


@pytest.mark.parametrize("changes", [row[1] for row in SHARED], ids=[row[0] for row in SHARED])
def test_a_rule_raises_as_in_torch(changes):
    tensors, options = test_errors.split(changes)
    expected = failure(lambda: test_errors.gated_delta_net(**tensors, **options))
    arguments = on_numpy(changes)
    before = {n: x.tobytes() for n, x in arguments.items() if isinstance(x, np.ndarray)}
    assert failure(lambda: gated_delta_net(**arguments)) == expected
    for name, content in before.items():
        assert arguments[name].tobytes() == content, f"{name} was written"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("row", test_errors.MALFORMED, ids=lambda row: row[0])
def test_malformed_cu_seqlens_raise_as_in_torch(row, dtype):
    tensors, options = test_errors.split({"cu_seqlens": torch.tensor(row[1], dtype=dtype)})
    expected = failure(lambda: test_errors.gated_delta_net(**tensors, **options))
    arguments = valid_call(cu_seqlens=to_numpy(tensors["cu_seqlens"]))
    d_o = np.zeros((12, 4, 8), ml_dtypes.bfloat16)
    assert failure(lambda: gated_delta_net(**arguments)) == expected
    assert failure(lambda: gated_delta_net_backward(**arguments, dO=d_o)) == expected


def packed_field(x):
    """The same values between single bytes."""
    records = np.zeros(x.shape, [("x", x.dtype), ("byte", np.int8)])
    records["x"] = x
    return records["x"]


def odd_base(x):
    """The same values from one byte past an element."""
    moved = np.zeros(x.nbytes + 1, np.int8)[1:].view(x.dtype).reshape(x.shape)
    moved[...] = x
    return moved


def swapped(x):
    """The same values in the other byte order."""
    return x.astype(x.dtype.newbyteorder())


Q, G = valid_call()["q"], valid_call()["g"]
BASE_AND_STRIDES = "must have a base and strides that are multiples of its element size"
AN_ARRAY = "must be an array, got"
ROWS = [
    # no arrays
    ("list", {"q": Q.tolist()}, TypeError, f"q {AN_ARRAY} list"),
    ("tuple", {"g": ()}, TypeError, f"g {AN_ARRAY} tuple"),
    ("number", {"beta": 0.5}, TypeError, f"beta {AN_ARRAY} float"),
    ("numpy_scalar", {"beta": np.float32(0.5)}, TypeError, f"beta {AN_ARRAY} float32"),
    ("none", {"cu_seqlens": None}, TypeError, f"cu_seqlens {AN_ARRAY} NoneType"),
    ("array_class", {"q": np.ndarray}, TypeError, f"q {AN_ARRAY} type"),
    ("text", {"initial_state": "zeros"}, TypeError, f"initial_state {AN_ARRAY} str"),
    ("masked", {"v": np.ma.array(valid_call()["v"])}, TypeError, f"v {AN_ARRAY} MaskedArray"),
    ("bytes", {"v": memoryview(b"abcd")}, TypeError, f"v {AN_ARRAY} memoryview"),
    # dtypes that the library has no name for
    ("swapped_g", {"g": swapped(G)}, TypeError, "g must be float32, bfloat16 or float16, got an "),
    (
        "swapped_offsets",
        {"cu_seqlens": swapped(np.array([0, 5, 12]))},
        ValueError,
        "cu_seqlens must be int32 or int64, got an unsupported dtype",
    ),
    ("objects", {"q": Q.astype(object)}, TypeError, "q must be .*, got an unsupported dtype"),
    ("strings", {"g": G.astype(str)}, TypeError, "g must be .*, got an unsupported dtype"),
    ("nothing", {"g": np.zeros((12, 4), "V0")}, TypeError, "g must be .*, got an unsupported"),
    ("dates", {"g": np.zeros((12, 4), "M8[s]")}, TypeError, "g must be .*, got an unsupported"),
    ("records", {"g": np.zeros((12, 4), "f4,i1")}, TypeError, "g must be .*, got an unsupported"),
    ("long_double", {"g": G.astype(np.longdouble)}, TypeError, "g must be .*, got an unsupported"),
    ("uint16", {"g": G.astype(np.uint16)}, TypeError, "g must be .*, got an unsupported dtype"),
    (
        "float8",
        {"q": Q.astype(ml_dtypes.float8_e4m3fn)},
        TypeError,
        "q must be .*, got an unsupported dtype",
    ),
    (
        "packed_uint16",
        {"g": packed_field(G.astype(np.uint16))},
        TypeError,
        "g must be .*, got an unsupported dtype",
    ),
    # elements where none can be read
    ("packed_field", {"g": packed_field(G)}, ValueError, f"g {BASE_AND_STRIDES} .4 bytes.*20, 5"),
    ("odd_base", {"q": odd_base(Q)}, ValueError, f"q {BASE_AND_STRIDES} .2 bytes.* 1 bytes past"),
    # options; more in test_argument_errors.py
    *(
        (f"dtype_{text}", {"checkpoint_dtype": text}, TypeError, "checkpoint_dtype .*, got str")
        for text in ("f4,(", "(", "\ud800")
    ),
    (
        "checkpoint_dtype_of_torch",
        {"checkpoint_dtype": torch.float32},
        TypeError,
        "checkpoint_dtype must be a dtype or None, got torch.dtype",
    ),
    ("threads", {"threads": "2"}, TypeError, "threads must be an int, got str"),
    ("negative_threads", {"threads": -1}, ValueError, "threads must be >= 0, got -1"),
    ("many_threads", {"threads": 2**31}, ValueError, "threads must fit int32, got 2147483648"),
    ("few_threads", {"threads": -(2**31) - 1}, ValueError, "threads must fit int32, got -2147483"),
]


def table(rows):
    names = ("changes", "kind", "pattern")
    return pytest.mark.parametrize(names, [row[1:] for row in rows], ids=[row[0] for row in rows])


def check_text(got, kind, pattern):
    assert got[0] is kind, got
    assert re.search(rf"^gated_delta_net: {pattern}", got[1], re.DOTALL), got[1]


@table(ROWS)
def test_what_is_no_array_or_no_option_is_refused(changes, kind, pattern):
    arguments = valid_call(**changes)
    check_text(failure(lambda: gated_delta_net(**arguments)), kind, pattern)
    check_text(failure(lambda: gated_delta_net_backward(**arguments, dO=None)), kind, pattern)


@pytest.mark.parametrize("rank", [0, 5])
@pytest.mark.parametrize("name", ["q", "g", "cu_seqlens"])
def test_arrays_of_any_rank_are_described(name, rank):
    array = np.zeros((1,) * rank, valid_call()[name].dtype)
    arguments = valid_call(**{name: array})
    got = "[]" if rank == 0 else "[1, 1, 1, 1, ...]"
    pattern = rf"{name} must have shape .*, got {re.escape(got)}$"
    check_text(failure(lambda: gated_delta_net(**arguments)), ValueError, pattern)


BACKWARD = [
    ("list", {"dO": [1.0]}, TypeError, f"dO {AN_ARRAY} list"),
    ("shape", {"dO": np.zeros((12, 4, 9))}, ValueError, r"dO must have shape .*got \[12, 4, 9\]"),
    (
        "dtype",
        {"dO": np.zeros((12, 4, 8), np.float32)},
        TypeError,
        "dO must be bfloat16 as q is, got float32",
    ),
    (
        "state_dtype",
        {"d_final_state": np.zeros((2, 4, 8, 16), np.float16)},
        TypeError,
        "d_final_state must be float32 without initial_state, got float16",
    ),
    (
        "wanted_text",
        {"wanted": "beta"},
        TypeError,
        "wanted must be an iterable of names or None, got str",
    ),
    (
        "wanted_number",
        {"wanted": 3},
        TypeError,
        "wanted must be an iterable of names or None, got int",
    ),
    (
        "wanted_offsets",
        {"wanted": ["q", "cu_seqlens"]},
        ValueError,
        "wanted must hold some of q, k, v, g, beta, a_log, dt_bias, initial_state; "
        "got 'cu_seqlens'",
    ),
    ("wanted_gradient", {"wanted": ["dq"]}, ValueError, "wanted must hold some of .*; got 'dq'"),
]


@table(BACKWARD)
def test_rules_of_the_backward(changes, kind, pattern):
    arguments = valid_call() | {"dO": None} | changes
    check_text(failure(lambda: gated_delta_net_backward(**arguments)), kind, pattern)


def test_numbers_of_numpy_are_numbers():
    o, _ = gated_delta_net(**valid_call(scale=np.float32(0.5), threads=np.int64(1)))
    assert (o == gated_delta_net(**valid_call(scale=0.5))[0]).all()


@pytest.mark.parametrize("dtype", ["float32", np.float32, ml_dtypes.bfloat16, None])
def test_a_checkpoint_dtype_is_any_name_of_a_dtype(dtype):
    """A right one is not what the call fails for: no engine has checkpoints yet."""
    arguments = valid_call(checkpoint_every_n_tokens=np.int64(64), checkpoint_dtype=dtype)
    kind, text = failure(lambda: gated_delta_net(**arguments))
    assert kind is deltaworks.NotSupportedError and "checkpoint" in text


def test_the_valid_call_is_valid():
    """Every row of the tables differs from it by what the row says."""
    o, final_state = gated_delta_net(**valid_call())
    assert np.isfinite(o.astype(np.float32)).all() and final_state is None
    gradients = gated_delta_net_backward(**valid_call(), dO=o)
    assert np.abs(gradients.dq.astype(np.float32)).max() > 0
