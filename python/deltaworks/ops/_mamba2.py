"""Mamba-2."""

from __future__ import annotations

import torch

from deltaworks import _docstrings
from deltaworks.ops._call import call
from deltaworks.ops._operation import MAMBA2


@_docstrings.forward(_docstrings.TORCH)
def mamba2(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    cu_seqlens: torch.Tensor,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    checkpoint_every_n_tokens: int = 0,
    dt_softplus: bool = True,
    dt_min: float = 0.0,
    dt_max: float | None = None,
    batch_invariant: bool = False,
    state_indices: torch.Tensor | None = None,
    overwrite_initial_state: bool = False,
    plan_name: str | None = None,
    checkpoint_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Mamba-2 over packed sequences: for each token of each (sequence, head)

        step = clamp(softplus(dt + dt_bias), dt_min, dt_max)
        S <- exp(A step) S + step B x^T;  y = (S^T C + D x) silu(z)

    Nothing is erased. Dao, Gu, arXiv:2405.21060.
    """
    return call(
        MAMBA2,
        (C, B, x, dt, A, dt_bias, cu_seqlens, initial_state, state_indices, D, z),
        (
            output_final_state,
            batch_invariant,
            checkpoint_every_n_tokens,
            checkpoint_dtype,
            plan_name,
            overwrite_initial_state,
            dt_softplus,
            dt_min,
            dt_max,
        ),
    )
