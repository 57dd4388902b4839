"""The definition of every operation as a plain token loop in NumPy, forward and reverse: the error
that it makes in fp32 on the same inputs sets the fp32 bounds. Slow and obvious; notation of
docs/design/gated-delta-rule.md, states [HO, V, K].
"""

from __future__ import annotations

import math

import numpy as np

from deltaworks import _library
from deltaworks.problem import Problem
from deltaworks.testing.activations import Gradients, Rows
from deltaworks.testing.outputs import Output


def token_loop(
    problem: Problem, inputs: dict[str, np.ndarray], dtype=np.float32
) -> dict[str, np.ndarray]:
    """The problem's outputs by name, computed and returned in `dtype`."""
    ports = problem.operation.ports
    by_port = {_library.PORTS[ports[name]]: array for name, array in inputs.items()}
    with np.errstate(all="ignore"):  # gates of -inf, raw keys that overflow
        rows = Rows(problem, by_port, dtype)
        used = int(by_port["cu_seqlens"][-1])
        output = Output(rows.inputs, rows.v, used)
        if problem.pass_ == "forward":
            o, final_state = _forward(problem, by_port, rows)
            results = {"o": output.apply(o), "final_state": final_state}
        else:
            results = _gradients(problem, by_port, rows, output, used)
    return {
        name: results[_library.PORTS[ports[name]]].reshape(tensor.shape).astype(dtype)
        for name, tensor in problem.outputs.items()
    }


def _gradients(problem, inputs, rows, output, used):
    dims = problem.dims
    dy = np.zeros((dims.T, dims.HO, dims.V), rows.dtype)
    if "dO" in inputs:
        dy[:used] = inputs["dO"][:used]
    o, d_rows = _backward(problem, inputs, rows, output.ungate(dy))
    results, dv_beside = output.gradients(o, dy)
    return results | rows.gradients(d_rows, dv_beside)


def _sequences(problem, inputs, rows):
    """(begin, end, entering state) of every sequence; its rows, of which a token has several."""
    dims = problem.dims
    offsets = inputs["cu_seqlens"].tolist()
    for n in range(dims.N):
        state = np.zeros((dims.HO, dims.V, dims.K), rows.dtype)
        if "initial_state" in inputs:
            state = inputs["initial_state"][n].astype(rows.dtype)
        yield offsets[n] * rows.steps, offsets[n + 1] * rows.steps, state


def _forward(problem, inputs, rows):
    dims = problem.dims
    o = np.zeros((dims.T, dims.HO, dims.V), rows.dtype)
    final = np.zeros((dims.N, dims.HO, dims.V, dims.K), o.dtype)
    for n, (begin, end, state) in enumerate(_sequences(problem, inputs, rows)):
        for r in range(begin, end):
            state = _step(rows, r, state)[0]
            if _is_read(rows, r):
                o[r // rows.steps] = _read(rows, r, state)
        final[n] = state
    return o, final


def _decays(rows, r):
    return r % rows.steps == 0


def _is_read(rows, r):
    return r % rows.steps == rows.steps - 1


def _read(rows, r, state):
    return rows.scale * _apply(state, rows.q[r // rows.steps])


def _step(rows, r, state):
    """(state after row r, its u, residual, decayed state)."""
    decayed = state
    if _decays(rows, r):
        decayed = rows.decay[r // rows.steps][:, None, :] * state
    residual = rows.write[r]
    if rows.erase is not None:
        residual = residual - _apply(decayed, rows.erase[r])
    u = rows.factor[r][:, None] * residual
    return decayed + _outer(u, rows.k[r]), u, residual, decayed


def _backward(problem, inputs, rows, d_o):
    """(o, Gradients of the rows); d_o [T, HO, V] is that of o."""
    dims, dtype = problem.dims, rows.dtype
    o = np.zeros_like(d_o)
    d_erase = None if rows.erase is None else np.zeros_like(rows.erase)
    fields = (rows.q, rows.k, rows.write, rows.factor, rows.decay)
    dq, dk, d_write, d_factor, d_decay = map(np.zeros_like, fields)
    d_initial = np.zeros((dims.N, dims.HO, dims.V, dims.K), dtype)
    for n, (begin, end, state) in enumerate(_sequences(problem, inputs, rows)):
        d_state = d_initial[n]
        if "d_final_state" in inputs:
            d_state = inputs["d_final_state"][n].astype(dtype)
        for r, before in _states_backwards(rows, begin, end, state):
            t = r // rows.steps
            after, u, residual, decayed = _step(rows, r, before)
            if _is_read(rows, r):
                o[t] = _read(rows, r, after)
                d_out = rows.scale * d_o[t]
                d_state = d_state + _outer(d_out, rows.q[t])
                dq[t] = _apply_transposed(after, d_out)
            d_u = _apply(d_state, rows.k[r])
            dk[r] = _apply_transposed(d_state, u)
            d_factor[r] = (d_u * residual).sum(-1)
            d_write[r] = rows.factor[r][:, None] * d_u
            if rows.erase is not None:
                d_erase[r] = -_apply_transposed(decayed, d_write[r])
                d_state = d_state - _outer(d_write[r], rows.erase[r])
            if _decays(rows, r):
                by_channel = (d_state * before).sum(1)
                one = rows.decay.shape[-1] == 1
                d_decay[t] = by_channel.sum(-1, keepdims=True) if one else by_channel
                d_state = rows.decay[t][:, None, :] * d_state
        d_initial[n] = d_state
    return o, Gradients(dq, dk, d_erase, d_write, d_factor, d_decay, d_initial)


def _states_backwards(rows, begin, end, state):
    """(row, state entering it) from the last to the first, kept in pieces of sqrt(length): the
    memory of two square roots."""
    piece = max(math.isqrt(end - begin), 1)
    starts = range(begin, end, piece)
    entering = []
    for start in starts:
        entering.append(state)
        for r in range(start, min(start + piece, end)):
            state = _step(rows, r, state)[0]
    for start, first in zip(reversed(starts), reversed(entering), strict=True):
        before = [first]
        for r in range(start, min(start + piece, end) - 1):
            before.append(_step(rows, r, before[-1])[0])
        yield from reversed(list(enumerate(before, start)))


def _outer(rows, columns):
    return rows[:, :, None] * columns[:, None, :]


def _apply(state, key):
    """S^T k: [HO, V]."""
    return (state @ key[:, :, None])[:, :, 0]


def _apply_transposed(state, value):
    """S v: [HO, K]."""
    return (value[:, None, :] @ state)[:, 0, :]
