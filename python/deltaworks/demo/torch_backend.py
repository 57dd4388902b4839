"""`gated_delta_net` as a plain PyTorch token loop: the same call, readable, slow.

State S [V, K] per sequence and head, one token at a time:
    S = exp(g) S;  S = S + beta (v - S k) k^T;  o = scale S q
"""

import torch
import torch.nn.functional as F


def _per_output_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[T, Hx, D] -> [T, heads, D]: output head i reads head i // (heads // Hx)."""
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def gated_delta_net(
    q,
    k,
    v,
    g,
    beta,
    cu_seqlens,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    safe_gate=False,
    a_log=None,
    dt_bias=None,
):
    """The recurrence of `deltaworks.ops.gated_delta_net`, its most used options, by autograd.

    Args:
        q [T, H, K], k [T, HK, K], v [T, HV, V]; g, beta [T, HO], HO = max(H, HV).
        cu_seqlens: [N+1] int32 or int64.
        initial_state: [N, HO, V, K] or None (zeros).
        a_log, dt_bias: [HO], with safe_gate.

    Returns:
        o [T, HO, V] in q's dtype, and the final state [N, HO, V, K] (fp32, or fp64 with fp64
        inputs) or None.
    """
    heads, key_dim, value_dim = max(q.shape[1], v.shape[1]), q.shape[2], v.shape[2]
    io_dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k, v, g, beta = (x.to(wide) for x in (q, k, v, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = _normalised(q), _normalised(k)
    q, k, v = (_per_output_head(x, heads) for x in (q, k, v))
    if use_beta_sigmoid_in_kernel:
        beta = torch.sigmoid(beta) * (2 if allow_neg_eigval else 1)
    if safe_gate:
        amplitude = 1.0 if a_log is None else a_log.to(wide).exp()
        g = -amplitude * F.softplus(g if dt_bias is None else g + dt_bias)
    q = q * (key_dim**-0.5 if scale is None else scale)
    decay = g.exp()

    bounds = cu_seqlens.tolist()
    outputs = []
    final_state = q.new_empty(len(bounds) - 1, heads, value_dim, key_dim)
    for n, (first, last) in enumerate(zip(bounds, bounds[1:], strict=False)):
        if initial_state is None:
            state = q.new_zeros(heads, value_dim, key_dim)
        else:
            state = initial_state[n].to(wide)
        for t in range(first, last):
            state = decay[t][:, None, None] * state
            read = (state @ k[t].unsqueeze(-1)).squeeze(-1)
            write = beta[t][:, None] * (v[t] - read)
            state = state + write.unsqueeze(-1) * k[t].unsqueeze(-2)
            outputs.append((state @ q[t].unsqueeze(-1)).squeeze(-1))
        final_state[n] = state
    outputs += [q.new_zeros(heads, value_dim)] * (q.shape[0] - len(outputs))
    o = torch.stack(outputs) if outputs else q.new_zeros(0, heads, value_dim)
    return o.to(io_dtype), final_state if output_final_state else None
