"""What every Python door must know of an operation: one row each.

Names are those of the operator's arguments. Most are those of the ports that they mean; the others
are the row's `own`.
"""

from __future__ import annotations

from typing import NamedTuple

from deltaworks import _library as dw
from deltaworks._arguments import COMMON, OPTIONS, Option

_PORTS = {name: port for port, name in enumerate(dw.PORTS)}
_WITHOUT_GRADIENT = ("cu_seqlens", "state_indices")


class Operation(NamedTuple):
    number: int
    name: str
    required: tuple[str, ...]  # inputs
    optional: tuple[str, ...]  # inputs
    gradients: dict[str, str]  # of the inputs that have one
    flows: dict[str, str]  # of the outputs, in the order they are returned
    options: tuple[Option, ...]  # what it takes besides tensors
    defaults: tuple  # of the options
    rare: bool  # whether some of them are not among the first _arguments.COMMON scalars
    ports: dict[str, int]  # of all tensors, in the order of the ports
    names: dict[int, str]  # of all ports


def _gradient(name: str) -> str:
    return "d_" + name if name.endswith("_state") else "d" + name  # as the ports are named


def _operation(number, name, required, optional, options, output="o", flow="dO", own=None):
    """`own`: its own name of an input or output -> that of the port."""
    own = own or {}
    gradients = {
        name: _gradient(name) for name in required + optional if name not in _WITHOUT_GRADIENT
    }
    flows = {output: flow, "final_state": "d_final_state"}
    ports = {x: _PORTS[own.get(x, x)] for x in required + optional + tuple(flows)}
    ports |= {dx: _PORTS[_gradient(own.get(x, x))] for x, dx in gradients.items()}
    ports |= {flow: dw.DO, "d_final_state": dw.D_FINAL_STATE}
    ports = dict(sorted(ports.items(), key=lambda item: item[1]))
    return Operation(
        number,
        name,
        required,
        optional,
        gradients,
        flows,
        tuple(OPTIONS[option] for option in options),
        tuple(OPTIONS[option].default for option in options),
        any(OPTIONS[option].place >= COMMON for option in options),
        ports,
        {port: name for name, port in ports.items()},
    )


_STATES = ("initial_state", "state_indices")
# Options, in the order in which the operators hand them on.
_EVERYWHERE = (
    "output_final_state",
    "batch_invariant",
    "checkpoint_every_n_tokens",
    "checkpoint_dtype",
    "plan_name",
    "overwrite_initial_state",
)
_DELTA_RULE = (
    "scale",
    "use_qk_l2norm_in_kernel",
    "use_beta_sigmoid_in_kernel",
    "allow_neg_eigval",
    "safe_gate",
    "gate_domain",
    *_EVERYWHERE,
)
_CHANNEL_GATE = ("gate_lower_bound", "gate")

GATED_DELTA_NET = _operation(
    dw.GATED_DELTA_NET,
    "gated_delta_net",
    ("q", "k", "v", "g", "beta", "cu_seqlens"),
    ("a_log", "dt_bias", *_STATES),
    _DELTA_RULE,
)
KIMI_DELTA_ATTENTION = _operation(
    dw.KIMI_DELTA_ATTENTION,
    "kimi_delta_attention",
    ("q", "k", "v", "g", "beta", "cu_seqlens"),
    ("a_log", "dt_bias", *_STATES),
    (*_DELTA_RULE, *_CHANNEL_GATE),
)
GATED_DELTA_NET_V2 = _operation(
    dw.GATED_DELTA_NET_V2,
    "gated_delta_net_v2",
    ("q", "k", "v", "g", "beta", "w", "cu_seqlens"),
    ("a_log", "dt_bias", *_STATES),
    (*_DELTA_RULE, *_CHANNEL_GATE, "beta_guard"),
)
GATED_DELTA_PRODUCT = _operation(
    dw.GATED_DELTA_PRODUCT,
    "gated_delta_product",
    ("q", "k", "v", "g", "beta", "cu_seqlens"),
    ("a_log", "dt_bias", *_STATES),
    (*_DELTA_RULE, "num_householder"),
)
MAMBA2 = _operation(
    dw.MAMBA2,
    "mamba2",
    ("x", "dt", "A", "B", "C", "cu_seqlens"),
    ("D", "dt_bias", "z", *_STATES),
    (*_EVERYWHERE, "dt_softplus", "dt_min", "dt_max"),
    output="y",
    flow="dy",
    own={"x": "v", "dt": "g", "A": "a_log", "B": "k", "C": "q", "y": "o"},
)

OPERATIONS = {
    operation.number: operation
    for operation in (
        GATED_DELTA_NET,
        KIMI_DELTA_ATTENTION,
        GATED_DELTA_NET_V2,
        GATED_DELTA_PRODUCT,
        MAMBA2,
    )
}
