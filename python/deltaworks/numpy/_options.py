"""The arguments of a call that are no arrays, as fields of a problem."""

from __future__ import annotations

import numpy as np

from deltaworks import _arguments
from deltaworks import _library as dw
from deltaworks._operations import Operation
from deltaworks.errors import from_status
from deltaworks.numpy._arrays import DTYPES


def problem_fields(operation: Operation, arguments: dict) -> dict:
    """Fields of _library.Problem for the options among a call's arguments."""
    values = [arguments[option.name] for option in operation.options]
    problem, bits, scalars = _arguments.judge(operation, values, _DOOR)
    problem = problem or _arguments.judge_threads(arguments["threads"])
    if problem is not None:
        status, text = problem
        raise from_status(status, f"{operation.name}: {text}")
    return {**_arguments.fields(bits, scalars), "threads": int(arguments["threads"])}


def _dtype(value):
    """The library's number of a dtype; None: it is none."""
    try:
        return DTYPES.get(np.dtype(value), dw.OTHER)
    except (TypeError, ValueError, SyntaxError):  # of texts such as "f4,("
        return None


_DOOR = _arguments.Door(_arguments.kind, _dtype)
