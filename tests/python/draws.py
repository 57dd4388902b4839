"""Draws the tensors of a case: what gates, keys and betas look like is said by its regime."""

from __future__ import annotations

import torch

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
SAFE = ("safe", "safe_bound")
LINEAR = [0.0, 1e-6, 1e-3, 1.0, 1.0, 1.0, 0.9, 0.99]
# weak gates, and others about softplus's switch at 20
SOFTPLUS_BOUND = [-6.0, -4.0, -2.0, 19.5, 19.99, 20.0, 20.5, 40.0]
# gates of which no state is left to their lower bound, where the sigmoid is flat
SIGMOID_BOUND = [-60.0, -9.0, -6.0, -5.0, -4.0, -4.0, 8.0, 40.0]


class Draw:
    """Numbers from a case's seed, in float32."""

    def __init__(self, case):
        self.case = case
        self.rng = torch.Generator().manual_seed(case.seed)

    def randn(self, *shape):
        return torch.randn(*shape, generator=self.rng)

    def rand(self, *shape):
        return torch.rand(*shape, generator=self.rng)

    def choice(self, values, shape):
        values = torch.tensor(values)
        return values[(self.rand(*shape) * len(values)).long()]


def offsets(case):
    return torch.tensor([0, *torch.tensor(case.lengths).cumsum(0)], dtype=case.offsets)


def delta_inputs(case, draw):
    """q, k, v, g, beta, [w], cu_seqlens, [a_log, dt_bias] of a delta rule."""
    io = DTYPES[case.io]
    heads, _, value_heads = case.heads
    out_heads, tokens = case.out_heads, case.tokens
    rows = tokens * case.steps
    q, k = draw.randn(tokens, heads, case.K), keys(case, draw, rows, case.heads[1])
    v = draw.randn(rows, value_heads, case.V)
    if case.regime == "zero_rows":
        q[1::3], k[2::3], v[3::4] = 0, 0, 0
    channels = (case.K,) if case.operation.per_channel else ()
    g = gates(case, draw, (tokens, out_heads, *channels))
    beta = betas(case, draw, (rows, out_heads))
    inputs = {
        "q": q.to(io),
        "k": k.to(io),
        "v": v.to(io),
        "g": g.to(DTYPES[case.gate]),
        "beta": beta.to(case.dtype_of("beta")),
    }
    if case.op == "gdn2":
        inputs["w"] = draw.rand(tokens, out_heads, case.V).to(case.dtype_of("w"))
    if case.token_major:
        for name in ("k", "v", "beta"):
            inputs[name] = inputs[name].unflatten(0, (tokens, case.steps))
    inputs["cu_seqlens"] = offsets(case)
    if case.a_log is not None:
        # at the bound the amplitude is small enough for a state to survive
        shift = -5.0 if case.regime == "safe_bound" and case.softplus_gate else -1.0
        shift = shift if case.softplus_gate else 0.0
        inputs["a_log"] = (draw.randn(out_heads) * 0.5 + shift).to(DTYPES[case.a_log])
    if case.dt_bias is not None:
        inputs["dt_bias"] = (draw.randn(out_heads, *channels) * 0.5).to(DTYPES[case.dt_bias])
    return inputs


def mamba2_inputs(case, draw):
    """x, dt, A, B, C, cu_seqlens, [D, dt_bias, z]: `case.heads` are the groups of C and B, equal,
    and the heads of x."""
    io = DTYPES[case.io]
    groups, _, heads = case.heads
    C, B = draw.randn(case.tokens, groups, case.K), keys(case, draw, case.tokens, groups)
    x = draw.randn(case.tokens, heads, case.V)
    if case.regime == "zero_rows":
        C[1::3], B[2::3], x[3::4] = 0, 0, 0
    dt, A = steps(case, draw, case.tokens, heads)
    inputs = {
        "x": x.to(io),
        "dt": dt.to(DTYPES[case.gate]),
        "A": A.to(DTYPES[case.a_log or ("fp64" if case.io == "fp64" else "fp32")]),
        "B": B.to(io),
        "C": C.to(io),
        "cu_seqlens": offsets(case),
    }
    if case.D is not None:
        shape = (heads,) if case.D == "head" else (heads, case.V)
        inputs["D"] = draw.randn(*shape).to(DTYPES[case.skip])
    if case.dt_bias is not None:
        inputs["dt_bias"] = (draw.randn(heads) * 0.5).to(DTYPES[case.dt_bias])
    if case.z:
        inputs["z"] = draw.randn(case.tokens, heads, case.V).to(io)
    return inputs


