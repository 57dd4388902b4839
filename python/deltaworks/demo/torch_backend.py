"""The operators as one plain PyTorch token loop: the same calls, readable, slow.

State S [V, K] per sequence and head. For each token, with its decay D and for each of its sub-steps
with an erase row e and a write row w:
    S = S D;  S = S + (w - S e) k^T;  o = scale S q     (read after the last sub-step)
Every function takes what `deltaworks.nn` hands to the operator of its name in `deltaworks.ops`.
"""

import torch
import torch.nn.functional as F


def _per_output_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[..., Hx, D] -> [..., heads, D]: output head i reads head i // (heads // Hx)."""
    return x.repeat_interleave(heads // x.shape[-2], dim=-2)


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _wide(*tensors):
    """The tensors in fp32, or fp64 if they are that; None stays."""
    return [
        None if x is None else x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors
    ]


def _loop(q, k, erase, write, decay, cu_seqlens, initial_state, dtype):
    """The recurrence: o [T, HO, V] in `dtype` and the final states [N, HO, V, K].

    q [T, HO, K] is scaled; k, erase [T, n, HO, K], write [T, n, HO, V]; erase may be None (zeros);
    decay [T, HO, K or 1].
    """
    heads, key_dim, value_dim = q.shape[1], q.shape[2], write.shape[3]
    bounds = cu_seqlens.tolist()
    outputs, final = [], q.new_empty(len(bounds) - 1, heads, value_dim, key_dim)
    for n, (first, last) in enumerate(zip(bounds, bounds[1:], strict=False)):
        if initial_state is None:
            state = q.new_zeros(heads, value_dim, key_dim)
        else:
            state = initial_state[n].to(q.dtype)
        for t in range(first, last):
            state = decay[t][:, None] * state
            for s in range(k.shape[1]):
                row = write[t, s]
                if erase is not None:
                    row = row - (state @ erase[t, s].unsqueeze(-1)).squeeze(-1)
                state = state + row.unsqueeze(-1) * k[t, s].unsqueeze(-2)
            outputs.append((state @ q[t].unsqueeze(-1)).squeeze(-1))
        final[n] = state
    outputs += [q.new_zeros(heads, value_dim)] * (q.shape[0] - len(outputs))
    o = torch.stack(outputs) if outputs else q.new_zeros(0, heads, value_dim)
    return o.to(dtype), final


def _log_decay(g, safe_gate, gate, gate_lower_bound, a_log, dt_bias):
    """The decay's logarithm; a_log [HO] belongs to g's second axis."""
    if not safe_gate:
        return g
    amplitude = 1.0 if a_log is None else a_log.exp().view(-1, *[1] * (g.ndim - 2))
    biased = g if dt_bias is None else g + dt_bias
    if gate == "softplus":
        return -amplitude * F.softplus(biased)
    bound = -5.0 if gate_lower_bound is None else gate_lower_bound
    return bound * torch.sigmoid(amplitude * biased)


def _delta(
    q,
    k,
    v,
    g,
    beta,
    cu_seqlens,
    w=None,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    safe_gate=False,
    gate_lower_bound=None,
    a_log=None,
    dt_bias=None,
    gate="softplus",
):
    """The delta rules: k, v, beta [T, n, ...] and w alike; g [T, HO, K] or [T, HO]."""
    dtype, heads = q.dtype, max(q.shape[-2], v.shape[-2])
    q, k, v, g, beta, w, a_log, dt_bias = _wide(q, k, v, g, beta, w, a_log, dt_bias)
    if use_qk_l2norm_in_kernel:
        q, k = _normalised(q), _normalised(k)
    q, k, v = (_per_output_head(x, heads) for x in (q, k, v))
    if use_beta_sigmoid_in_kernel:
        beta = torch.sigmoid(beta) * (2 if allow_neg_eigval else 1)
    decay = _log_decay(g, safe_gate, gate, gate_lower_bound, a_log, dt_bias).exp()
    if decay.ndim == 2:
        decay = decay[..., None]
    if w is None:
        beta = w = beta[..., None]
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    o, final_state = _loop(q, k, beta * k, w * v, decay, cu_seqlens, initial_state, dtype)
    return o, final_state if output_final_state else None


def gated_delta_net(q, k, v, g, beta, cu_seqlens, **options):
    """One step a token; g, beta [T, HO]."""
    return _delta(q, k[:, None], v[:, None], g, beta[:, None], cu_seqlens, **options)


def kimi_delta_attention(q, k, v, g, beta, cu_seqlens, *, gate="sigmoid", **options):
    """g [T, HO, K], beta [T, HO]; dt_bias [HO, K]."""
    rows = (q, k[:, None], v[:, None], g, beta[:, None])
    return _delta(*rows, cu_seqlens, gate=gate, **options)


def gated_delta_net_v2(q, k, v, g, beta, w, cu_seqlens, *, gate="sigmoid", **options):
    """g, beta [T, HO, K], w [T, HO, V]; dt_bias [HO, K]."""
    rows = (q, k[:, None], v[:, None], g, beta[:, None])
    return _delta(*rows, cu_seqlens, w[:, None], gate=gate, **options)


def gated_delta_product(q, k, v, g, beta, cu_seqlens, num_householder, **options):
    """n = num_householder; k [T, n, HK, K], v [T, n, HV, V], beta [T, n, HO], or [T * n, ...]."""
    steps = (-1, num_householder)
    k, v = (x if x.ndim == 4 else x.unflatten(0, steps) for x in (k, v))
    beta = beta if beta.ndim == 3 else beta.unflatten(0, steps)
    return _delta(q, k, v, g, beta, cu_seqlens, **options)


def mamba2(
    x,
    dt,
    A,
    B,
    C,
    cu_seqlens,
    D=None,
    dt_bias=None,
    z=None,
    initial_state=None,
    output_final_state=False,
    dt_softplus=True,
    dt_min=0.0,
    dt_max=None,
):
    """x, z [T, H, P], dt [T, H], A, dt_bias [H], B, C [T, G, N_state], D [H] or [H, P]."""
    dtype, heads = x.dtype, x.shape[1]
    x, dt, A, B, C, D, dt_bias, z = _wide(x, dt, A, B, C, D, dt_bias, z)
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(dt_min, dt_max)
    B, C = (_per_output_head(rows, heads) for rows in (B, C))
    write = (dt[..., None] * x)[:, None]
    decay = (dt * A).exp()[..., None]
    y, final_state = _loop(C, B[:, None], None, write, decay, cu_seqlens, initial_state, x.dtype)
    if D is not None:
        y = y + (D if D.ndim == 2 else D[:, None]) * x
    if z is not None:
        y = y * F.silu(z)
    return y.to(dtype), final_state if output_final_state else None
