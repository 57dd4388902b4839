"""Gated DeltaNet."""

from __future__ import annotations

import torch

from deltaworks import _docstrings
from deltaworks.ops._call import call
from deltaworks.ops._operation import GATED_DELTA_NET


@_docstrings.forward(_docstrings.TORCH)
def gated_delta_net(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    batch_invariant: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    gate_domain: str = "log",
    a_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    checkpoint_every_n_tokens: int = 0,
    checkpoint_dtype: torch.dtype | None = None,
    plan_name: str | None = None,
    overwrite_initial_state: bool = False,
    state_indices: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gated DeltaNet over packed sequences: for each token of each (sequence, head)

        S <- exp(g) S;  S <- S + beta k (v - S^T k)^T;  o = scale S^T q

    Yang, Kautz, Hatamizadeh, arXiv:2412.06464.
    """
    return call(
        GATED_DELTA_NET,
        (q, k, v, g, beta, a_log, dt_bias, cu_seqlens, initial_state, state_indices),
        (
            scale,
            use_qk_l2norm_in_kernel,
            use_beta_sigmoid_in_kernel,
            allow_neg_eigval,
            safe_gate,
            gate_domain,
            output_final_state,
            batch_invariant,
            checkpoint_every_n_tokens,
            checkpoint_dtype,
            plan_name,
            overwrite_initial_state,
        ),
    )