def keys(case, draw, rows, heads):
    k = draw.randn(rows, heads, case.K)
    if case.regime == "repeated":  # the even rows equal, the odd ones nearly
        k = k[:1] + 1e-3 * k * (torch.arange(rows) % 2)[:, None, None]
    if case.regime == "raw":  # one long key, over and over: the state expands
        return k[:1] + 0.1 * k
    if not case.l2norm:
        k = k / k.norm(dim=-1, keepdim=True)
    return k


def gates(case, draw, shape):
    if case.regime in ("weak", "repeated"):
        return torch.zeros(shape)
    if case.regime == "beta_two":
        return -0.02 * draw.rand(*shape) * (draw.rand(*shape) < 0.5)
    if case.regime == "strong":
        return -30 * draw.rand(*shape)
    if case.regime == "slow_fast":  # channels side by side
        slow = torch.arange(shape[-1]) % 2 == 0
        return -draw.rand(*shape) * torch.where(slow, 1e-3, 12.0)
    if case.regime == "resets":  # of a whole row
        row = (*shape[:2], *(1 for _ in shape[2:]))
        g = -0.05 * draw.rand(*shape)
        kind = draw.rand(*row).expand(shape)
        g[kind < 0.06] = -1e4
        g[kind < 0.03] = -torch.inf
        return g
    if case.regime == "safe_bound":
        return draw.choice(SOFTPLUS_BOUND if case.softplus_gate else SIGMOID_BOUND, shape)
    if case.regime == "linear":
        return draw.choice(LINEAR, shape)
    shift = 0.0 if case.softplus_gate else 2.0  # of a sigmoid: to where a state survives
    return draw.randn(*shape) - shift if case.regime == "safe" else -draw.rand(*shape)


def betas(case, draw, shape):
    """[rows, HO], of GDN-2 [rows, HO, K]."""
    channels = (case.K,) if case.op == "gdn2" else ()
    if case.sigmoid != "no":
        return 2 * draw.randn(*shape, *channels) + (2.0 if case.regime == "beta_two" else 0.0)
    if case.regime == "repeated":
        return torch.ones(*shape, *channels)
    if case.regime == "beta_two":  # equal in all channels: others expand a state
        beta = torch.where(draw.rand(*shape) < 0.3, 2.0, 2 * draw.rand(*shape))
        return beta.reshape(*shape, *(1 for _ in channels)).repeat(1, 1, *channels)
    return draw.rand(*shape, *channels)


def steps(case, draw, tokens, heads):
    """(dt, A) of Mamba-2: softplus(dt) is about 0.1 to 1, without it dt is, and partly below 0."""
    dt = draw.randn(tokens, heads)
    dt = dt - 1 if case.dt_softplus else 0.5 * dt + 0.3
    rate = 0.2 + draw.rand(heads)
    if case.regime in ("weak", "repeated"):
        rate *= 1e-4
    if case.regime == "strong":
        rate *= 30
    if case.regime == "slow_fast":  # heads side by side
        rate *= torch.where(torch.arange(heads) % 2 == 0, 1e-3, 12.0)
    if case.regime == "resets":  # steps so long that nothing is left
        rate *= 10
        dt = torch.where(draw.rand(tokens, heads) < 0.06, 60.0, dt - (4 if case.dt_softplus else 0))
    return dt, -rate
