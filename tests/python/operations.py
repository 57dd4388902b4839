"""What the tests must know of each operation: one row each, with the names of its arguments.

q, k, v and g say which argument plays that part in the recurrence. Results are named alike in all
of them: "o", "final_state" and, under an input's name, that input's gradient.
"""

from __future__ import annotations

from typing import NamedTuple


class Operation(NamedTuple):
    name: str
    prefix: str  # of plan names
    tokens: tuple[str, ...]  # inputs with rows by token
    parameters: tuple[str, ...]  # inputs without tokens, which may be absent but for A
    q: str = "q"
    k: str = "k"
    v: str = "v"
    g: str = "g"
    per_channel: bool = False  # a gate a key channel
    output: str = "o"  # the operator's own name of it

    @property
    def differentiable(self):
        return (*self.tokens, *self.parameters, "initial_state")

    @property
    def narrow(self):
        """Tensors with as many heads as q; others have as many as o where q has fewer."""
        return (self.q, self.k)


_GATE = ("a_log", "dt_bias")
_SCALAR = ("q", "k", "v", "g", "beta")

GDN = Operation("gated_delta_net", "gdn", _SCALAR, _GATE)
KDA = Operation("kimi_delta_attention", "kda", _SCALAR, _GATE, per_channel=True)
GDN2 = Operation("gated_delta_net_v2", "gdn2", (*_SCALAR, "w"), _GATE, per_channel=True)
GDP = Operation("gated_delta_product", "gdp", _SCALAR, _GATE)
MAMBA2 = Operation(
    "mamba2",
    "mamba2",
    ("x", "dt", "B", "C", "z"),
    ("A", "D", "dt_bias"),
    q="C",
    k="B",
    v="x",
    g="dt",
    output="y",
)

OPERATIONS = {op.prefix: op for op in (GDN, KDA, GDN2, GDP, MAMBA2)}
