"""The guard of a beta a key channel (beta_guard), in fp64: for the token loop of loop.py."""

from __future__ import annotations

import ml_dtypes
import numpy as np

_MARGIN = 1 - 1 / 32
_NOTHING = 1e-20  # a key without weight bounds nothing
# What rounding a row may add to its spread, in units of the last place.
_ROUNDING = {np.dtype(np.float16): 2.0**-10, np.dtype(ml_dtypes.bfloat16): 2.0**-7}


def guarded(beta, k, log_decay, io):
    """beta [T, HO, K], drawn towards its mean where the erase step would expand the state, and
    rounded to the dtype `io`; k [T, HO, K] is normalised."""
    weights = np.square(k.astype(np.float64))
    growth = np.exp(-2 * log_decay.astype(np.float64).max(-1, keepdims=True))
    total = weights.sum(-1, keepdims=True)

    def moments(row):
        """Mean, spread, what the spread may be, and the scale of the spread's own error."""
        first = (row * weights).sum(-1, keepdims=True)
        second = total * (row * row * weights).sum(-1, keepdims=True)
        allowed = (growth - 1) * (1 - np.square(1 - first) / growth)
        spread = np.maximum(second - first * first, 0)
        mean = first / np.maximum(total, _NOTHING)
        return mean, spread, np.maximum(allowed, 0), second + first * first

    def rounded(row):
        return row.astype(io).astype(np.float64)

    wide = beta.astype(np.float64)
    mean, spread, allowed, _ = moments(wide)
    share = np.minimum(np.sqrt(_MARGIN * allowed / np.maximum(spread, 1e-30)), 1)
    weighty = total > _NOTHING
    row = rounded(np.where(weighty & (spread > allowed), mean + share * (wide - mean), wide))
    mean, spread, allowed, magnitude = moments(row)
    slack = 4 * _ROUNDING.get(np.dtype(io), 0.0) * magnitude
    row = np.where(weighty & (spread - allowed > slack), rounded(mean), row)
    return row.astype(beta.dtype)
