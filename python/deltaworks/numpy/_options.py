"""The arguments of a call that are no arrays, as fields of a problem.

Judged here is only what the library cannot see: that a value is a number, a string or a dtype at
all, and that it survives the way into a C struct.
"""

from __future__ import annotations

import numbers

import numpy as np

from deltaworks import _library as dw
from deltaworks.numpy._arrays import DTYPES

FLAGS = {
    "output_final_state": dw.OUTPUT_FINAL_STATE,
    "use_qk_l2norm_in_kernel": dw.L2NORM,
    "batch_invariant": dw.BATCH_INVARIANT,
    "use_beta_sigmoid_in_kernel": dw.BETA_SIGMOID,
    "allow_neg_eigval": dw.ALLOW_NEG_EIGVAL,
    "safe_gate": dw.SAFE_GATE,
    "overwrite_initial_state": dw.OVERWRITE_INITIAL_STATE,
}
# What the struct's fields hold; the library judges a negative cadence, but not negative threads.
_RANGES = {
    "checkpoint_every_n_tokens": (-(2**63), 2**63 - 1),
    "threads": (0, 2**31 - 1),
}


def problem_fields(operation: str, arguments: dict) -> dict:
    """Fields of _library.Problem for the options among a call's arguments."""
    flags = sum(flag for name, flag in FLAGS.items() if arguments.get(name))
    fields = {}
    scale = arguments.get("scale")
    if scale is not None:
        if not isinstance(scale, numbers.Real):
            raise _kind(operation, "scale", "a number or None", scale)
        flags |= dw.HAS_SCALE
        fields["scale"] = float(scale)
    for name in ("plan_name", "gate_domain"):
        if name in arguments:
            fields[name] = _text(operation, name, arguments[name])
    for name, (low, high) in _RANGES.items():
        if name in arguments:
            fields[name] = _integer(operation, name, arguments[name], low, high)
    checkpoint_dtype = arguments.get("checkpoint_dtype")
    if checkpoint_dtype is not None:
        flags |= dw.HAS_CHECKPOINT_DTYPE
        fields["checkpoint_dtype"] = _dtype(operation, "checkpoint_dtype", checkpoint_dtype)
    return {"flags": flags, **fields}


def _text(operation, name, value):
    if value is None and name == "plan_name":
        return None
    if not isinstance(value, str):
        expected = "a str or None" if name == "plan_name" else "a str"
        raise _kind(operation, name, expected, value)
    if "\0" in value:  # it would end there
        raise ValueError(f"{operation}: {name} must hold no NUL character, got {value!r}")
    return value.encode()


def _integer(operation, name, value, low, high):
    if not isinstance(value, numbers.Integral):
        raise _kind(operation, name, "an int", value)
    if not low <= value <= high:
        raise ValueError(f"{operation}: {name} must be in {low}..{high}, got {value}")
    return int(value)


def _dtype(operation, name, value):
    try:
        return DTYPES.get(np.dtype(value), dw.OTHER)
    except TypeError:
        raise _kind(operation, name, "a NumPy dtype or None", value) from None


def _kind(operation, name, expected, got):
    return TypeError(f"{operation}: {name} must be {expected}, got {type(got).__name__}")
