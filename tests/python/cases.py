"""Problems to test with: a Case names a point of the input space, build() draws its data.

Axes: sequence lengths, rows past the end, heads (H, HK, HV), K, V, dtypes, options, and a regime,
which says what gates, keys and betas look like. pairs() covers every pair of their values.
"""

from __future__ import annotations

import dataclasses
import functools

import torch

from draws import DTYPES, SAFE, Draw, delta_inputs, mamba2_inputs
from operations import OPERATIONS
from pairwise import cover

__all__ = ["AXES", "DIMS", "DTYPES", "HEADS", "LENGTHS", "REGIMES", "Case", "Problem"]
__all__ += ["axes_of", "build", "every_operation", "pairs", "valid"]
REGIMES = (
    "moderate",
    "weak",
    "strong",
    "resets",
    "safe",
    "safe_bound",
    "repeated",
    "beta_two",
    "zero_rows",
    "linear",
)
LENGTHS = (
    (1,),
    (15,),
    (16,),
    (17,),
    (63,),
    (64,),
    (65,),
    (0, 33, 5),
    (20, 0),
    (7, 0, 18),
    (0, 0, 16, 0, 0, 3, 0, 0),
    (1, 2, 3, 5, 8, 13, 21),
    (33, 32, 31),
    (64, 64, 64),
)
HEADS = ((1, 1, 1), (2, 2, 4), (4, 4, 1), (4, 1, 1), (6, 2, 2), (2, 4, 4))
DIMS = (1, 8, 33, 64, 96, 128, 256)
AXES = {
    "lengths": LENGTHS,
    "tail": (0, 5),
    "heads": HEADS,
    "K": DIMS,
    "V": DIMS,
    "io": ("fp32", "bf16", "fp16"),
    "gate": ("fp32", "bf16", "fp16"),
    "beta": ("fp32", "io"),
    "state": (None, "fp32", "bf16", "fp16"),
    "final": (False, True),
    "regime": REGIMES,
    "sigmoid": ("no", "sigmoid", "doubled"),
    "a_log": (None, "fp32", "bf16", "fp16"),
    "dt_bias": (None, "fp32", "bf16", "fp16"),
    "l2norm": (False, True),
    "scale": (None, 0.3),
    "offsets": (torch.int32, torch.int64),
}
# What the other operations change of AXES; fewer values of what gated_delta_net covers already.
FEWER = {
    "lengths": (*((n,) for n in (1, 15, 16, 17, 63, 64, 65)), (7, 0, 18, 0), (33, 1, 31)),
    "heads": ((1, 1, 1), (2, 2, 4), (4, 1, 1), (2, 4, 4)),
    "K": (1, 16, 33, 64),
    "V": (1, 16, 40),
}
CHANNELS = {
    "regime": (*REGIMES, "slow_fast"),
    "kind": ("default", "softplus", "bounded"),
}
OWN_AXES = {
    "gdn": {},
    "kda": {**FEWER, **CHANNELS},
    "gdn2": {**FEWER, **CHANNELS, "w": ("fp32", "io"), "guard": (False, True)},
    "gdp": {
        **FEWER,
        "lengths": ((1,), (5,), (16,), (22,), (32,), (33,), (7, 0, 18, 0), (11, 1, 31)),
        "steps": (1, 2, 3),
        "token_major": (False, True),
    },
    "mamba2": {
        **FEWER,
        "heads": ((1, 1, 1), (1, 1, 4), (2, 2, 4), (3, 3, 3)),
        "regime": ("moderate", "weak", "strong", "resets", "repeated", "zero_rows", "slow_fast"),
        "beta": ("fp32",),
        "sigmoid": ("no",),
        "l2norm": (False,),
        "scale": (None,),
        "a_log": ("fp32", "bf16", "fp16"),
        "D": (None, "head", "channel"),
        "skip": ("fp32", "bf16", "fp16"),
        "z": (False, True),
        "dt_softplus": (True, False),
        "clamp": ((0.0, None), (0.0, 0.5), (0.1, 0.4)),
    },
}


@dataclasses.dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...] = (17, 0, 40)
    tail: int = 0  # rows past cu_seqlens[-1]
    heads: tuple[int, int, int] = (2, 2, 2)
    K: int = 16
    V: int = 8
    io: str = "fp32"
    gate: str = "fp32"
    beta: str = "fp32"
    state: str | None = "fp32"  # None: no initial_state
    final: bool = True  # a gradient flows into final_state
    regime: str = "moderate"
    sigmoid: str = "no"
    a_log: str | None = None  # Mamba-2: A
    dt_bias: str | None = None
    l2norm: bool = True
    scale: float | None = None
    offsets: torch.dtype = torch.int64
    seed: int = 0
    op: str = "gdn"
    kind: str = "default"  # a channel gate's: "softplus", or "bounded" by another bound
    w: str = "fp32"
    guard: bool = False
    steps: int = 1  # sub-steps a token
    token_major: bool = False  # k, v, beta are [T, steps, ...]
    D: str | None = None  # "head" or "channel"
    skip: str = "fp32"  # D's dtype
    z: bool = False
    dt_softplus: bool = True
    clamp: tuple[float, float | None] = (0.0, None)

    @property
    def operation(self):
        return OPERATIONS[self.op]

    @property
    def tokens(self):
        return sum(self.lengths) + self.tail

    @property
    def out_heads(self):
        return max(self.heads[0], self.heads[2])

    @property
    def softplus_gate(self):
        return not self.operation.per_channel or self.kind == "softplus"

    def dtype_of(self, name):
        """Of beta or w, which may be "io"."""
        dtype = getattr(self, name)
        return DTYPES[self.io if dtype == "io" else dtype]

    def __str__(self):
        lengths = "_".join(map(str, self.lengths[:4])) + ("_etc" if len(self.lengths) > 4 else "")
        heads = "".join(map(str, self.heads))
        name = f"{self.regime}-{self.io}-L{lengths}-H{heads}-K{self.K}-V{self.V}"
        return name if self.op == "gdn" else f"{self.op}-{name}"


