"""Gated DeltaNet 2: channels decay, are erased and are written each by a strength of their own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import DTypeLike

from deltaworks import _docstrings
from deltaworks._operations import GATED_DELTA_NET_V2
from deltaworks.numpy._arrays import Array
from deltaworks.numpy._call import backward, forward
from deltaworks.numpy._gradients import GatedDeltaNetV2Gradients


@_docstrings.forward(_docstrings.NUMPY)
def gated_delta_net_v2(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    w: Array,
    cu_seqlens: Array,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    batch_invariant: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    beta_guard: bool = False,
    safe_gate: bool = False,
    gate_domain: str = "log",
    gate_lower_bound: float | None = None,
    a_log: Array | None = None,
    dt_bias: Array | None = None,
    checkpoint_every_n_tokens: int = 0,
    checkpoint_dtype: DTypeLike | None = None,
    plan_name: str | None = None,
    overwrite_initial_state: bool = False,
    state_indices: Array | None = None,
    *,
    gate: str = "sigmoid",
    threads: int = 0,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Gated DeltaNet 2 over packed sequences: for each token of each (sequence, head)

        S <- Diag(exp(g)) S;  S <- S + k (w * v - S^T (beta * k))^T;  o = scale S^T q

    Channels decay, are erased (beta * k) and are written (w * v) each by a strength of their own.
    """
    return forward(GATED_DELTA_NET_V2, locals())


@_docstrings.backward(gated_delta_net_v2, _docstrings.NUMPY)
def gated_delta_net_v2_backward(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    w: Array,
    cu_seqlens: Array,
    dO: Array | None,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    batch_invariant: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    beta_guard: bool = False,
    safe_gate: bool = False,
    gate_domain: str = "log",
    gate_lower_bound: float | None = None,
    a_log: Array | None = None,
    dt_bias: Array | None = None,
    checkpoint_every_n_tokens: int = 0,
    checkpoint_dtype: DTypeLike | None = None,
    plan_name: str | None = None,
    overwrite_initial_state: bool = False,
    state_indices: Array | None = None,
    d_final_state: Array | None = None,
    wanted: Iterable[str] | None = None,
    *,
    gate: str = "sigmoid",
    threads: int = 0,
) -> GatedDeltaNetV2Gradients:
    """Gradients of gated_delta_net_v2, from the arguments of its call."""
    return GatedDeltaNetV2Gradients(**backward(GATED_DELTA_NET_V2, locals()))
