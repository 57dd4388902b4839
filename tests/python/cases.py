"""Problems to test with: a Case names a point of the input space, build() draws its data.

Axes: sequence lengths, rows past the end, heads (H, HK, HV), K, V, dtypes, options, and a regime,
which says what gates, keys and betas look like. pairs() covers every pair of their values.
"""

from __future__ import annotations

import dataclasses

import torch

from pairwise import cover

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
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
SAFE = ("safe", "safe_bound")
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
    a_log: str | None = None
    dt_bias: str | None = None
    l2norm: bool = True
    scale: float | None = None
    offsets: torch.dtype = torch.int64
    seed: int = 0

    def __str__(self):
        lengths = "_".join(map(str, self.lengths[:4])) + ("_etc" if len(self.lengths) > 4 else "")
        heads = "".join(map(str, self.heads))
        return f"{self.regime}-{self.io}-L{lengths}-H{heads}-K{self.K}-V{self.V}"


@dataclasses.dataclass
class Problem:
    case: Case
    inputs: dict[str, torch.Tensor]  # the operator's tensor arguments
    options: dict  # its other arguments, output_final_state and plan_name aside
    d_o: torch.Tensor
    d_final: torch.Tensor | None

    @property
    def may_vanish(self):
        """Names of results that this problem may make tiny: nothing reaches them by its nature."""
        case, names = self.case, set()
        if case.regime in ("strong", "resets", "linear", *SAFE):
            names.add("initial_state")
        if case.state is None and max(case.lengths, default=0) <= 1:
            names.update(("g", "a_log", "dt_bias"))
        if sum(case.lengths) == 1:  # single numbers, which may happen to be small
            names.update(("q", "k", "g", "beta", "a_log", "dt_bias"))
        if sum(case.lengths) == 0:
            names.update(("o", "q", "k", "v", "g", "beta", "a_log", "dt_bias"))
            if case.state is None:
                names.add("final_state")
        return names


def build(case: Case) -> Problem:
    """The data of a case, drawn from its seed."""
    rng = torch.Generator().manual_seed(case.seed)
    io = DTYPES[case.io]
    beta_dtype = io if case.beta == "io" else DTYPES[case.beta]
    heads, key_heads, value_heads = case.heads
    out_heads = max(heads, value_heads)
    used, count = sum(case.lengths), len(case.lengths)
    tokens = used + case.tail

    def randn(*shape):
        return torch.randn(*shape, generator=rng)

    def rand(*shape):
        return torch.rand(*shape, generator=rng)

    q, k = randn(tokens, heads, case.K), keys(case, randn, tokens)
    v = randn(tokens, value_heads, case.V)
    if case.regime == "zero_rows":
        q[1::3], k[2::3], v[3::4] = 0, 0, 0
    g = gates(case, randn, rand, tokens, out_heads)
    beta = betas(case, randn, rand, tokens, out_heads)
    inputs = {
        "q": q.to(io),
        "k": k.to(io),
        "v": v.to(io),
        "g": g.to(DTYPES[case.gate]),
        "beta": beta.to(beta_dtype),
        "cu_seqlens": torch.tensor([0, *torch.tensor(case.lengths).cumsum(0)], dtype=case.offsets),
    }
    if case.a_log is not None:
        # at the bound the amplitude is small enough for a state to survive
        shift = -5.0 if case.regime == "safe_bound" else -1.0
        inputs["a_log"] = (randn(out_heads) * 0.5 + shift).to(DTYPES[case.a_log])
    if case.dt_bias is not None:
        inputs["dt_bias"] = (randn(out_heads) * 0.5).to(DTYPES[case.dt_bias])
    state = DTYPES[case.state or ("fp64" if case.io == "fp64" else "fp32")]
    state_shape = (count, out_heads, case.V, case.K)
    if case.state is not None:
        inputs["initial_state"] = (randn(*state_shape) * 0.5).to(state)

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
    d_final = (randn(*state_shape) * 0.5).to(state) if case.final else None
    return Problem(case, inputs, options, randn(tokens, out_heads, case.V).to(io), d_final)


def keys(case, randn, tokens):
    key_heads = case.heads[1]
    k = randn(tokens, key_heads, case.K)
    if case.regime == "repeated":  # the even rows equal, the odd ones nearly
        k = k[:1] + 1e-3 * k * (torch.arange(tokens) % 2)[:, None, None]
    if case.regime == "raw":  # one long key, over and over: the state expands
        return k[:1] + 0.1 * k
    if not case.l2norm:
        k = k / k.norm(dim=-1, keepdim=True)
    return k


def gates(case, randn, rand, tokens, heads):
    shape = (tokens, heads)
    if case.regime in ("weak", "repeated"):
        return torch.zeros(shape)
    if case.regime == "beta_two":
        return -0.02 * rand(*shape) * (rand(*shape) < 0.5)
    if case.regime == "strong":
        return -30 * rand(*shape)
    if case.regime == "resets":
        g = -0.05 * rand(*shape)
        kind = rand(*shape)
        g[kind < 0.06] = -1e4
        g[kind < 0.03] = -torch.inf
        return g
    if case.regime == "safe_bound":  # weak ones, and others about softplus's switch at 20
        choice = torch.tensor([-6.0, -4.0, -2.0, 19.5, 19.99, 20.0, 20.5, 40.0])
        return choice[(rand(*shape) * len(choice)).long()]
    if case.regime == "linear":
        choice = torch.tensor([0.0, 1e-6, 1e-3, 1.0, 1.0, 1.0, 0.9, 0.99])
        return choice[(rand(*shape) * len(choice)).long()]
    return randn(*shape) if case.regime == "safe" else -rand(*shape)


def betas(case, randn, rand, tokens, heads):
    shape = (tokens, heads)
    if case.sigmoid != "no":
        return 2 * randn(*shape) + (2.0 if case.regime == "beta_two" else 0.0)
    if case.regime == "repeated":
        return torch.ones(shape)
    if case.regime == "beta_two":
        return torch.where(rand(*shape) < 0.3, 2.0, 2 * rand(*shape))
    return rand(*shape)


def valid(row, budget=1.2e7):
    """Whether a partial row of AXES makes sense; `budget` bounds the reference's state elements."""
    regime, sigmoid, l2norm = (row.get(name) for name in ("regime", "sigmoid", "l2norm"))
    if regime is not None and regime not in SAFE and (row.get("a_log") or row.get("dt_bias")):
        return False
    if regime == "repeated" and (l2norm is False or sigmoid in ("sigmoid", "doubled")):
        return False
    if regime == "beta_two" and (l2norm is True or sigmoid == "sigmoid"):
        return False
    # a normalised scalar key is +-1: its gradient cancels to nothing
    if row.get("K") == 1 and (l2norm is True or regime == "repeated"):
        return False
    heads = row.get("heads", (1, 1, 1))
    size = sum(row.get("lengths", (1,))) * max(heads[0], heads[2])
    return size * row.get("K", 1) * row.get("V", 1) <= budget


def pairs(**fixed):
    """Cases that cover every valid pair of axis values (`fixed` narrows axes to given values)."""
    rows = cover({**AXES, **fixed}, valid)
    return [Case(**row, seed=i) for i, row in enumerate(rows)]
