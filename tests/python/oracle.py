"""The definition of gated_delta_net as a token loop in plain torch, independent of the library.

Per (sequence, head), with a state S stored [V, K]:  S' = exp(g) S,  u = beta (v - S' k),
S = S' + u k^T,  o = scale S q.  In float64 it is the reference of every accuracy test, in float32
the "plain token loop" whose error sets the fp32 bounds. Gradients come from torch's autograd.
"""

from __future__ import annotations

import contextlib

import torch

DIFFERENTIABLE = ("q", "k", "v", "g", "beta", "a_log", "dt_bias", "initial_state")


def run(inputs, options, d_o=None, d_final=None, dtype=torch.float64):
    """Results by name: "o", "final_state" and, under an input's name, that input's gradient.

    `inputs` maps argument names (cu_seqlens included) to tensors of any dtype; they are widened to
    `dtype` exactly. `d_o` and `d_final` weigh the outputs; without both, no gradient is computed.
    """
    with one_thread():
        return weighed_run(inputs, options, d_o, d_final, dtype)


@contextlib.contextmanager
def one_thread():
    """The loop's steps are small: a second thread costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def weighed_run(inputs, options, d_o, d_final, dtype):
    leaves = {
        name: inputs[name].detach().to(dtype)
        for name in DIFFERENTIABLE
        if inputs.get(name) is not None
    }
    wants_gradient = d_o is not None or d_final is not None
    for leaf in leaves.values():
        leaf.requires_grad_(wants_gradient)
    o, final_state = gated_delta_net(
        **leaves,
        cu_seqlens=inputs["cu_seqlens"],
        beta_dtype=inputs["beta"].dtype,
        **options,
    )
    results = {"o": o.detach(), "final_state": final_state.detach()}
    if wants_gradient:
        weighed = [(o, d_o), (final_state, d_final)]
        loss = sum(((x * d.to(dtype)).sum() for x, d in weighed if d is not None), o.new_zeros(()))
        grads = [None] * len(leaves)
        if loss.requires_grad:  # not without a token and a state
            grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
            results[name] = torch.zeros_like(leaf) if grad is None else grad
    return results


def gated_delta_net(
    q,
    k,
    v,
    g,
    beta,
    cu_seqlens,
    beta_dtype,
    scale=None,
    initial_state=None,
    use_qk_l2norm_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    safe_gate=False,
    gate_domain="log",
    a_log=None,
    dt_bias=None,
):
    """(o [T, HO, V], final_state [N, HO, V, K]) in the dtype of q, differentiable.

    `beta_dtype` is the dtype that the caller's beta has: a sigmoid is rounded to it.
    """
    tokens, _, key_dim = q.shape
    value_dim = v.shape[2]
    heads = max(q.shape[1], v.shape[1])
    offsets = cu_seqlens.tolist()

    if use_qk_l2norm_in_kernel:
        q, k = l2norm(q), l2norm(k)
    q, k, v = (per_output_head(x, heads) for x in (q, k, v))
    decay = torch.exp(log_gate(g, safe_gate, gate_domain, a_log, dt_bias))
    if use_beta_sigmoid_in_kernel:
        beta = round_through(torch.sigmoid(beta), beta_dtype) * (2.0 if allow_neg_eigval else 1.0)
    if scale is None:
        scale = key_dim**-0.5

    o = q.new_zeros(tokens, heads, value_dim)
    states = [
        q.new_zeros(heads, value_dim, key_dim) if initial_state is None else initial_state[n]
        for n in range(len(offsets) - 1)
    ]
    for length, sequences in by_length(offsets).items():
        rows = torch.cat([torch.arange(offsets[n], offsets[n] + length) for n in sequences])
        batch = [x[rows].unflatten(0, (len(sequences), length)) for x in (q, k, v, decay, beta)]
        out, final = token_loop(*batch, torch.stack([states[n] for n in sequences]))
        o = o.index_copy(0, rows, scale * out.flatten(0, 1))
        for n, state in zip(sequences, final, strict=True):
            states[n] = state
    if not states:
        return o, q.new_zeros(0, heads, value_dim, key_dim)
    return o, torch.stack(states)


def token_loop(q, k, v, decay, beta, state):
    """The recurrence on B sequences of one length: rows [B, L, H, ...], state [B, H, V, K]."""
    out = []
    for q_t, k_t, v_t, decay_t, beta_t in zip(
        *(x.unbind(1) for x in (q, k, v, decay, beta)), strict=True
    ):
        state = decay_t[..., None, None] * state
        u = beta_t[..., None] * (v_t - (state @ k_t[..., None])[..., 0])
        state = state + u[..., :, None] * k_t[..., None, :]
        out.append((state @ q_t[..., None])[..., 0])
    return torch.stack(out, 1), state


def by_length(offsets):
    """Numbers of the sequences that are not empty, by their length."""
    groups = {}
    for n, (start, end) in enumerate(zip(offsets, offsets[1:], strict=False)):
        if end > start:
            groups.setdefault(end - start, []).append(n)
    return groups


def per_output_head(x, heads):
    """Head i of `heads` reads head i // (heads / x's heads)."""
    return x.repeat_interleave(heads // x.shape[1], 1) if x.shape[1] else x


def l2norm(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def log_gate(g, safe_gate, gate_domain, a_log, dt_bias):
    if gate_domain == "linear":
        return torch.log(g + 1e-10)
    if not safe_gate:
        return g
    amplitude = 1.0 if a_log is None else torch.exp(a_log)
    return -amplitude * softplus(g if dt_bias is None else g + dt_bias)


def softplus(x):
    return torch.where(x >= 20, x, torch.log1p(torch.exp(x.clamp(max=20))))


def round_through(x, dtype):
    """x rounded to `dtype`; the identity in the gradient."""
    return x + (x.detach().to(dtype).to(x.dtype) - x.detach())
