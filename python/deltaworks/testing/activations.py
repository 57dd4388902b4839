"""What the recurrence sees of its inputs, and the way back: normalised rows per output head, decays
and betas after their activations, in one dtype. For the token loop of loop.py.

Tensors go by the names of their ports, so that every operation is the same here. Which tensors
there are, and their ranks, tell the operations apart: a w makes erase and write rows go by
channels, and without a beta nothing is erased and the gate is a time step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from deltaworks import _library as dw
from deltaworks.problem import Problem
from deltaworks.testing.gates import Gate, sigmoid
from deltaworks.testing.guard import guarded

_EPSILON = 1e-6  # of the l2 norm


class Gradients(NamedTuple):
    """Of the fields of Rows and of the states; erase is None where nothing is erased."""

    q: np.ndarray
    k: np.ndarray  # but for the part of the erase rows
    erase: np.ndarray | None
    write: np.ndarray
    factor: np.ndarray
    decay: np.ndarray
    d_initial_state: np.ndarray


class Rows:
    """The recurrence's inputs, of R = T n rows, n of them a token:

    q [T, HO, K], k and erase [R, HO, K], write [R, HO, V], factor [R, HO], decay [T, HO, K or 1];
    a row writes factor (write - S^T erase), without an erase factor write.
    """

    def __init__(self, problem: Problem, inputs: dict[str, np.ndarray], dtype):
        """`inputs` by the names of their ports."""
        self._flags = problem.flags
        self.inputs = x = {
            name: array.astype(dtype)
            for name, array in inputs.items()
            if np.dtype(array.dtype).kind not in "iu"
        }
        self.dtype = dtype
        dims = problem.dims
        self.steps, self._heads = problem.num_householder, dims.HO
        self._count = dims.T * self.steps
        scales = any(option.name == "scale" for option in problem.operation.options)
        default = dims.K**-0.5 if scales else 1
        self.scale = dtype(default if problem.scale is None else problem.scale)
        self._q = x["q"]
        self._k = x["k"].reshape(self._count, dims.HK, dims.K)
        q, k = self._q, self._k
        if self._flags & dw.L2NORM:
            q, k = q * _inverse_norm(q), k * _inverse_norm(k)
        v = x["v"].reshape(self._count, dims.HV, dims.V)
        self.q, self.k, self.v = (self._per_output_head(rows) for rows in (q, k, v))

        self._gate = Gate(problem, x)
        self.decay = np.exp(self._gate.log_decay)
        self.erase, self.write, self.factor = None, self.v, self._gate.step
        if "beta" in x:
            self._set_beta(inputs, problem.dims.K)

    def gradients(self, d: Gradients, dv_beside) -> dict[str, np.ndarray]:
        """Gradients of the inputs, by the names of their ports, from those of the rows; dv_beside
        is what reaches v, per output head, beside the write rows."""
        results = {"d_initial_state": d.d_initial_state}
        dk, dv, d_step = d.k, d.write, d.factor
        if "beta" in self.inputs:
            d_step, dbeta = None, d.factor
            if "w" in self.inputs:
                dbeta, dk = d.erase * self.k, dk + d.erase * self._beta
                results["dw"], dv = d.write * self.v, d.write * self.inputs["w"]
            else:
                dk = dk + d.erase
            results["dbeta"] = self._beta_gradient(dbeta)
        dq = self._summed_over_groups(d.q, self._q.shape[1])
        dk = self._summed_over_groups(dk, self._k.shape[1])
        dv = self._summed_over_groups(dv + dv_beside, self.inputs["v"].shape[-2])
        if self._flags & dw.L2NORM:
            dq, dk = _norm_gradient(self._q, dq), _norm_gradient(self._k, dk)
        results |= {"dq": dq, "dk": dk, "dv": dv}
        return results | self._gate.gradients(self.decay * d.decay, d_step)

    def _set_beta(self, inputs, K):
        beta = self.inputs["beta"]
        if self._flags & dw.BETA_SIGMOID:
            # The sigmoid is rounded to the dtype that the caller's beta has, then doubled.
            beta = sigmoid(beta).astype(inputs["beta"].dtype).astype(self.dtype) * self._doubling()
        if self._flags & dw.BETA_GUARD:
            beta = guarded(beta, self.k, self._gate.log_decay, inputs["q"].dtype)
        if "w" not in self.inputs:
            self.erase, self.factor = self.k, beta.reshape(self._count, self._heads)
            return
        self._beta = beta
        self.erase, self.write = beta * self.k, self.inputs["w"] * self.v
        self.factor = np.ones(beta.shape[:2], self.dtype)

    def _beta_gradient(self, dbeta):
        """The rounding and the guard count as the identity."""
        logits = self.inputs["beta"]
        dbeta = dbeta.reshape(logits.shape)
        if not self._flags & dw.BETA_SIGMOID:
            return dbeta
        return dbeta * self._doubling() * sigmoid(logits) * sigmoid(-logits)

    def _doubling(self):
        return self.dtype(2 if self._flags & dw.ALLOW_NEG_EIGVAL else 1)

    def _per_output_head(self, rows):
        """Head i reads head i // (HO / heads of rows)."""
        return np.repeat(rows, self._heads // max(rows.shape[1], 1), 1)

    def _summed_over_groups(self, gradient, heads):
        if heads == 0:
            return gradient
        tokens, _, width = gradient.shape
        return gradient.reshape(tokens, heads, self._heads // heads, width).sum(2)


def _inverse_norm(x):
    return 1 / np.sqrt((x * x).sum(-1, keepdims=True) + x.dtype.type(_EPSILON))


def _norm_gradient(x, dy):
    inverse = _inverse_norm(x)
    y = x * inverse
    return inverse * (dy - y * (y * dy).sum(-1, keepdims=True))
