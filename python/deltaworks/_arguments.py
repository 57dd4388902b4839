"""The arguments of an operator call that are no tensors, judged once for NumPy and PyTorch.

Judged here is only what the library cannot see: that a value is a bool, a number or a string at
all, and that it survives the way into a C struct. Every call runs this code and torch.compile
traces it: so what is wrong is returned as (status, text), None where nothing is, and not raised.
"""

from __future__ import annotations

import numbers

from deltaworks import _library as dw
from deltaworks.errors import TYPE, VALUE

# In the order of their bits, from 1 on.
FLAGS = (
    "use_qk_l2norm_in_kernel",
    "use_beta_sigmoid_in_kernel",
    "allow_neg_eigval",
    "safe_gate",
    "batch_invariant",
    "output_final_state",
    "overwrite_initial_state",
)
_BEYOND_FLOAT64 = 2**1024 - 2**970  # rounds to infinity


def kind(value) -> str:
    """What a value is, for errors."""
    of = type(value)
    # Every library calls its own so.
    return f"{of.__module__}.dtype" if of.__name__ == "dtype" else of.__name__


def wrong_kind(name, expected, value, kind_of=kind):
    return TYPE, f"{name} must be {expected}, got {kind_of(value)}"


def judge(flags, scale, gate_domain, plan_name, checkpoint_every_n_tokens, kind_of=kind):
    """(problem, bits, (scale, gate_domain, plan_name, checkpoint_every_n_tokens)): the first that
    is wrong or None, and the values for the library. `flags` are in the order of FLAGS; `kind_of`
    names a value in errors.
    """
    problem, bits, bit = None, 0, 1
    for flag in flags:
        if flag is True:
            bits |= bit
        elif flag is not False:
            if not _is_numpy_bool(flag):
                name = FLAGS[bit.bit_length() - 1]
                problem = problem or wrong_kind(name, "a bool", flag, kind_of)
            elif flag:
                bits |= bit
        bit += bit
    if scale is None:
        scale = 0.0
    else:
        bits |= dw.HAS_SCALE
        if not isinstance(scale, float):
            wrong = _judge_number("scale", scale, kind_of)
            problem = problem or wrong
            scale = 0.0 if wrong else float(scale)
    if plan_name is None:
        plan_name = ""
    else:
        problem = problem or judge_text("plan_name", plan_name, "a str or None", kind_of)
    problem = problem or judge_text("gate_domain", gate_domain, "a str", kind_of)
    if type(checkpoint_every_n_tokens) is not int or checkpoint_every_n_tokens:
        wrong = judge_integer("checkpoint_every_n_tokens", checkpoint_every_n_tokens, 64, kind_of)
        problem = problem or wrong
        checkpoint_every_n_tokens = 0 if wrong else int(checkpoint_every_n_tokens)
    return problem, bits, (scale, gate_domain, plan_name, checkpoint_every_n_tokens)


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


def _judge_number(name, value, kind_of):
    if not isinstance(value, numbers.Real):
        return wrong_kind(name, "a number or None", value, kind_of)
    if isinstance(value, numbers.Rational) and not -_BEYOND_FLOAT64 < value < _BEYOND_FLOAT64:
        return VALUE, f"{name} must fit float64, got {kind_of(value)} beyond it"
    return None


def _is_numpy_bool(value):
    """Without importing NumPy: its bool is named "bool" since version 2, "bool_" before."""
    of = type(value)
    return of.__module__ == "numpy" and of.__name__ in ("bool", "bool_")
