"""The operators that `deltaworks bench cpu` times, a row each: bound, sizes, inputs, recurrence.

Nothing here imports torch before it makes inputs. The bound of a pass is its lane-operations a
token and head over the rate of the peak loop; a multiply counts as one, a multiply-add as one. They
are those of the recurrence as it is written, in units of K V:

    forward    decay the state, read the erase row, write, read the query: 4; without an erase row 3
    backward   the states once more, without the last read: 3 (2); the gradient of the state: decay,
               query, erase: 3 (2); the gradients of q, k, e, w: 4 (3)

Not all of them are needed: decays can be gathered in one factor that the state is kept without, and
a sub-step that is not a token's last is not read. What is left of them no kernel can pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

SUB_STEPS = 2  # of gated_delta_product
_PER_HEAD = ("A",)  # tensors without an axis of tokens


class Case(NamedTuple):
    """What is timed: an operator on one sequence."""

    op: str  # of OPERATORS
    dtype: str  # "fp32", "bf16": of what goes in and out
    tokens: int
    heads: int
    key_dim: int
    value_dim: int

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} {self.key_dim}x{self.value_dim}"

    @property
    def sub_steps(self) -> int:
        return OPERATORS[self.op].sub_steps

    def lane_ops(self, pass_: str) -> int:
        """A token and head, "forward" or "backward"."""
        units = OPERATORS[self.op].units[pass_]
        return units * self.key_dim * self.value_dim * self.sub_steps

    def least_lane_ops(self, pass_: str) -> int:
        """Without the decays of states and of their gradients, and what is not read."""
        decays, reads = {"forward": (1, 1), "backward": (2, 2)}[pass_]
        units = (OPERATORS[self.op].units[pass_] - decays) * self.sub_steps
        return (units - reads * (self.sub_steps - 1)) * self.key_dim * self.value_dim


class Operator(NamedTuple):
    """A row of OPERATORS. Tensors are those of the operator's arguments."""

    name: str  # in deltaworks.ops
    units: dict[str, int]  # lane-operations a sub-step and head, in K V
    dims: tuple[tuple[int, int], ...]  # K x V that are timed by default
    inputs: Callable  # (case, random) -> tensors by name, fp32
    narrow: frozenset[str]  # those of the case's dtype
    rows: Callable  # (tensors in fp32) -> _cpu_peers.Rows
    sub_steps: int = 1

    @property
    def options(self) -> dict[str, int]:
        """Arguments that are no tensors."""
        return {"num_householder": self.sub_steps} if self.sub_steps > 1 else {}


def make_inputs(case: Case, tokens: int | None = None):
    """(arguments of the operator but cu_seqlens, dO [T, H, V]) from a fixed seed.

    With `tokens`, only the first of them.
    """
    import torch

    random = torch.Generator().manual_seed(0)
    operator = OPERATORS[case.op]
    narrow = {"fp32": torch.float32, "bf16": torch.bfloat16}[case.dtype]
    tensors = operator.inputs(case, random)
    tensors["dO"] = torch.randn(case.tokens, case.heads, case.value_dim, generator=random)
    kept = case.tokens if tokens is None else tokens
    for name, x in tensors.items():
        if name not in _PER_HEAD:
            x = x[: x.shape[0] // case.tokens * kept].contiguous()
        tensors[name] = x.to(narrow) if name in operator.narrow | {"dO"} else x
    d_o = tensors.pop("dO")
    return tensors, d_o


def _delta_inputs(case: Case, random, channels: bool = False):
    """q, k normalised, v, g about -0.15 a row, beta; R = T n rows of k, v, beta."""
    import torch
    from torch.nn.functional import normalize, softplus

    def normal(rows, *dims):
        return torch.randn(rows, case.heads, *dims, generator=random)

    rows, key = case.tokens * case.sub_steps, case.key_dim
    return {
        "q": normalize(normal(case.tokens, key), dim=-1),
        "k": normalize(normal(rows, key), dim=-1),
        "v": normal(rows, case.value_dim),
        "g": -softplus(normal(case.tokens, *((key,) if channels else ())) - 2),
        "beta": torch.sigmoid(normal(rows)),
    }


def _kda_inputs(case: Case, random):
    return _delta_inputs(case, random, channels=True)


def _gdn2_inputs(case: Case, random):
    import torch

    tensors = _delta_inputs(case, random, channels=True)
    for name, dim in (("beta", case.key_dim), ("w", case.value_dim)):
        gate = torch.randn(case.tokens, case.heads, dim, generator=random)
        tensors[name] = torch.sigmoid(gate)
    return tensors


def _mamba2_inputs(case: Case, random):
    """One group of B and C for all heads; decays of about -0.15 to -2 a token."""
    import torch

    def normal(*sizes):
        return torch.randn(*sizes, generator=random)

    return {
        "x": normal(case.tokens, case.heads, case.value_dim),
        "dt": normal(case.tokens, case.heads) - 2,
        "A": -(1 + 15 * torch.rand(case.heads, generator=random)),
        "B": normal(case.tokens, 1, case.key_dim),
        "C": normal(case.tokens, 1, case.key_dim),
    }


def _delta_rows(q, k, v, g, beta, w=None):
    """GDN with g, beta [T, H]; KDA with g [T, H, K]; GDN-2 with beta [T, H, K] and w [T, H, V]."""
    from deltaworks.cli._cpu_peers import Rows

    n = k.shape[0] // q.shape[0]
    if g.dim() == 2:
        g = g.unsqueeze(-1)
    if n > 1:  # the decay belongs to the first sub-step of a token
        later = g.new_zeros(g.shape[0], n - 1, *g.shape[1:])
        g = _flat(g, later)
    if beta.dim() == 2:
        beta = beta.unsqueeze(-1)
    return Rows(q * q.shape[-1] ** -0.5, k, beta * k, (beta if w is None else w) * v, g, n)


def _flat(first, later):
    """[T, ...] and [T, n - 1, ...] -> [T n, ...]."""
    import torch

    return torch.cat([first.unsqueeze(1), later], 1).flatten(0, 1)


def _mamba2_rows(x, dt, A, B, C):
    from torch.nn.functional import softplus

    from deltaworks.cli._cpu_peers import Rows

    step = softplus(dt).unsqueeze(-1)
    heads = x.shape[1]
    queries, keys = (y.expand(-1, heads, -1) for y in (C, B))
    return Rows(queries, keys, None, step * x, A.unsqueeze(-1) * step, 1)


_DELTA = {"forward": 4, "backward": 10}
_PLAIN = {"forward": 3, "backward": 7}
_QKV = frozenset(("q", "k", "v"))
_SQUARE = ((128, 128),)
OPERATORS = {
    "gdn": Operator("gated_delta_net", _DELTA, _SQUARE, _delta_inputs, _QKV, _delta_rows),
    "kda": Operator("kimi_delta_attention", _DELTA, _SQUARE, _kda_inputs, _QKV, _delta_rows),
    "gdn2": Operator(
        "gated_delta_net_v2", _DELTA, _SQUARE, _gdn2_inputs, _QKV | {"beta", "w"}, _delta_rows
    ),
    "gdp": Operator(
        "gated_delta_product", _DELTA, _SQUARE, _delta_inputs, _QKV, _delta_rows, SUB_STEPS
    ),
    "mamba2": Operator(
        "mamba2",
        _PLAIN,
        ((128, 64), (128, 128)),
        _mamba2_inputs,
        frozenset(("x", "B", "C")),
        _mamba2_rows,
    ),
}
