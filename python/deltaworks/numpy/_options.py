"""The arguments of a call that are no arrays, as fields of a problem."""

from __future__ import annotations

import numpy as np

from deltaworks import _arguments
from deltaworks import _library as dw
from deltaworks.errors import from_status
from deltaworks.numpy._arrays import DTYPES


def problem_fields(operation: str, arguments: dict) -> dict:
    """Fields of _library.Problem for the options among a call's arguments."""
    problem, flags, (scale, gate_domain, plan_name, every) = _arguments.judge(
        [arguments[name] for name in _arguments.FLAGS],
        arguments["scale"],
        arguments["gate_domain"],
        arguments["plan_name"],
        arguments["checkpoint_every_n_tokens"],
    )
    dtype, wrong = _dtype(arguments["checkpoint_dtype"])
    problem = problem or wrong or _arguments.judge_threads(arguments["threads"])
    if problem is not None:
        status, text = problem
        raise from_status(status, f"{operation}: {text}")
    if dtype is not None:
        flags |= dw.HAS_CHECKPOINT_DTYPE
    return {
        "flags": flags,
        "scale": scale,
        "gate_domain": gate_domain.encode(),
        "plan_name": plan_name.encode(),
        "checkpoint_every_n_tokens": every,
        "checkpoint_dtype": dtype or 0,
        "threads": int(arguments["threads"]),
    }


def _dtype(value):
    """(the library's number of a dtype or None, what is wrong or None)."""
    if value is None:
        return None, None
    try:
        return DTYPES.get(np.dtype(value), dw.OTHER), None
    except (TypeError, ValueError, SyntaxError):  # of texts such as "f4,("
        return None, _arguments.wrong_kind("checkpoint_dtype", "a dtype or None", value)
