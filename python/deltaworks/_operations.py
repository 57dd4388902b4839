"""What every Python door must know of an operation: one row each. Names are those of the ports."""

from __future__ import annotations

from typing import NamedTuple

from deltaworks import _library as dw


class Operation(NamedTuple):
    number: int
    name: str
    required: tuple[str, ...]  # inputs
    optional: tuple[str, ...]  # inputs
    gradients: dict[str, str]  # of the inputs that have one
    flows: dict[str, str]  # of the outputs, in the order they are returned


GATED_DELTA_NET = Operation(
    number=dw.GATED_DELTA_NET,
    name="gated_delta_net",
    required=("q", "k", "v", "g", "beta", "cu_seqlens"),
    optional=("a_log", "dt_bias", "initial_state", "state_indices"),
    gradients={
        "q": "dq",
        "k": "dk",
        "v": "dv",
        "g": "dg",
        "beta": "dbeta",
        "a_log": "da_log",
        "dt_bias": "ddt_bias",
        "initial_state": "d_initial_state",
    },
    flows={"o": "dO", "final_state": "d_final_state"},
)

OPERATIONS = {operation.number: operation for operation in (GATED_DELTA_NET,)}
