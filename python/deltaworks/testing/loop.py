"""The definition as a plain token loop in NumPy, forward and reverse: the error that it makes in
fp32 on the same inputs sets the fp32 bounds. Slow and obvious; notation of
docs/design/gated-delta-rule.md, states [HO, V, K].
"""

from __future__ import annotations

import math

import numpy as np

from deltaworks.problem import Problem
from deltaworks.testing import activations


def token_loop(
    problem: Problem, inputs: dict[str, np.ndarray], dtype=np.float32
) -> dict[str, np.ndarray]:
    """The problem's outputs by name, computed and returned in `dtype`."""
    with np.errstate(all="ignore"):  # gates of -inf, raw keys that overflow
        rows = activations.Rows(problem, inputs, dtype)
        if problem.pass_ == "forward":
            o, final_state = _forward(problem, inputs, rows)
            results = {"o": o, "final_state": final_state}
        else:
            results = rows.gradients(*_backward(problem, inputs, rows))
    return {name: results[name].astype(dtype) for name in problem.outputs}


def _sequences(problem, inputs, dtype):
    """(begin, end, entering state) of every sequence."""
    dims = problem.dims
    offsets = inputs["cu_seqlens"].tolist()
    for n in range(dims.N):
        state = np.zeros((dims.HO, dims.V, dims.K), dtype)
        if "initial_state" in inputs:
            state = inputs["initial_state"][n].astype(dtype)
        yield offsets[n], offsets[n + 1], state


def _forward(problem, inputs, rows):
    dims = problem.dims
    o = np.zeros((dims.T, dims.HO, dims.V), rows.q.dtype)
    final = np.zeros((dims.N, dims.HO, dims.V, dims.K), o.dtype)
    for n, (begin, end, state) in enumerate(_sequences(problem, inputs, o.dtype)):
        for t in range(begin, end):
            state = _step(rows, t, state)[0]
            o[t] = rows.scale * _apply(state, rows.q[t])
        final[n] = state
    return o, final


def _step(rows, t, state):
    """(state after token t, its u, residual, decayed state)."""
    decayed = rows.decay[t][:, None, None] * state
    residual = rows.v[t] - _apply(decayed, rows.k[t])
    u = rows.beta[t][:, None] * residual
    return decayed + _outer(u, rows.k[t]), u, residual, decayed


def _backward(problem, inputs, rows):
    """Gradients of the rows (dq, dk, dv, d decay, dbeta), per output head, and of the states."""
    dims, dtype = problem.dims, rows.q.dtype
    dq, dk, dv = (np.zeros_like(x) for x in (rows.q, rows.k, rows.v))
    d_decay, dbeta = np.zeros_like(rows.decay), np.zeros_like(rows.beta)
    d_initial = np.zeros((dims.N, dims.HO, dims.V, dims.K), dtype)
    d_o = inputs["dO"].astype(dtype) if "dO" in inputs else np.zeros_like(rows.v)
    for n, (begin, end, state) in enumerate(_sequences(problem, inputs, dtype)):
        d_state = d_initial[n]
        if "d_final_state" in inputs:
            d_state = inputs["d_final_state"][n].astype(dtype)
        # the states entering tokens, in pieces of sqrt(length): the memory of two square roots
        piece = max(math.isqrt(end - begin), 1)
        starts = range(begin, end, piece)
        entering = []
        for start in starts:
            entering.append(state)
            for t in range(start, min(start + piece, end)):
                state = _step(rows, t, state)[0]
        for start, first in zip(reversed(starts), reversed(entering), strict=True):
            before = [first]
            for t in range(start, min(start + piece, end) - 1):
                before.append(_step(rows, t, before[-1])[0])
            for i, t in reversed(list(enumerate(range(start, start + len(before))))):
                after, u, residual, decayed = _step(rows, t, before[i])
                d_out = rows.scale * d_o[t]
                d_state = d_state + _outer(d_out, rows.q[t])
                dq[t] = _apply_transposed(after, d_out)
                d_u = _apply(d_state, rows.k[t])
                d_residual = rows.beta[t][:, None] * d_u
                dk[t] = _apply_transposed(d_state, u) - _apply_transposed(decayed, d_residual)
                dv[t], dbeta[t] = d_residual, (d_u * residual).sum(-1)
                d_decayed = d_state - _outer(d_residual, rows.k[t])
                d_decay[t] = (d_decayed * before[i]).sum((1, 2))
                d_state = rows.decay[t][:, None, None] * d_decayed
        d_initial[n] = d_state
    return dq, dk, dv, d_decay, dbeta, d_initial


def _outer(rows, columns):
    return rows[:, :, None] * columns[:, None, :]


def _apply(state, key):
    """S^T k: [HO, V]."""
    return (state @ key[:, :, None])[:, :, 0]


def _apply_transposed(state, value):
    """S v: [HO, K]."""
    return (value[:, None, :] @ state)[:, 0, :]
