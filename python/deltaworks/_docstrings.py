"""Docstrings of the operators, completed from one text an argument: those of an operation, and
those that its NumPy and its PyTorch function share, are told once.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import NamedTuple, TypeVar

_Function = TypeVar("_Function", bound=Callable)
_WIDTH = 96

_HEADS = """T tokens in N sequences; H, HK, HV heads of q, k, v; HO = max(H, HV); head i of HO
reads head i // (HO / Hx). HK is H or HV, and the larger of H and HV is a multiple of the
smaller."""
_MAMBA2_HEADS = """T tokens in N sequences; H heads of x, G groups of B and C; head i reads group
i // (H / G)."""
_GATE = "float32, bfloat16 or float16: the logarithm of the decay"
_PARAMETER = "float32, bfloat16 or float16"
_SAFE_CHANNELS = """the decay's logarithm is gate_lower_bound sigmoid(exp(a_log) (g + dt_bias)), or
what `gate` says."""

# By argument; an operation's own texts take their place.
_SHARED = {
    "q": "[T, H, K], float32, bfloat16 or float16 (float64: reference engine; all {things} alike).",
    "k": "[T, HK, K], dtype of q.",
    "v": "[T, HV, V], dtype of q.",
    "g": f"[T, HO], {_GATE}, g <= 0.",
    "beta": "[T, HO], float32 or the dtype of q: the writing strength.",
    "cu_seqlens": """[N+1], int32 or int64: sequence n is rows cu_seqlens[n]:cu_seqlens[n+1]. Rows
past the last sequence get zeros.""",
    "scale": "of the output; None: K^-0.5.",
    "initial_state": "[N, HO, V, K], float32, bfloat16 or float16; None: zeros.",
    "output_final_state": "also return the states after the last tokens.",
    "use_qk_l2norm_in_kernel": "divide the rows of q and k by sqrt(sum x^2 + 1e-6).",
    "batch_invariant": """a sequence's results do not depend on the batch: always so on the CPU; on
a card long sequences are then not cut into segments.""",
    "use_beta_sigmoid_in_kernel": "beta holds logits.",
    "allow_neg_eigval": "double beta after the sigmoid; needs use_beta_sigmoid_in_kernel.",
    "safe_gate": "the decay's logarithm is -exp(a_log) softplus(g + dt_bias).",
    "gate_domain": """"log", or "linear": g holds the decay itself, in [0, 1]. Not with
safe_gate.""",
    "a_log": f"[HO], {_PARAMETER}; needs safe_gate; None: zeros.",
    "dt_bias": f"[HO], {_PARAMETER}; needs safe_gate; None: zeros.",
    "gate_lower_bound": "below 0; needs safe_gate and gate='sigmoid'; None: -5.",
    "gate": """"sigmoid", or "softplus": with safe_gate the decay's logarithm is
-exp(a_log) softplus(g + dt_bias).""",
    "checkpoint_every_n_tokens": "states along the way; no engine has them yet.",
    "checkpoint_dtype": "their dtype, that of {io} or float32; None: that of {io}.",
    "plan_name": """pins an engine, forward and backward ("{variant}_cpu"); None: the first that
accepts.""",
    "overwrite_initial_state": """the final states replace initial_state, which is itself returned
as final_state. It must not overlap itself{in_place}.""",
    "state_indices": """[N], int32: initial_state is a pool and these are its rows; no engine has
them yet.""",
    "threads": "at most so many; 0: OMP_NUM_THREADS, else the processors there.",
    "dO": "[T, HO, V], dtype of q: the gradient with respect to o; None: zeros.",
    "d_final_state": """{states}, dtype of the states: the gradient with respect to final_state;
None: zeros.""",
    "wanted": "names of the inputs whose gradients to compute; None: all that are given.",
}
_CHANNELS = {
    "g": f"[T, HO, K], {_GATE} of every key channel, g <= 0.",
    "safe_gate": _SAFE_CHANNELS,
    "dt_bias": f"[HO, K], {_PARAMETER}; needs safe_gate; None: zeros.",
}
_OWN = {
    "gated_delta_net": {},
    "kimi_delta_attention": _CHANNELS,
    "gated_delta_net_v2": {
        **_CHANNELS,
        "beta": "[T, HO, K], float32 or the dtype of q: the erasing strength of every key channel.",
        "w": "[T, HO, V], float32 or the dtype of q: the writing strength of every value channel.",
        "beta_guard": """draw beta to its mean over the channels where it would let the state grow;
needs use_qk_l2norm_in_kernel. The gradient passes as if it were not there.""",
    },
    "gated_delta_product": {
        "k": "[T n, HK, K], the sub-steps of a token side by side, or [T, n, HK, K]; dtype of q.",
        "v": "[T n, HV, V] or [T, n, HV, V], dtype of q.",
        "beta": "[T n, HO] or [T, n, HO], float32 or the dtype of q: the writing strength.",
        "num_householder": "sub-steps a token, n >= 1.",
    },
    "mamba2": {
        "x": "[T, H, P], float32, bfloat16 or float16 (float64: reference engine; all {things} "
        "alike).",
        "dt": "[T, H], float32, bfloat16 or float16: the time step, before bias and softplus.",
        "A": "[H], float32, bfloat16 or float16, negative: the decay is exp(A step).",
        "B": "[T, G, N_state], dtype of x; H is a multiple of G.",
        "C": "[T, G, N_state], dtype of x.",
        "D": f"[H] or [H, P], {_PARAMETER}: D x is added to y; None: zeros.",
        "dt_bias": f"[H], {_PARAMETER}: added to dt; None: zeros.",
        "z": "[T, H, P], dtype of x: y is multiplied by silu(z); None: it is not.",
        "initial_state": "[N, H, P, N_state], float32, bfloat16 or float16; None: zeros.",
        "dt_softplus": "the step is a softplus of dt + dt_bias; False: dt + dt_bias itself.",
        "dt_min": "the step is at least this.",
        "dt_max": "the step is at most this; None: infinity.",
        "dy": "[T, H, P], dtype of x: the gradient with respect to y; None: zeros.",
    },
}
_VARIANTS = {
    "gated_delta_net": "gdn",
    "kimi_delta_attention": "kda",
    "gated_delta_net_v2": "gdn2",
    "gated_delta_product": "gdp",
    "mamba2": "mamba2",
}


