"""Kimi Delta Attention: Gated DeltaNet with a decay of every key channel."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import DTypeLike

from deltaworks import _docstrings
from deltaworks._operations import KIMI_DELTA_ATTENTION
from deltaworks.numpy._arrays import Array
from deltaworks.numpy._call import backward, forward
from deltaworks.numpy._gradients import KimiDeltaAttentionGradients


@_docstrings.forward(_docstrings.NUMPY)
def kimi_delta_attention(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    cu_seqlens: Array,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    batch_invariant: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_lower_bound: float | None = None,
    gate_domain: str = "log",
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
    """Kimi Delta Attention over packed sequences: for each token of each (sequence, head)

        S <- Diag(exp(g)) S;  S <- S + beta k (v - S^T k)^T;  o = scale S^T q

    Gated DeltaNet with a decay of every key channel. Kimi Team, arXiv:2510.26692.
    """
    return forward(KIMI_DELTA_ATTENTION, locals())


@_docstrings.backward(kimi_delta_attention, _docstrings.NUMPY)
def kimi_delta_attention_backward(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    cu_seqlens: Array,
    dO: Array | None,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    batch_invariant: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_lower_bound: float | None = None,
    gate_domain: str = "log",
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
) -> KimiDeltaAttentionGradients:
    """Gradients of kimi_delta_attention, from the arguments of its call."""
    return KimiDeltaAttentionGradients(**backward(KIMI_DELTA_ATTENTION, locals()))
