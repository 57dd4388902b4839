"""deltaworks.testing.read_capture on files that are not what they say: always a ValueError."""

import json
import struct
import tracemalloc

import numpy as np
import pytest

import deltaworks.numpy
from deltaworks import Problem
from deltaworks.testing import capture, make_inputs, read_capture, run_problem
from deltaworks.testing.arrays import DTYPES


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    """A captured call as (header, data)."""
    problem = Problem("gdn:fwd:fp32:N2T9H2K4V4:g=bf16:q@40x4x1")
    path = tmp_path_factory.mktemp("capture") / "call.safetensors"
    with capture(path):
        deltaworks.numpy.gated_delta_net(**make_inputs(problem))
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def packed(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_bytes_are_read_as_files_are(call):
    problem, arrays = read_capture(packed(*call))
    assert str(problem) == "gdn:fwd:fp32:N2T9H2K4V4:g=bf16:q@40x4x1"
    assert arrays["g"].dtype == DTYPES["bfloat16"] and arrays["q"].strides == (160, 16, 4)


def problem_is(text):
    return lambda header: header["__metadata__"].update(problem=text)


def metadata_is(**values):
    return lambda header: header["__metadata__"].update(values)


def entry_is(name, **values):
    return lambda header: header[name].update(values)


def renamed(old, new):
    def change(header):
        header[new] = header.pop(old)

    return change


def swapped(header):
    header["q"]["data_offsets"] = header["k"]["data_offsets"]


CHANGES = {
    "no metadata": (lambda h: h.pop("__metadata__"), "format must be 'deltaworks call 1'"),
    "another format": (metadata_is(format="deltaworks call 2"), "got 'deltaworks call 2'"),
    "missing metadata": (lambda h: h["__metadata__"].pop("isa"), "metadata: isa missing"),
    "unknown metadata": (metadata_is(shell="rm"), "metadata: 'shell' unknown"),
    "metadata that is no text": (metadata_is(isa=3), "not a safetensors file"),
    "no problem string": (problem_is("gdn"), "problem string"),
    "problem string with NUL": (problem_is("gdn\0"), "NUL"),
    "problem that is not valid": (problem_is("gdn:fwd:fp32:N2T9H2K4V4:neg"), "allow_neg_eigval"),
    "problem of wrong dtypes": (problem_is("gdn:fwd:fp32:N2T9H2K4V4:beta=bf16"), "beta must be"),
    "another operation": (metadata_is(op="mamba2"), "op must be gated_delta_net"),
    "another pass": (metadata_is(**{"pass": "backward"}), "pass must be forward"),
    "tensors not listed": (metadata_is(tensors="q k v"), "tensors: beta, cu_seqlens, g missing"),
    "tensors listed": (
        metadata_is(tensors="q k v g beta cu_seqlens w"),
        "tensors: 'w' unknown",
    ),
    "an unknown tensor": (renamed("v", "w"), "file: v missing"),
    "an output": (
        lambda h: h.update(o={"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
        "file: 'o' unknown",
    ),
    "another size": (problem_is("gdn:fwd:fp32:N2T8H2K4V4:g=bf16"), r"must have shape \[8, 2"),
    "another number of sequences": (
        problem_is("gdn:fwd:fp32:N3T9H2K4V4:g=bf16"),
        r"cu_seqlens must have shape \[4\], got \[3\]",
    ),
    "another dtype": (problem_is("gdn:fwd:fp32:N2T9H2K4V4"), "g must be float32, got bfloat16"),
    "another dtype in the file": (entry_is("q", dtype="I32"), "q must be float32, got int32"),
    "a dtype of no tensor": (entry_is("q", dtype="U32"), "q must be one of F32, .* got U32"),
    "an unknown dtype": (entry_is("q", dtype="F31"), "not a safetensors file"),
    "another shape in the file": (entry_is("q", shape=[9, 4, 2]), r"q must have shape \[9, 2, 4\]"),
    "more elements than bytes": (entry_is("q", shape=[9, 2, 5]), "not a safetensors file"),
    "giant shapes": (entry_is("q", shape=[2**40, 2**40, 2**40]), "not a safetensors file"),
    "negative shapes": (entry_is("q", shape=[-9, -2, 4]), "not a safetensors file"),
    "offsets out of range": (
        lambda h: h["v"].update(data_offsets=[x + 4096 for x in h["v"]["data_offsets"]]),
        "not a safetensors file",
    ),
    "offsets backwards": (
        lambda h: h["q"]["data_offsets"].reverse(),
        "not a safetensors file",
    ),
    "offsets that overlap": (swapped, "not a safetensors file"),
    "giant strides": (
        problem_is("gdn:fwd:fp32:N2T9H2K4V4:g=bf16:q@100000000000x4x1"),
        "spread its tensors over 32000000",
    ),
    "giant strides of an output": (
        problem_is("gdn:fwd:fp32:N2T9H2K4V4:g=bf16:o@8x100000000x1"),
        "spread its tensors over 4000",
    ),
    "strides that share memory": (
        problem_is("gdn:fwd:fp32:N2T9H2K4V4:g=bf16:q@0x4x1"),
        r"q: strides \[0, 4, 1\] put different values into the same memory",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_hostile_files(call, change):
    header, data = json.loads(json.dumps(call[0])), call[1]
    spoil, expected = CHANGES[change]
    spoil(header)
    content = packed(header, data)
    tracemalloc.start()
    with pytest.raises(ValueError, match=expected):
        read_capture(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_hostile_bytes(call):
    content = packed(*call)
    for wrong in (
        b"",
        content[:7],
        content[:300],
        content[:-1],
        content + b"\0",
        b"\xff" * 8 + content[8:],
        struct.pack("<Q", len(content)) + content[8:],
        struct.pack("<Q", 1 << 40) + content[8:],
        packed(b"[" * 100_000, b""),
        packed(b'{"a":' * 100_000, b""),
        packed(b"\xff" + json.dumps(call[0]).encode(), call[1]),
        packed([], b""),
        packed({}, b""),
    ):
        with pytest.raises(ValueError, match="not a (safetensors file|captured call)"):
            read_capture(wrong)


def test_random_damage_is_a_call_or_an_error(call):
    content, rng = packed(*call), np.random.default_rng(0)
    errors = 0
    for _ in range(2000):
        wrong = bytearray(content)
        for place in rng.integers(0, len(content) - len(call[1]), rng.integers(1, 4)):
            wrong[place] = rng.integers(0, 256)
        try:
            problem, arrays = read_capture(bytes(wrong))
        except ValueError as error:
            assert str(error)
            errors += 1
        else:
            assert arrays.keys() == problem.inputs.keys()
    assert 1000 < errors < 2000


def test_what_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_capture(tmp_path / "none.safetensors")
    with pytest.raises(IsADirectoryError):
        read_capture(tmp_path)
    with pytest.raises(ValueError, match="not a regular file"):
        read_capture("/dev/zero")


def test_giant_outputs_of_empty_inputs(call):
    metadata = dict(call[0]["__metadata__"])
    metadata["problem"] = "gdn:fwd:fp32:N1T0H500000000K512V512:final"
    shapes = dict(q=[0, 500000000, 512], g=[0, 500000000], cu_seqlens=[2])
    shapes |= dict(k=shapes["q"], v=shapes["q"], beta=shapes["g"])
    header = {"__metadata__": metadata}
    for name, shape in shapes.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    header["cu_seqlens"].update(dtype="I32", data_offsets=[0, 8])
    problem, arrays = read_capture(packed(header, bytes(8)))
    assert problem.outputs["final_state"].shape == (1, 500000000, 512, 512)
    with pytest.raises(ValueError, match="more than this machine's"):
        run_problem(problem, arrays)
