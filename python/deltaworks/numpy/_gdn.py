"""Gated DeltaNet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from deltaworks._operations import GATED_DELTA_NET
from deltaworks.numpy._arrays import Array
from deltaworks.numpy._call import backward, forward


class GatedDeltaNetGradients(NamedTuple):
    """Gradients, each in the shape and dtype of its input; None: absent or not wanted."""

    dq: np.ndarray | None
    dk: np.ndarray | None
    dv: np.ndarray | None
    dg: np.ndarray | None
    dbeta: np.ndarray | None
    da_log: np.ndarray | None
    ddt_bias: np.ndarray | None
    d_initial_state: np.ndarray | None


def gated_delta_net(
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
    """Gated DeltaNet over packed sequences: for each token of each (sequence, head)

        S <- exp(g) S;  S <- S + beta k (v - S^T k)^T;  o = scale S^T q

    T tokens in N sequences; H, HK, HV heads of q, k, v; HO = max(H, HV); head i of HO reads head
    i // (HO / Hx). HK is H or HV, and the larger of H and HV is a multiple of the smaller. Arrays
    are NumPy's or speak DLPack; they are read in place, with any strides.

    Args:
        q: [T, H, K], float32, bfloat16 or float16 (float64: reference engine; all arrays alike).
        k: [T, HK, K], dtype of q.
        v: [T, HV, V], dtype of q.
        g: [T, HO], float32, bfloat16 or float16: the logarithm of the decay, g <= 0.
        beta: [T, HO], float32 or the dtype of q: the writing strength.
        cu_seqlens: [N+1], int32 or int64: sequence n is rows cu_seqlens[n]:cu_seqlens[n+1]. Rows
            past the last sequence get zeros.
        scale: of the output; None: K^-0.5.
        initial_state: [N, HO, V, K], float32, bfloat16 or float16; None: zeros.
        output_final_state: also return the states after the last tokens.
        use_qk_l2norm_in_kernel: divide the rows of q and k by sqrt(sum x^2 + 1e-6).
        batch_invariant: a sequence's results do not depend on the batch (they never do here).
        use_beta_sigmoid_in_kernel: beta holds logits.
        allow_neg_eigval: double beta after the sigmoid; needs use_beta_sigmoid_in_kernel.
        safe_gate: the decay's logarithm is -exp(a_log) softplus(g + dt_bias).
        gate_domain: "log", or "linear": g holds the decay itself, in [0, 1]. Not with safe_gate.
        a_log, dt_bias: [HO], float32, bfloat16 or float16; need safe_gate; None: zeros.
        checkpoint_every_n_tokens, checkpoint_dtype: states along the way; no engine has them yet.
        plan_name: pins an engine ("gdn_cpu"); None: the first that accepts.
        overwrite_initial_state: the final states replace initial_state, which is itself returned as
            final_state. It must not overlap itself nor be read-only.
        state_indices: [N], int32: initial_state is a pool and these are its rows; no engine has
            them yet.
        threads: at most so many; 0: OMP_NUM_THREADS, else the processors there.

    Returns:
        (o, final_state), fresh NumPy arrays: o [T, HO, V] in the dtype of q; final_state
        [N, HO, V, K] in the dtype of initial_state (float32 without one), or None unless asked
        for; with overwrite_initial_state it is that array. bfloat16 is that of ml_dtypes.

    Raises:
        ValueError: shapes, combinations, option values, malformed cu_seqlens, elements that do
            not lie on multiples of their size, a read-only initial_state to be overwritten.
        TypeError: dtypes, and arguments of another kind (flags are bools).
        BufferError: a tensor that does not give out its memory (a torch one that requires grad).
        NotSupportedError: a valid call that no engine takes, with every engine's reasons.
    """
    return forward(GATED_DELTA_NET, locals())


def gated_delta_net_backward(
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
) -> GatedDeltaNetGradients:
    """Gradients of gated_delta_net, from the arguments of its call.

    Args (the others, and what is raised: see gated_delta_net):
        dO: [T, HO, V], dtype of q: the gradient with respect to o; None: zeros.
        d_final_state: [N, HO, V, K], dtype of the states: the gradient with respect to
            final_state; None: zeros.
        wanted: names of the inputs whose gradients to compute; None: all that are given.

    Returns:
        The gradients, fresh NumPy arrays; None for an input that is absent or not wanted.
    """
    return GatedDeltaNetGradients(**backward(GATED_DELTA_NET, locals()))
