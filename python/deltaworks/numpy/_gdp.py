"""Gated DeltaProduct: n steps of the delta rule a token."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import DTypeLike

from deltaworks import _docstrings
from deltaworks._operations import GATED_DELTA_PRODUCT
from deltaworks.numpy._arrays import Array
from deltaworks.numpy._call import backward, forward
from deltaworks.numpy._gradients import GatedDeltaProductGradients


@_docstrings.forward(_docstrings.NUMPY)
def gated_delta_product(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    cu_seqlens: Array,
    num_householder: int,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    batch_invariant: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_domain: str = "log",
    a_log: Array | None = None,
    dt_bias: Array | None = None,
    checkpoint_every_n_tokens: int = 0,
    checkpoint_dtype: DTypeLike | None = None,
    plan_name: str | None = None,
    overwrite_initial_state: bool = False,
    state_indices: Array | None = None,
    *,
    threads: int = 0,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Gated DeltaProduct over packed sequences: for each token of each (sequence, head)

        S <- exp(g) S;  n times: S <- S + beta_j k_j (v_j - S^T k_j)^T;  o = scale S^T q

    n = num_householder steps of Gated DeltaNet a token, of which the first decays. Siems et al.,
    arXiv:2502.10297.
    """
    return forward(GATED_DELTA_PRODUCT, locals())


@_docstrings.backward(gated_delta_product, _docstrings.NUMPY)
def gated_delta_product_backward(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    cu_seqlens: Array,
    num_householder: int,
    dO: Array | None,
    scale: float | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    batch_invariant: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
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
    threads: int = 0,
) -> GatedDeltaProductGradients:
    """Gradients of gated_delta_product, from the arguments of its call."""
    return GatedDeltaProductGradients(**backward(GATED_DELTA_PRODUCT, locals()))
