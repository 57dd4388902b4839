"""Arrays with metadata as safetensors files: written whole or not at all, read with suspicion."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from deltaworks import _library

# The package's own NumPy reader knows no bfloat16.
_DTYPES = {
    "F32": np.float32,
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F64": np.float64,
    "I32": np.int32,
    "I64": np.int64,
}


def provenance() -> dict[str, str]:
    """What made a file: metadata keys "deltaworks", "build" and "isa"."""
    lib = _library.library()
    return {
        "deltaworks": lib.dw_version().decode(),
        "build": lib.dw_build().decode(),
        "isa": _library.cpu_isa()[0],
    }


def save(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Writes the arrays' values, row-major."""
    dense = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(safetensors.numpy.save(dense, metadata))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load(source: str | os.PathLike | bytes) -> tuple[dict[str, np.ndarray], dict[str, str], int]:
    """(arrays, metadata, size in bytes); ValueError says why it is no such file.

    The bytes are read before they are parsed: a file that changes meanwhile does no harm. Takes
    twice the file's size.
    """
    data = source if isinstance(source, bytes) else _read(Path(source))
    try:
        entries = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise ValueError(f"not a safetensors file: {error}") from None
    arrays = {}
    for name, entry in entries:
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{name} must be one of {', '.join(_DTYPES)}, got {entry['dtype']}")
        flat = np.frombuffer(entry["data"], _DTYPES[entry["dtype"]])
        try:
            arrays[name] = flat.reshape(entry["shape"])
        except ValueError:  # without elements, and beyond NumPy's sizes
            raise ValueError(f"{name} has a shape beyond memory: {entry['shape']}") from None
    # deserialize has judged the header, but gives out no metadata.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return arrays, header.get("__metadata__") or {}, len(data)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"not a safetensors file: {path} is not a regular file")
        return file.read()
