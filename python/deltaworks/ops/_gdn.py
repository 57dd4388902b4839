"""Gated DeltaNet."""

from __future__ import annotations

import torch

from deltaworks.ops._call import call
from deltaworks.ops._operation import GATED_DELTA_NET


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

    T tokens in N sequences; H, HK, HV heads of q, k, v; HO = max(H, HV); head i of HO reads head
    i // (HO / Hx). HK is H or HV, and the larger of H and HV is a multiple of the smaller. Any
    strides are taken, expanded tensors included, and nothing is copied.

    Args:
        q: [T, H, K], float32, bfloat16 or float16 (float64: reference engine; all tensors alike).
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
        batch_invariant: a sequence's results do not depend on the batch: always so on the CPU; on
            a card long sequences are then not cut into segments.
        use_beta_sigmoid_in_kernel: beta holds logits.
        allow_neg_eigval: double beta after the sigmoid; needs use_beta_sigmoid_in_kernel.
        safe_gate: the decay's logarithm is -exp(a_log) softplus(g + dt_bias).
        gate_domain: "log", or "linear": g holds the decay itself, in [0, 1]. Not with safe_gate.
        a_log, dt_bias: [HO], float32, bfloat16 or float16; need safe_gate; None: zeros.
        checkpoint_every_n_tokens: states along the way; no engine has them yet.
        checkpoint_dtype: their dtype, that of q or float32; None: that of q.
        plan_name: pins an engine, forward and backward ("gdn_cpu"); None: the first that accepts.
        overwrite_initial_state: the final states replace initial_state, which is itself returned as
            final_state. It must not overlap itself; no input may require a gradient in grad mode.
        state_indices: [N], int32: initial_state is a pool and these are its rows; no engine has
            them yet.

    Returns:
        (o, final_state): o [T, HO, V] in the dtype of q; final_state [N, HO, V, K] in the dtype of
        initial_state (float32 without one), or None unless asked for or in place.

    Raises:
        ValueError: shapes, combinations, option values, malformed cu_seqlens.
        TypeError: dtypes, layouts other than torch.strided, and arguments of another kind (flags
            are bools).
        NotSupportedError: a valid call that no engine takes, with every engine's reasons; also
            torch.func transforms, forward-mode differentiation and second derivatives.
    """
    flags = (  # in the order of _arguments.FLAGS
        use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
        safe_gate,
        batch_invariant,
        output_final_state,
        overwrite_initial_state,
    )
    return call(
        GATED_DELTA_NET,
        (q, k, v, g, beta, a_log, dt_bias, cu_seqlens, initial_state, state_indices),
        flags,
        scale,
        gate_domain,
        plan_name,
        checkpoint_every_n_tokens,
        checkpoint_dtype,
    )