@dataclasses.dataclass
class Problem:
    case: Case
    inputs: dict[str, torch.Tensor]  # the operator's tensor arguments
    options: dict  # its other arguments, output_final_state and plan_name aside
    d_o: torch.Tensor
    d_final: torch.Tensor | None

    @property
    def op(self):
        return self.case.operation

    @property
    def may_vanish(self):
        """Names of results that this problem may make tiny: nothing reaches them by its nature."""
        case, names = self.case, set()
        rest = set(self.op.differentiable) - {"initial_state", self.op.v}
        gate = {self.op.g, *self.op.parameters}
        if case.regime in ("strong", "resets", "linear", *SAFE):
            names.add("initial_state")
        if case.state is None and max(case.lengths, default=0) <= 1:
            names |= gate
        if case.op == "gdn2" and (case.V == 1 or case.regime == "strong"):
            names.add("beta")  # each channel's part is small
        if sum(case.lengths) == 1:  # single numbers, which may happen to be small
            names |= rest
        if sum(case.lengths) == 0:
            names |= {"o", self.op.v} | rest
            if case.state is None:
                names.add("final_state")
        return names


def build(case: Case) -> Problem:
    """The data of a case, drawn from its seed."""
    draw = Draw(case)
    inputs = (mamba2_inputs if case.op == "mamba2" else delta_inputs)(case, draw)
    state = DTYPES[case.state or ("fp64" if case.io == "fp64" else "fp32")]
    state_shape = (len(case.lengths), case.out_heads, case.V, case.K)
    if case.state is not None:
        inputs["initial_state"] = (draw.randn(*state_shape) * 0.5).to(state)
    d_final = (draw.randn(*state_shape) * 0.5).to(state) if case.final else None
    d_o = draw.randn(case.tokens, case.out_heads, case.V).to(DTYPES[case.io])
    return Problem(case, inputs, options_of(case), d_o, d_final)


def options_of(case):
    if case.op == "mamba2":
        low, high = case.clamp
        return {"dt_softplus": case.dt_softplus, "dt_min": low, "dt_max": high}
    options = {"use_qk_l2norm_in_kernel": case.l2norm}
    if case.scale is not None:
        options["scale"] = case.scale
    if case.sigmoid != "no":
        options["use_beta_sigmoid_in_kernel"] = True
        options["allow_neg_eigval"] = case.sigmoid == "doubled"
    if case.regime in SAFE:
        options["safe_gate"] = True
    if case.regime == "linear":
        options["gate_domain"] = "linear"
    if case.kind == "softplus":
        options["gate"] = "softplus"
    if case.kind == "bounded":
        options["gate_lower_bound"] = -2.5
    if case.guard:
        options["beta_guard"] = True
    if case.op == "gdp":
        options["num_householder"] = case.steps
    return options


def valid(row, budget=1.2e7, op="gdn"):
    """Whether a partial row of AXES makes sense; `budget` bounds the reference's state elements."""
    regime, sigmoid, l2norm = (row.get(name) for name in ("regime", "sigmoid", "l2norm"))
    delta = op != "mamba2"
    if regime is not None and regime not in SAFE and delta:
        if row.get("a_log") or row.get("dt_bias") or row.get("kind", "default") != "default":
            return False
    if regime == "repeated" and delta and (l2norm is False or sigmoid in ("sigmoid", "doubled")):
        return False
    if regime == "beta_two" and (l2norm is True or sigmoid == "sigmoid"):
        return False
    if row.get("guard") and (l2norm is False or regime == "beta_two"):
        return False
    # a normalised scalar key is +-1: its gradient cancels to nothing
    if row.get("K") == 1 and (l2norm is True or (regime == "repeated" and delta)):
        return False
    if row.get("K") == 1 and regime == "slow_fast" and delta:
        return False
    if row.get("D", "head") is None and row.get("skip", "fp32") in ("bf16", "fp16"):
        return False
    # a clamped step neither resets nor has a gradient
    if regime == "resets" and row.get("clamp", (0.0, None)) != (0.0, None):
        return False
    heads = row.get("heads", (1, 1, 1))
    if op == "mamba2" and (heads[0] != heads[1] or heads[0] > heads[2]):
        return False
    size = sum(row.get("lengths", (1,))) * row.get("steps", 1) * max(heads[0], heads[2])
    return size * row.get("K", 1) * row.get("V", 1) <= budget


def axes_of(op):
    return {**AXES, **OWN_AXES[op]}


def pairs(op="gdn", **fixed):
    """Cases that cover every valid pair of axis values (`fixed` narrows axes to given values)."""
    axes = {**axes_of(op), **fixed}
    rows = cover(axes, functools.partial(valid, op=op))
    return [Case(**row, seed=i, op=op) for i, row in enumerate(rows)]


def every_operation(**fixed):
    """pairs() of all operations; each takes those of the `fixed` axes that it has."""
    return [
        case
        for op in OPERATIONS
        for case in pairs(
            op, **{axis: x for axis, x in fixed.items() if len(axes_of(op).get(axis, ())) > 1}
        )
    ]
