"""Gates as the recurrence sees them, and the way back: for the token loop of loop.py."""

from __future__ import annotations

import numpy as np

from deltaworks import _library as dw
from deltaworks.problem import Problem

_LINEAR_EPSILON = 1e-10  # of linear gates
_LOWEST = -800  # its exp is 0; keeps -inf out of products


class Gate:
    """log_decay [T, HO, W], with W = K where every key channel has a gate and 1 elsewhere; and
    step [T, HO], where the gate is a time step, or None."""

    def __init__(self, problem: Problem, inputs: dict[str, np.ndarray]):
        """`inputs` by the names of their ports, in the dtype of the result."""
        g = inputs["g"]
        dims, self._shape = problem.dims, g.shape
        width = dims.K if g.ndim == 3 else 1
        g = g.reshape(dims.T, dims.HO, width)
        zeros = np.zeros((dims.HO, width), g.dtype)
        self._bias_shape = inputs["dt_bias"].shape if "dt_bias" in inputs else zeros.shape
        bias = inputs.get("dt_bias", zeros).reshape(zeros.shape)
        a = inputs.get("a_log", zeros[:, 0])[:, None]
        # besides the log of the decay, its derivatives by g and by a
        self.step, self._step_slope = None, None
        if "beta" not in inputs:
            step, self._step_slope = _time_step(problem, g + bias)
            log, slope, along = a * step, a * self._step_slope, step
            self.step = step[..., 0]
        elif problem.gate_domain == "linear":
            alpha = g + g.dtype.type(_LINEAR_EPSILON)
            log, slope, along = np.log(alpha), 1 / alpha, zeros
        elif not problem.flags & dw.SAFE_GATE:
            log, slope, along = g, np.ones_like(g), zeros
        elif len(self._shape) == 2 or problem.gate == "softplus":
            log = _clamped(-np.exp(a) * softplus(g + bias))
            slope, along = -np.exp(a) * _softplus_slope(g + bias), log
        else:
            x, bound = np.exp(a) * (g + bias), g.dtype.type(problem.gate_lower_bound)
            bend = bound * sigmoid(x) * sigmoid(-x)
            # where the sigmoid is flat x may be infinite
            along = np.where(bend < 0, bend * x, g.dtype.type(0))
            log, slope = bound * sigmoid(x), bend * np.exp(a)
        self.log_decay = _clamped(log)
        self._slope, self._along = slope, along

    def gradients(self, d_log, d_step) -> dict[str, np.ndarray]:
        """Of g, a_log and dt_bias, from those of log_decay and, where there is one, of step."""
        dg = self._slope * d_log
        if d_step is not None:
            dg = dg + self._step_slope * d_step[..., None]
        return {
            "dg": dg.reshape(self._shape),
            "da_log": (self._along * d_log).sum((0, 2)),
            "ddt_bias": dg.sum(0).reshape(self._bias_shape),
        }


def _clamped(log):
    return np.maximum(log, log.dtype.type(_LOWEST))


def _time_step(problem, x):
    """The step and its derivative, 0 strictly outside the clamp."""
    step, slope = x, np.ones_like(x)
    if not problem.flags & dw.DT_LINEAR:
        step, slope = softplus(x), _softplus_slope(x)
    low, high = (x.dtype.type(bound) for bound in problem.dt_bounds)
    inside = (step >= low) & (step <= high)
    return np.clip(step, low, high), np.where(inside, slope, x.dtype.type(0))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.where(x >= 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def _softplus_slope(x):
    return np.where(x >= 20, x.dtype.type(1), sigmoid(x))
