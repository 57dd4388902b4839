"""From what a token reads of the state to its output, y = (o + D x) silu(z), and the way back; what
an operation does not have drops out of the formula. For the token loop of loop.py.
"""

from __future__ import annotations

import numpy as np

from deltaworks.testing.gates import sigmoid


class Output:
    """By `inputs` with the names of their ports; v [T, HO, V], `used` the tokens of sequences."""

    def __init__(self, inputs: dict[str, np.ndarray], v: np.ndarray, used: int):
        self._v, self._z, self._used = v, inputs.get("z"), used
        self._D = inputs.get("D")

    def apply(self, o):
        """The outputs [T, HO, V]; those of tokens that no sequence has are zero."""
        o = self._before_gate(o)
        return o if self._z is None else o * _silu(self._z)

    def ungate(self, dy):
        """Gradient of what is read, and of D x."""
        return dy if self._z is None else dy * _silu(self._z)

    def gradients(self, o, dy) -> tuple[dict[str, np.ndarray], np.ndarray | np.floating]:
        """(those of D and z, what reaches v through D x), from the rows that are read and the
        gradient of the output."""
        results, dv = {}, dy.dtype.type(0)
        if self._D is not None:
            d_sum = self.ungate(dy)
            dD = (d_sum * self._v).sum(0)
            results["dD"] = dD.sum(-1) if self._D.ndim == 1 else dD
            dv = d_sum * self._by_channel()
        if self._z is not None:
            slope = sigmoid(self._z) * (1 + self._z * sigmoid(-self._z))
            results["dz"] = dy * self._before_gate(o) * slope
        return results, dv

    def _before_gate(self, o):
        if self._D is None:
            return o
        o = o + self._by_channel() * self._v
        o[self._used :] = 0
        return o

    def _by_channel(self):
        return self._D[:, None] if self._D.ndim == 1 else self._D


def _silu(x):
    return x * sigmoid(x)
