"""Mamba-2."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import DTypeLike

from deltaworks import _docstrings
from deltaworks._operations import MAMBA2
from deltaworks.numpy._arrays import Array
from deltaworks.numpy._call import backward, forward
from deltaworks.numpy._gradients import Mamba2Gradients


@_docstrings.forward(_docstrings.NUMPY)
def mamba2(
    x: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    cu_seqlens: Array,
    D: Array | None = None,
    dt_bias: Array | None = None,
    z: Array | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    checkpoint_every_n_tokens: int = 0,
    dt_softplus: bool = True,
    dt_min: float = 0.0,
    dt_max: float | None = None,
    batch_invariant: bool = False,
    state_indices: Array | None = None,
    overwrite_initial_state: bool = False,
    plan_name: str | None = None,
    checkpoint_dtype: DTypeLike | None = None,
    *,
    threads: int = 0,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Mamba-2 over packed sequences: for each token of each (sequence, head)

        step = clamp(softplus(dt + dt_bias), dt_min, dt_max)
        S <- exp(A step) S + step B x^T;  y = (S^T C + D x) silu(z)

    Nothing is erased. Dao, Gu, arXiv:2405.21060.
    """
    return forward(MAMBA2, locals())


@_docstrings.backward(mamba2, _docstrings.NUMPY)
def mamba2_backward(
    x: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    cu_seqlens: Array,
    dy: Array | None,
    D: Array | None = None,
    dt_bias: Array | None = None,
    z: Array | None = None,
    initial_state: Array | None = None,
    output_final_state: bool = False,
    checkpoint_every_n_tokens: int = 0,
    dt_softplus: bool = True,
    dt_min: float = 0.0,
    dt_max: float | None = None,
    batch_invariant: bool = False,
    state_indices: Array | None = None,
    overwrite_initial_state: bool = False,
    plan_name: str | None = None,
    checkpoint_dtype: DTypeLike | None = None,
    d_final_state: Array | None = None,
    wanted: Iterable[str] | None = None,
    *,
    threads: int = 0,
) -> Mamba2Gradients:
    """Gradients of mamba2, from the arguments of its call."""
    return Mamba2Gradients(**backward(MAMBA2, locals()))
