"""The arguments of an operator call that are no tensors, judged once for NumPy and PyTorch.

Judged here is only what the library cannot see: that a value is a bool, a number or a string at
all, and that it survives the way into a C struct. Every call runs this code and torch.compile
traces it: so what is wrong is returned as (status, text), None where nothing is, and not raised.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

from deltaworks import _library as dw
from deltaworks.errors import TYPE, VALUE

_BEYOND_FLOAT64 = 2**1024 - 2**970  # rounds to infinity

# What the library takes besides flags: fields of dw_problem, in the order in which the dispatcher
# operators take them. A text that is None is the default one. Those from the sixth on are options
# of some operations only; the calls of others end before them.
SCALARS = (
    "scale",
    "gate_domain",
    "plan_name",
    "checkpoint_every_n_tokens",
    "checkpoint_dtype",
    "gate",
    "gate_lower_bound",
    "num_householder",
    "dt_min",
    "dt_max",
)
COMMON = 5
_PLACES = {name: place for place, name in enumerate(SCALARS)}


class Door(NamedTuple):
    """What NumPy and PyTorch see differently."""

    kind: Callable[[Any], str]  # names a value in errors
    dtype: Callable[[Any], int | None]  # the library's number of a dtype; None: it is none


class Option(NamedTuple):
    """One option of an operator: how its value is judged and handed on."""

    name: str
    default: Any  # needs no judging
    take: (
        Callable[..., tuple] | None
    )  # (what is wrong or None, value for the library); None: a bool
    bit: int  # of the flags, set where the value is not the default; 0: none
    place: int  # among SCALARS; -1 of a bool, which is no more than its bit


def kind(value) -> str:
    """What a value is, for errors."""
    of = type(value)
    # Every library calls its own so.
    return f"{of.__module__}.dtype" if of.__name__ == "dtype" else of.__name__


def wrong_kind(name, expected, value, kind_of=kind):
    return TYPE, f"{name} must be {expected}, got {kind_of(value)}"


def judge(operation, values, door):
    """(problem, bits, scalars): the first that is wrong or None, and the values for the library.

    `values` are in the order of `operation.options`, of which `operation.defaults` are defaults.
    """
    # Those of a zeroed dw_problem; constants here, for torch.compile takes the floats of a global
    # tuple for inputs of its graph.
    if operation.rare:
        scalars = [0.0, None, None, 0, 0, None, 0.0, 0, 0.0, 0.0]
    else:
        scalars = [0.0, None, None, 0, 0]
    problem, bits = None, 0
    for option, default, value in zip(operation.options, operation.defaults, values, strict=True):
        if value is default:
            continue
        if option.place < 0:
            if value is True or value is False:
                bits |= option.bit
            elif not _is_numpy_bool(value):
                problem = problem or wrong_kind(option.name, "a bool", value, door.kind)
            elif bool(value) is not default:
                bits |= option.bit
        else:
            wrong, scalar = option.take(option.name, value, door)
            if wrong is None:
                scalars[option.place] = scalar
                bits |= option.bit
            else:
                problem = problem or wrong
    return problem, bits, scalars


def fields(bits, scalars):
    """Fields of _library.Problem; scalars that are left out have their defaults."""
    values = zip(SCALARS, scalars, strict=False)
    return {"flags": bits} | {name: x.encode() if isinstance(x, str) else x for name, x in values}


def _take_number(name, value, door, expected="a number"):
    if isinstance(value, float):
        return None, float(value)
    if not isinstance(value, numbers.Real):
        return wrong_kind(name, expected, value, door.kind), None
    if isinstance(value, numbers.Rational) and not -_BEYOND_FLOAT64 < value < _BEYOND_FLOAT64:
        return (VALUE, f"{name} must fit float64, got {door.kind(value)} beyond it"), None
    return None, float(value)


def _take_number_if_any(name, value, door):
    return _take_number(name, value, door, "a number or None")


def _take_integer(name, value, door):
    wrong = judge_integer(name, value, 64, door.kind)
    return wrong, None if wrong else int(value)


def _take_text(name, value, door):
    return judge_text(name, value, "a str", door.kind), value


def _take_text_if_any(name, value, door):
    return judge_text(name, value, "a str or None", door.kind), value


def _take_dtype(name, value, door):
    number = door.dtype(value)
    if number is None:
        return wrong_kind(name, "a dtype or None", value, door.kind), None
    return None, number


def _options():
    flag, number, integer = None, _take_number_if_any, _take_integer
    for name, default, take, bit in (
        ("scale", None, number, dw.HAS_SCALE),
        ("output_final_state", False, flag, dw.OUTPUT_FINAL_STATE),
        ("use_qk_l2norm_in_kernel", False, flag, dw.L2NORM),
        ("batch_invariant", False, flag, dw.BATCH_INVARIANT),
        ("use_beta_sigmoid_in_kernel", False, flag, dw.BETA_SIGMOID),
        ("allow_neg_eigval", False, flag, dw.ALLOW_NEG_EIGVAL),
        ("beta_guard", False, flag, dw.BETA_GUARD),
        ("safe_gate", False, flag, dw.SAFE_GATE),
        ("gate_lower_bound", None, number, dw.HAS_GATE_LOWER_BOUND),
        ("gate_domain", "log", _take_text, 0),
        ("gate", "sigmoid", _take_text, 0),
        ("num_householder", 0, integer, 0),
        ("dt_softplus", True, flag, dw.DT_LINEAR),
        ("dt_min", 0.0, _take_number, 0),
        ("dt_max", None, number, dw.HAS_DT_MAX),
        ("checkpoint_every_n_tokens", 0, integer, 0),
        ("checkpoint_dtype", None, _take_dtype, dw.HAS_CHECKPOINT_DTYPE),
        ("plan_name", None, _take_text_if_any, 0),
        ("overwrite_initial_state", False, flag, dw.OVERWRITE_INITIAL_STATE),
    ):
        yield name, Option(name, default, take, bit, _PLACES.get(name, -1))


OPTIONS = dict(_options())


def judge_threads(threads, kind_of=kind):
    return judge_integer("threads", threads, 32, kind_of)


def judge_text(name, value, expected="a str", kind_of=kind):
    if not isinstance(value, str):
        return wrong_kind(name, expected, value, kind_of)
    # A C string ends at a NUL, and a lone surrogate has no UTF-8.
    if "\0" in value or not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        return VALUE, f"{name} must hold no NUL and no lone surrogate, got {value!r}"
    return None


def judge_integer(name, value, bits, kind_of=kind):
    if not isinstance(value, numbers.Integral):
        return wrong_kind(name, "an int", value, kind_of)
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        value = int(value)
        length = value.bit_length()
        # Python prints no number of more than 4300 digits.
        got = value if length <= 128 else f"one of {length} bits"
        return VALUE, f"{name} must fit int{bits}, got {got}"
    return None


def _is_numpy_bool(value):
    """Without importing NumPy: its bool is named "bool" since version 2, "bool_" before."""
    of = type(value)
    return of.__module__ == "numpy" and of.__name__ in ("bool", "bool_")
