"""How close results must be: the metrics and all tolerances.

Relative RMS error of a tensor and of each (sequence, head), and the largest error against 30 x
bound x RMS(reference), since one wrong token among thousands hides in an RMS. fp32 bounds follow
the error that a plain fp32 token loop makes on the same inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from deltaworks import _library

STATES = ("final_state", "d_initial_state")
GATES = ("dg", "ddt")
GATE_PARAMETERS = ("da_log", "ddt_bias", "dA")
PARAMETERS = (*GATE_PARAMETERS, "dD")  # sums over all tokens
OUTPUTS = ("o", "y", "final_state")

FORWARD = {"bfloat16": 1e-2, "float16": 3e-3, "float32": 2e-6, "float64": 1e-12}
BACKWARD = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 2e-5, "float64": 1e-11}
GATE_SUM = 3e-2  # GATE_PARAMETERS, and GATES in bf16, where any 16-bit tensor takes part
LOOP = 4.0
MAXIMUM = 30.0
NOT_TINY = 1e-4
# A (sequence, head) of few numbers may cancel to almost nothing: it is held against the loop's
# worst group, and against a tenth of the tensor's RMS at least.
SMALL_GROUP = 16
SMALL_FLOOR = 0.1
GATE_FLOOR = 1e-3
# Below these a value has no relative precision: fp16's subnormals; elsewhere underflow itself.
VANISHED = {"float16": 2e-5}
UNDERFLOW = 1e-20


class Row(NamedTuple):
    """One tensor's errors, relative to the RMS of the reference, and whether they are in bounds."""

    tensor: str
    error: float  # RMS over the tensor; NaN where something is not finite
    bound: float
    worst: float  # largest of the RMS, group and maximum errors as a part of its own bound
    tiny: bool  # the reference is about zero: nothing is tested

    @property
    def ok(self) -> bool:
        return self.worst <= 1  # not of NaN


def bound(name: str, io_dtype: str, dtype: str) -> float:
    """The bound of a tensor of `dtype` in a call whose q k v are `io_dtype`, without the loop."""
    table = FORWARD if name in OUTPUTS else BACKWARD
    base = max(table[io_dtype], table[dtype])
    narrow = base > table["float32"]
    if narrow and (name in GATE_PARAMETERS or (name in GATES and dtype == "bfloat16")):
        return GATE_SUM
    return base


def follows_loop(name: str, io_dtype: str, dtype: str) -> bool:
    """Whether the bound grows with the error of the fp32 token loop."""
    return bound(name, io_dtype, dtype) in (FORWARD["float32"], BACKWARD["float32"])


def errors(name, dtype, io_dtype, got, reference, loop, offsets, rows=None) -> Row:
    """Judges one tensor, by_token() where its rows go by tokens. `loop` is the fp32 loop's, needed
    where follows_loop says so; `rows` is gate_scale(), for GATES; `offsets` are cu_seqlens."""
    base = bound(name, io_dtype, dtype)
    ref, error = _wide(reference), _wide(got) - _wide(reference)
    if got.size == 0:
        return Row(name, 0.0, base, 0.0, True)
    if not np.isfinite(_wide(got)).all():
        return Row(name, np.nan, base, np.inf, False)

    floor = VANISHED.get(dtype, UNDERFLOW)
    scale = _rms(ref) if rows is None else max(_rms(ref), GATE_FLOOR * _rms(rows))
    tiny = bool(scale <= NOT_TINY)
    scale = max(scale, floor)
    follows = follows_loop(name, io_dtype, dtype)
    loop_error = _wide(loop) - ref if follows else np.zeros(1)
    tensor_loop = _rms(loop_error) / scale
    allowed = max(base, LOOP * tensor_loop)
    relative = _rms(error) / scale
    worst = max(relative / allowed, np.abs(error).max() / (MAXIMUM * allowed * scale))

    if name not in PARAMETERS:  # one number a (sequence, head)
        ref_rms, size = _group_rms(name, ref, offsets)
        if rows is not None:
            ref_rms = np.maximum(ref_rms, GATE_FLOOR * _group_rms(name, rows, offsets)[0])
        small = size < SMALL_GROUP
        ref_rms[small] = np.maximum(ref_rms[small], SMALL_FLOOR * _rms(ref))
        ref_rms = np.maximum(ref_rms, floor)
        limit = np.full_like(ref_rms, base)
        if follows and limit.size:
            groups = np.maximum(_group_rms(name, loop_error, offsets)[0] / ref_rms, tensor_loop)
            groups[small] = groups.max()
            limit = np.maximum(limit, LOOP * groups)
        over = _group_rms(name, error, offsets)[0] / ref_rms / limit
        worst = max(worst, over.max(initial=0))
    return Row(name, float(relative), float(allowed), float(worst), tiny)


def by_token(problem, name, x) -> np.ndarray:
    """A tensor with the rows of a token's sub-steps, if it has such, as [T, heads, numbers]."""
    dims = problem.dims
    heads = {"k": dims.HK, "v": dims.HV, "beta": dims.HO}.get(name.removeprefix("d"), 0)
    if heads == 0 or x.size == 0:
        return x
    x = x.reshape(dims.T, problem.num_householder, heads, -1).swapaxes(1, 2)
    return x.reshape(dims.T, heads, -1)


def gate_scale(problem, inputs, reference) -> np.ndarray:
    """[T, HO]: sum_d |q_d dq_d| + |k_d dk_d|, whose difference a gate gradient is; of a gate a
    channel too."""
    operation, total = problem.operation, 0
    for port in (_library.Q, _library.K):
        name = operation.names[port]
        row = np.abs(_wide(inputs[name]) * _wide(reference[operation.gradients[name]]))
        row = by_token(problem, name, row).sum(-1)
        if row.size == 0:
            return np.zeros((problem.dims.T, problem.dims.HO))
        total = total + np.repeat(row, problem.dims.HO // row.shape[1], 1)
    return total


def _wide(x):
    return np.asarray(x, np.float64)


def _rms(x):
    return float(np.sqrt(np.square(x).mean()))


def _group_rms(name, x, offsets):
    """RMS and element count of each (sequence that is not empty, head of x): two [n, heads]."""
    if name in STATES:
        means = np.square(x).mean((2, 3))
        return np.sqrt(means), np.full(means.shape, x[0, 0].size)
    x = x.reshape(*x.shape[:2], -1)
    spans = [(a, b) for a, b in zip(offsets, offsets[1:], strict=False) if b > a]
    means = np.zeros((len(spans), x.shape[1]))
    sizes = np.zeros(means.shape)
    for i, (a, b) in enumerate(spans):
        means[i] = np.square(x[a:b]).mean((0, 2))
        sizes[i] = (b - a) * x.shape[2]
    return np.sqrt(means), sizes
