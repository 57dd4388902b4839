"""What the backward functions return: the gradients, each in the shape and dtype of its input; None
where it is absent or not wanted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class GatedDeltaNetGradients(NamedTuple):
    """Gradients of gated_delta_net."""

    dq: np.ndarray | None
    dk: np.ndarray | None
    dv: np.ndarray | None
    dg: np.ndarray | None
    dbeta: np.ndarray | None
    da_log: np.ndarray | None
    ddt_bias: np.ndarray | None
    d_initial_state: np.ndarray | None


class KimiDeltaAttentionGradients(NamedTuple):
    """Gradients of kimi_delta_attention."""

    dq: np.ndarray | None
    dk: np.ndarray | None
    dv: np.ndarray | None
    dg: np.ndarray | None
    dbeta: np.ndarray | None
    da_log: np.ndarray | None
    ddt_bias: np.ndarray | None
    d_initial_state: np.ndarray | None


class GatedDeltaNetV2Gradients(NamedTuple):
    """Gradients of gated_delta_net_v2."""

    dq: np.ndarray | None
    dk: np.ndarray | None
    dv: np.ndarray | None
    dg: np.ndarray | None
    dbeta: np.ndarray | None
    dw: np.ndarray | None
    da_log: np.ndarray | None
    ddt_bias: np.ndarray | None
    d_initial_state: np.ndarray | None


class GatedDeltaProductGradients(NamedTuple):
    """Gradients of gated_delta_product."""

    dq: np.ndarray | None
    dk: np.ndarray | None
    dv: np.ndarray | None
    dg: np.ndarray | None
    dbeta: np.ndarray | None
    da_log: np.ndarray | None
    ddt_bias: np.ndarray | None
    d_initial_state: np.ndarray | None


class Mamba2Gradients(NamedTuple):
    """Gradients of mamba2."""

    dx: np.ndarray | None
    ddt: np.ndarray | None
    dA: np.ndarray | None
    dB: np.ndarray | None
    dC: np.ndarray | None
    dD: np.ndarray | None
    ddt_bias: np.ndarray | None
    dz: np.ndarray | None
    d_initial_state: np.ndarray | None
