"""Hostile files for the reader of captured calls: whatever the bytes, a call or a clear error.

    PYTHONPATH=python python tests/fuzz/capture_file.py -max_total_time=60 CORPUS

Needs atheris (libFuzzer for Python) and the built library. Valid files of a few calls are written
into the folder CORPUS first. Files are mostly changed where their structure is: the length of the
header, offsets, shapes, dtypes, names, metadata and the problem string in it. The process may take
half a gigabyte more than it has when it begins, so that an allocation out of proportion fails.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["deltaworks"]):
    from deltaworks.problem import Problem
    from deltaworks.testing import files, make_inputs, read_capture
    from deltaworks.testing.captures import FORMAT

ALLOWED_MEMORY = 1 << 29
CALLS = (
    "gdn:fwd:fp32:N2T5H2K4V3:l2norm",
    "gdn:fwd:bf16:N1T3H1HK1HV2K2V2:safe:a_log:dt_bias=bf16:state:final:plan=gdn_cpu",
    "gdn:bwd:fp16:N2T4H1K3V2:sigmoid:neg:cu_seqlens=i64:state=fp16:final:-dk",
    "gdn:fwd:fp64:N0T0H0K1V1:linear",
    "gdn:fwd:fp32:N1T4H2K4V2:q@8x-4x1:k@0x0x1:g@1x4",
    "gdn:fwd:fp32:N2T4H1K2V2:pool=3:final:overwrite",
    "gdn:fwd:fp32:N400T2H1K256V256:final",  # outputs that are much larger than the file
)
EDGES = (0, 1, 2, 3, 7, 8, -1, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64)
DTYPES = ("F32", "BF16", "F16", "F64", "I32", "I64", "BOOL", "U8", "F8_E4M3", "f32", "", None, 4)
WORDS = (
    ":q@0x0x1",
    ":q@300000000x256x1",
    ":v@9223372036854775807x1x1",
    ":k@-4x-4x-1",
    ":g@1073741824x1",
    ":pool=1000000000",
    ":pool=281474976710656",
    ":state=bf16",
    ":device=cuda0",
    ":plan=gdn_reference",
    ":-q",
    ":+o",
    ":final",
    "\0",
    "é",
    "\ud800",
)

valid_files: list[bytes] = []


def test_one_input(data: bytes) -> None:
    try:
        problem, inputs = read_capture(data)
    except ValueError as error:
        if not 0 < len(str(error)) < 10_000:
            raise AssertionError(f"an error of {len(str(error))} characters") from error
        return
    assert Problem(str(problem)) == problem
    assert inputs.keys() == problem.inputs.keys()
    for name, tensor in problem.inputs.items():
        array = inputs[name]
        assert array.shape == tensor.shape, name
        for size, got, expected in zip(array.shape, array.strides, tensor.strides, strict=True):
            assert array.size == 0 or size <= 1 or got == expected * array.itemsize, name
        array.tobytes()  # every element can be read


def split(data: bytes) -> tuple[dict, bytes] | None:
    """Header and tensors of a file, if it has them."""
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:end])
    except (ValueError, RecursionError):
        return None
    return (header, data[end:]) if isinstance(header, dict) and header else None


def join(header: dict, tensors: bytes, pad: int = 0) -> bytes:
    text = json.dumps(header).encode() + b" " * pad
    return len(text).to_bytes(8, "little") + text + tensors


def change_number(numbers: list, chance: random.Random) -> None:
    """One of a shape or of two offsets."""
    match chance.randrange(4):
        case 0:
            numbers.append(chance.choice(EDGES))
        case 1 if numbers:
            numbers.pop(chance.randrange(len(numbers)))
        case 2 if numbers:
            at = chance.randrange(len(numbers))
            if isinstance(numbers[at], int):
                numbers[at] += chance.choice((-4, -2, -1, 1, 2, 4))
        case _ if numbers:
            other = chance.choice((1.5, "1", None, [], True))
            value = chance.choice((*EDGES, other))
            numbers[chance.randrange(len(numbers))] = value


def change_tensor(header: dict, name: str, chance: random.Random) -> None:
    entry = header[name]
    if not isinstance(entry, dict) or chance.random() < 0.1:
        header[name] = chance.choice(({}, [], None, 1, "F32", {"dtype": "F32"}))
        return
    key = chance.choice(("dtype", "shape", "data_offsets"))
    if key == "dtype":
        entry[key] = chance.choice(DTYPES)
    elif isinstance(entry.get(key), list) and chance.random() < 0.9:
        change_number(entry[key], chance)
    else:
        entry[key] = chance.choice((None, 0, "x", {}, [[]]))


def change_metadata(header: dict, chance: random.Random) -> None:
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or not metadata or chance.random() < 0.05:
        header["__metadata__"] = chance.choice(({}, [], None, {"format": FORMAT}, {"format": 1}))
        return
    key = "problem" if chance.random() < 0.6 else chance.choice(list(metadata))
    text = metadata.get(key)
    if not isinstance(text, str) or chance.random() < 0.1:
        metadata[key] = chance.choice((None, 1, [], {}, "", "x" * 5000))
    elif chance.random() < 0.1:
        del metadata[key]
    elif key == "problem" and chance.random() < 0.6:
        metadata[key] = text + chance.choice(WORDS)
    else:
        mutated = atheris.Mutate(text.encode(errors="surrogatepass"), len(text) + 64)
        metadata[key] = mutated.decode(errors="replace")


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    chance = random.Random(seed)
    if chance.random() < 0.3:  # libFuzzer keeps few valid files: the others reach no other lines
        data = chance.choice(valid_files)
    parts = split(data)
    if parts is None or chance.random() < 0.15:
        return atheris.Mutate(data, max_size)
    header, tensors = parts
    for _ in range(chance.choice((1, 1, 2, 3))):
        name = chance.choice(list(header)) if header else ""
        match chance.randrange(8):
            case 0 | 1 | 2:
                change_metadata(header, chance)
            case 3 | 4 | 5 if header and name != "__metadata__":
                change_tensor(header, name, chance)
            case 6 if header:  # renamed or gone
                entry = header.pop(name)
                if chance.random() < 0.7:
                    header[chance.choice(("q", "o", "", "state_indices", name + "x"))] = entry
            case _:
                tensors = chance.choice((tensors[:-1], tensors + b"\0", b"", bytes(len(tensors))))
    changed = join(header, tensors, chance.choice((0, 0, 0, 1, 8)))
    if chance.random() < 0.1:  # another length of the header, or the same key twice
        if chance.random() < 0.7:
            length = chance.choice((*EDGES, len(changed), len(changed) - 8)) % 2**64
            changed = length.to_bytes(8, "little") + changed[8:]
        else:
            end = 8 + int.from_bytes(changed[:8], "little")
            text = changed[8:end].replace(b"{", b'{"q":{"dtype":"F32"},', 1)
            changed = len(text).to_bytes(8, "little") + text + changed[end:]
    return changed[:max_size]


def write_corpus(folder: Path) -> None:
    """A file of each call, which the reader must take, as bytes and by its path."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(CALLS):
        problem = Problem(text)
        metadata = {
            "format": FORMAT,
            "problem": text,
            "op": problem.op,
            "pass": problem.pass_,
            "tensors": " ".join(problem.inputs),
            **files.provenance(),
        }
        path = folder / f"call{number}"
        inputs = make_inputs(problem, seed=0)
        files.save(path, inputs, metadata)
        valid_files.append(path.read_bytes())
        for source in (path, valid_files[-1]):
            read, arrays = read_capture(source)
            assert read == problem
            assert all(arrays[name].tobytes() == inputs[name].tobytes() for name in inputs)


def main() -> None:
    folders = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if not folders:
        sys.exit("capture_file.py: name a folder for the corpus")
    write_corpus(Path(folders[0]))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ALLOWED_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # Room to change the largest of the valid files; the caller's own -max_len wins.
    arguments = [sys.argv[0], "-max_len=16384", *sys.argv[1:]]
    atheris.Setup(arguments, test_one_input, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
