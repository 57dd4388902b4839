"""What the recurrence sees of its inputs, and the way back: normalised rows per output head, decays
and betas after their activations, in one dtype. For the token loop of loop.py.
"""

from __future__ import annotations

import numpy as np

from deltaworks import _library as dw
from deltaworks.problem import Problem

_EPSILON = 1e-6  # of the l2 norm
_LINEAR_EPSILON = 1e-10  # of linear gates


class Rows:
    """q, k [T, HO, K], v [T, HO, V], decay, beta [T, HO] and scale, as the recurrence uses them."""

    def __init__(self, problem: Problem, inputs: dict[str, np.ndarray], dtype):
        self._flags, self._linear = problem.flags, problem.gate_domain == "linear"
        self._inputs = {
            name: array.astype(dtype)
            for name, array in inputs.items()
            if np.dtype(array.dtype).kind not in "iu"
        }
        self._beta_dtype = inputs["beta"].dtype
        dims, x = problem.dims, self._inputs
        self._heads = dims.HO
        self.scale = dtype(dims.K**-0.5 if problem.scale is None else problem.scale)
        q, k = x["q"], x["k"]
        if self._flags & dw.L2NORM:
            q, k = q * _inverse_norm(q), k * _inverse_norm(k)
        self.q, self.k, self.v = (self._per_output_head(rows) for rows in (q, k, x["v"]))
        self.log_decay = self._gate()
        self.decay = np.exp(self.log_decay)
        self.beta = self._sigmoid() if self._flags & dw.BETA_SIGMOID else x["beta"]

    def gradients(self, dq, dk, dv, d_decay, dbeta, d_initial) -> dict[str, np.ndarray]:
        """Gradients of the inputs, by the names of the outputs, from those of the rows."""
        dq, dk, dv = (
            self._summed_over_groups(gradient, self._inputs[name].shape[1])
            for gradient, name in ((dq, "q"), (dk, "k"), (dv, "v"))
        )
        if self._flags & dw.L2NORM:
            dq = _norm_gradient(self._inputs["q"], dq)
            dk = _norm_gradient(self._inputs["k"], dk)
        results = {"dq": dq, "dk": dk, "dv": dv, "d_initial_state": d_initial}
        results.update(self._gate_gradients(self.decay * d_decay))
        if self._flags & dw.BETA_SIGMOID:
            sigma = _sigmoid(self._inputs["beta"])
            dbeta = dbeta * self._doubling() * sigma * (1 - sigma)
        results["dbeta"] = dbeta
        return results

    def _per_output_head(self, rows):
        """Head i reads head i // (HO / heads of rows)."""
        return np.repeat(rows, self._heads // max(rows.shape[1], 1), 1)

    def _summed_over_groups(self, gradient, heads):
        if heads == 0:
            return gradient
        tokens, _, width = gradient.shape
        return gradient.reshape(tokens, heads, self._heads // heads, width).sum(2)

    def _gate(self):
        if self._linear:
            return np.log(self._inputs["g"] + self.scale.dtype.type(_LINEAR_EPSILON))
        if not self._flags & dw.SAFE_GATE:
            return self._inputs["g"]
        x = self._shifted_gate()
        return -self._amplitude() * np.where(x >= 20, x, np.log1p(np.exp(np.minimum(x, 20))))

    def _shifted_gate(self):
        return self._inputs["g"] + self._inputs.get("dt_bias", self.scale.dtype.type(0))

    def _amplitude(self):
        return np.exp(self._inputs.get("a_log", self.scale.dtype.type(0)))

    def _gate_gradients(self, d_log):
        if self._linear:
            return {"dg": d_log / (self._inputs["g"] + self.scale.dtype.type(_LINEAR_EPSILON))}
        if not self._flags & dw.SAFE_GATE:
            return {"dg": d_log}
        x = self._shifted_gate()
        dg = -self._amplitude() * np.where(x >= 20, x.dtype.type(1), _sigmoid(x)) * d_log
        return {"dg": dg, "ddt_bias": dg.sum(0), "da_log": (self.log_decay * d_log).sum(0)}

    def _sigmoid(self):
        """The sigmoid is rounded to the dtype that the caller's beta has, then doubled."""
        sigma = _sigmoid(self._inputs["beta"])
        return sigma.astype(self._beta_dtype).astype(sigma.dtype) * self._doubling()

    def _doubling(self):
        return self.scale.dtype.type(2 if self._flags & dw.ALLOW_NEG_EIGVAL else 1)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _inverse_norm(x):
    return 1 / np.sqrt((x * x).sum(-1, keepdims=True) + x.dtype.type(_EPSILON))


def _norm_gradient(x, dy):
    inverse = _inverse_norm(x)
    y = x * inverse
    return inverse * (dy - y * (y * dy).sum(-1, keepdims=True))