class Door(NamedTuple):
    """What one of the packages says in its own way."""

    things: str
    in_place: str
    memory: str
    results: str
    raises: dict[str, str]


TORCH = Door(
    "tensors",
    "; no input may require a gradient in grad mode",
    "Any strides are taken, expanded tensors included, and nothing is copied.",
    "or None unless asked for or in place.",
    {
        "ValueError": "shapes, combinations, option values, malformed cu_seqlens.",
        "TypeError": """dtypes, layouts other than torch.strided, and arguments of another kind
(flags are bools).""",
        "NotSupportedError": """a valid call that no engine takes, with every engine's reasons; also
torch.func transforms, forward-mode differentiation and second derivatives.""",
    },
)
NUMPY = Door(
    "arrays",
    " nor be read-only",
    "Arrays are NumPy's or speak DLPack; they are read in place, with any strides.",
    """or None unless asked for; with overwrite_initial_state it is that array. Others are fresh
NumPy arrays; bfloat16 is that of ml_dtypes.""",
    {
        "ValueError": """shapes, combinations, option values, malformed cu_seqlens, elements that do
not lie on multiples of their size, a read-only initial_state to be overwritten.""",
        "TypeError": "dtypes, and arguments of another kind (flags are bools).",
        "BufferError": """a tensor that does not give out its memory (a torch one that requires
grad).""",
        "NotSupportedError": "a valid call that no engine takes, with every engine's reasons.",
    },
)


def forward(door: Door) -> Callable[[_Function], _Function]:
    """Completes the docstring of an operator, which says what is computed."""

    def complete(function):
        name = function.__name__
        shape, io, output = (
            ("[T, H, P]", "x", "y") if name == "mamba2" else ("[T, HO, V]", "q", "o")
        )
        returns = (
            f"({output}, final_state): {output} {shape} in the dtype of {io}; final_state "
            f"{_words(name)['states']} in the dtype of initial_state (float32 without one), "
            f"{door.results}"
        )
        heads = _MAMBA2_HEADS if name == "mamba2" else _HEADS
        return _append(
            function,
            *textwrap.wrap(f"{heads} {door.memory}", _WIDTH),
            "",
            "Args:",
            *_arguments(function, name, door),
            "",
            "Returns:",
            *_item(returns),
            "",
            "Raises:",
            *(line for kind, text in door.raises.items() for line in _item(f"{kind}: {text}")),
        )

    return complete


def backward(operator: Callable, door: Door) -> Callable[[_Function], _Function]:
    """Completes the docstring of the function that computes an operator's gradients."""

    def complete(function):
        name = operator.__name__
        return _append(
            function,
            f"Args (the others, and what is raised: see {name}):",
            *_arguments(function, name, door, without=inspect.signature(operator).parameters),
            "",
            "Returns:",
            *_item("The gradients, fresh NumPy arrays; None where an input is absent or unwanted."),
        )

    return complete


def _append(function, *lines):
    if function.__doc__ is not None:  # python -OO has none
        own = inspect.cleandoc(function.__doc__)
        function.__doc__ = "\n".join([own, "", *lines])
    return function


def _words(operation):
    if operation == "mamba2":
        return {"io": "x", "states": "[N, H, P, N_state]"}
    return {"io": "q", "states": "[N, HO, V, K]"}


def _arguments(function, operation, door, without=()):
    words = _words(operation) | {
        "variant": _VARIANTS[operation],
        "things": door.things,
        "in_place": door.in_place,
    }
    own = _OWN[operation]
    for name in inspect.signature(function).parameters:
        if name not in without:
            text = own[name] if name in own else _SHARED[name]
            yield from _item(f"{name}: {text.format(**words)}")


def _item(text):
    """An entry of a section, its further lines indented."""
    return textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="        ")
