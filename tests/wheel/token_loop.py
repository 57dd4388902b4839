"""Gated DeltaNet as a plain NumPy loop over tokens in float64, and its reverse sweep.

What an installed deltaworks is compared with; imports nothing of it. For each token of each
(sequence, head), S [K, V]:

    S <- a S, a = exp(g);    r = v - S^T k;    S <- S + beta k r^T;    o = scale S^T q
"""

from typing import NamedTuple

import numpy as np


class Inputs(NamedTuple):
    """Head i of HO = HV reads head i // (HV / H) of q and k."""

    q: np.ndarray  # [T, H, K]
    k: np.ndarray  # [T, H, K]
    v: np.ndarray  # [T, HV, V]
    g: np.ndarray  # [T, HV]
    beta: np.ndarray  # [T, HV]
    cu_seqlens: np.ndarray  # [N + 1]
    initial_state: np.ndarray  # [N, HV, V, K]
    flow: np.ndarray  # [T, HV, V], the gradient that flows into o


def make_inputs(seed: int = 0) -> Inputs:
    """Float32; keys of norm 1; three sequences, one of a single token; 2 heads of v to one of k."""
    random = np.random.default_rng(seed)
    cu_seqlens = np.array([0, 70, 71, 150], dtype=np.int32)
    tokens, heads, value_heads, key_dim, value_dim = 150, 2, 4, 24, 40

    def normal(*shape):
        return random.standard_normal(shape).astype(np.float32)

    k = normal(tokens, heads, key_dim)
    return Inputs(
        q=normal(tokens, heads, key_dim),
        k=k / np.linalg.norm(k, axis=-1, keepdims=True),
        v=normal(tokens, value_heads, value_dim),
        g=-np.abs(normal(tokens, value_heads)),
        beta=random.uniform(0, 1, (tokens, value_heads)).astype(np.float32),
        cu_seqlens=cu_seqlens,
        initial_state=normal(len(cu_seqlens) - 1, value_heads, value_dim, key_dim),
        flow=normal(tokens, value_heads, value_dim),
    )


def token_loop(inputs: Inputs) -> dict[str, np.ndarray]:
    """o, final_state, and the gradients of sum(o * flow): dq dk dv dg dbeta d_initial_state."""
    x = Inputs(*[array.astype(np.float64) for array in inputs])
    x = x._replace(cu_seqlens=inputs.cu_seqlens)
    group = x.v.shape[1] // x.q.shape[1]
    scale = x.q.shape[2] ** -0.5
    found = {"o": np.zeros_like(x.v), "final_state": np.zeros_like(x.initial_state)}
    for name in ("q", "k", "v", "g", "beta"):
        found[f"d{name}"] = np.zeros_like(getattr(x, name))
    found["d_initial_state"] = np.zeros_like(x.initial_state)

    for n, (begin, end) in enumerate(zip(x.cu_seqlens[:-1], x.cu_seqlens[1:], strict=True)):
        for head in range(x.v.shape[1]):
            state, steps = x.initial_state[n, head].T, []
            for t in range(begin, end):
                q, k, beta = x.q[t, head // group], x.k[t, head // group], x.beta[t, head]
                decayed = np.exp(x.g[t, head]) * state
                r = x.v[t, head] - decayed.T @ k
                state = decayed + beta * np.outer(k, r)
                found["o"][t, head] = scale * state.T @ q
                steps.append((t, q, k, beta, decayed, r, state))
            found["final_state"][n, head] = state.T

            d_state = np.zeros_like(state)
            for t, q, k, beta, decayed, r, state in reversed(steps):
                flow = scale * x.flow[t, head]
                d_state = d_state + np.outer(q, flow)
                d_r = beta * d_state.T @ k
                d_decayed = d_state - np.outer(k, d_r)
                found["dq"][t, head // group] += state @ flow
                found["dk"][t, head // group] += beta * d_state @ r - decayed @ d_r
                found["dv"][t, head] = d_r
                found["dg"][t, head] = np.sum(d_decayed * decayed)
                found["dbeta"][t, head] = k @ d_state @ r
                d_state = np.exp(x.g[t, head]) * d_decayed
            found["d_initial_state"][n, head] = d_state.T
    return found


def distance(got: np.ndarray, wanted: np.ndarray) -> float:
    """RMS(got - wanted) / RMS(wanted)."""
    if got.shape != wanted.shape:
        raise ValueError(f"expected the shape {wanted.shape}, got {got.shape}")
    rms = np.sqrt(np.mean(np.square(wanted)))
    if not rms > 1e-3:
        raise ValueError(f"nothing to compare with: RMS {rms}")
    return float(np.sqrt(np.mean(np.square(got.astype(np.float64) - wanted))) / rms)
