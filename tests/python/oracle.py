"""The definition of every operation as a token loop in plain torch, independent of the library.

Per (sequence, head), with a state S stored [V, K], a token decays it and then steps n times:

    S <- S D;  n times: u = r (w - S e), S <- S + u k^T;  o = scale S q

with a decay D, an erase row e, a write row w and a factor r (e and w of a scalar beta are beta k
and beta v, so that r is beta). In float64 it is the reference of every accuracy test, in float32
the "plain token loop" whose error sets the fp32 bounds. Gradients come from torch's autograd;
what is rounded on the way counts as not rounded there.
"""

from __future__ import annotations

import contextlib

import torch

DIFFERENTIABLE = ("q", "k", "v", "g", "beta", "a_log", "dt_bias", "initial_state")


def run(inputs, options, d_o=None, d_final=None, dtype=torch.float64, op="gated_delta_net"):
    """Results by name: "o", "final_state" and, under an input's name, that input's gradient.

    `inputs` maps argument names (cu_seqlens included) to tensors of any dtype; they are widened to
    `dtype` exactly. `d_o` and `d_final` weigh the outputs; without both, no gradient is computed.
    """
    with one_thread():
        return weighed_run(inputs, options, d_o, d_final, dtype, op)


def of(problem, dtype=torch.float64):
    """run() on a problem of cases.py, with its flows."""
    flows = (problem.d_o, problem.d_final)
    return run(problem.inputs, problem.options, *flows, dtype, problem.op.name)


@contextlib.contextmanager
def one_thread():
    """The loop's steps are small: a second thread costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def weighed_run(inputs, options, d_o, d_final, dtype, op):
    given = {name: x for name, x in inputs.items() if x is not None}
    cu_seqlens = given.pop("cu_seqlens")
    dtypes = {name: x.dtype for name, x in given.items()}
    leaves = {name: x.detach().to(dtype) for name, x in given.items()}
    wants_gradient = d_o is not None or d_final is not None
    for leaf in leaves.values():
        leaf.requires_grad_(wants_gradient)
    if op == "mamba2":
        o, final_state = mamba2(**leaves, cu_seqlens=cu_seqlens, **options)
    else:
        o, final_state = delta_rule(**leaves, cu_seqlens=cu_seqlens, dtypes=dtypes, **options)
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


def delta_rule(
    q,
    k,
    v,
    g,
    beta,
    cu_seqlens,
    dtypes,
    w=None,
    scale=None,
    initial_state=None,
    use_qk_l2norm_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    beta_guard=False,
    safe_gate=False,
    gate_domain="log",
    gate_lower_bound=None,
    gate="sigmoid",
    a_log=None,
    dt_bias=None,
    num_householder=1,
):
    """(o [T, HO, V], final_state [N, HO, V, K]) in the dtype of q, differentiable.

    A `g` of rank 3 is one by key channel, a `w` makes beta one by key channel and w one by value
    channel. `dtypes` are those of the caller's tensors: what is rounded is rounded to them.
    """
    tokens, _, key_dim = q.shape
    heads = max(q.shape[1], v.shape[-2])
    q = q[:, None]
    k, v = (x.reshape(tokens, num_householder, *x.shape[-2:]) for x in (k, v))
    beta = beta.reshape(tokens, num_householder, heads, 1 if w is None else key_dim)

    if use_qk_l2norm_in_kernel:
        q, k = l2norm(q), l2norm(k)
    q, k, v = (per_output_head(x, heads) for x in (q, k, v))
    log_decay = log_gate(g, safe_gate, gate_domain, gate_lower_bound, gate, a_log, dt_bias)
    log_decay = log_decay.reshape(tokens, heads, -1 if tokens * heads else 1)
    if use_beta_sigmoid_in_kernel:
        beta = round_through(torch.sigmoid(beta), dtypes["beta"])
        beta = beta * (2.0 if allow_neg_eigval else 1.0)
    if beta_guard:
        beta = guarded(beta, k, log_decay[:, None], dtypes["q"])
    if w is None:
        erase, write, factor = k, v, beta
    else:
        erase, write, factor = beta * k, w[:, None] * v, None
    if scale is None:
        scale = key_dim**-0.5
    o, states = packed(q, k, erase, write, factor, log_decay.exp(), initial_state, cu_seqlens)
    return scale * o, states


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
    dt_softplus=True,
    dt_min=0.0,
    dt_max=None,
):
    """(y [T, H, P], final_state [N, H, P, N_state]) in the dtype of x, differentiable."""
    heads = x.shape[1]
    step = dt if dt_bias is None else dt + dt_bias
    if dt_softplus:
        step = softplus(step)
    step = step.clamp(dt_min, dt_max)  # its gradient passes at equality
    C, B = (per_output_head(rows[:, None], heads) for rows in (C, B))
    decay = (A * step).exp()[..., None]
    factor = step[:, None, :, None]
    y, states = packed(C, B, None, x[:, None], factor, decay, initial_state, cu_seqlens)
    if D is not None:
        skip = (D[:, None] if D.dim() == 1 else D) * x
        used = torch.arange(len(x)) < cu_seqlens[-1]  # rows past the end stay zero
        y = y + torch.where(used[:, None, None], skip, 0)
    if z is not None:
        y = y * (z * torch.sigmoid(z))
    return y, states


def packed(q, k, erase, write, factor, decay, initial_state, cu_seqlens):
    """The recurrence on packed sequences: rows [T, steps, HO, ...], decays [T, HO, 1 or K]."""
    tokens, _, heads, key_dim = q.shape
    value_dim = write.shape[-1]
    offsets = cu_seqlens.tolist()
    o = q.new_zeros(tokens, heads, value_dim)
    states = [
        q.new_zeros(heads, value_dim, key_dim) if initial_state is None else initial_state[n]
        for n in range(len(offsets) - 1)
    ]
    for length, sequences in by_length(offsets).items():
        rows = torch.cat([torch.arange(offsets[n], offsets[n] + length) for n in sequences])
        batch = [
            None if x is None else x[rows].unflatten(0, (len(sequences), length))
            for x in (q, k, erase, write, factor, decay)
        ]
        out, final = token_loop(*batch, torch.stack([states[n] for n in sequences]))
        o = o.index_copy(0, rows, out.flatten(0, 1))
        for n, state in zip(sequences, final, strict=True):
            states[n] = state
    if not states:
        return o, q.new_zeros(0, heads, value_dim, key_dim)
    return o, torch.stack(states)


def token_loop(q, k, erase, write, factor, decay, state):
    """B sequences of one length: rows [B, L, steps, H, ...], state [B, H, V, K]. No erase row
    counts as zeros, no factor as one."""
    out = []
    steps = k.shape[2]
    none = (None,) * k.shape[1] * steps
    k, erase, write, factor = (
        none if x is None else x.flatten(1, 2).unbind(1) for x in (k, erase, write, factor)
    )
    for t, (q_t, decay_t) in enumerate(zip(q[:, :, 0].unbind(1), decay.unbind(1), strict=True)):
        state = decay_t[..., None, :] * state
        for row in range(t * steps, (t + 1) * steps):
            u = write[row]
            if erase[row] is not None:
                u = u - (state @ erase[row][..., None])[..., 0]
            if factor[row] is not None:
                u = factor[row] * u
            state = state + u[..., :, None] * k[row][..., None, :]
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
    """Head i of `heads` reads head i // (heads / x's heads); heads are the axis before the last."""
    return x.repeat_interleave(heads // x.shape[-2], -2) if x.shape[-2] else x


def l2norm(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def log_gate(g, safe_gate, gate_domain, gate_lower_bound, gate, a_log, dt_bias):
    if gate_domain == "linear":
        return torch.log(g + 1e-10)
    if not safe_gate:
        return g
    x = g if dt_bias is None else g + dt_bias
    amplitude = x.new_ones(x.shape[1]) if a_log is None else torch.exp(a_log)
    if x.dim() == 2:
        return -amplitude * softplus(x)
    if gate == "softplus":
        return -amplitude[:, None] * softplus(x)
    lower_bound = -5.0 if gate_lower_bound is None else gate_lower_bound
    return lower_bound * torch.sigmoid(amplitude[:, None] * x)


def softplus(x):
    return torch.where(x >= 20, x, torch.log1p(torch.exp(x.clamp(max=20))))


def round_through(x, dtype):
    """x rounded to `dtype`; the identity in the gradient."""
    return x + (rounded(x.detach(), dtype) - x.detach())


def rounded(x, dtype):
    return x.to(dtype).to(x.dtype)


@torch.no_grad()
def guarded_row(beta, k, log_decay, io_dtype):
    """beta by key channel [..., K], drawn towards its mean where a step could expand the state."""
    weight = k * k
    n = weight.sum(-1, keepdim=True)
    c2 = torch.exp(-2 * log_decay.amax(-1, keepdim=True))

    def measure(beta):
        a = (beta * weight).sum(-1, keepdim=True)
        nu = (beta * beta * weight).sum(-1, keepdim=True)
        r2 = (n * nu - a * a).clamp(min=0)
        crit = ((c2 - 1) * (1 - (1 - a) ** 2 / c2)).clamp(min=0)
        return a, nu, r2, crit

    a, _, r2, crit = measure(beta)
    mean = a / n.clamp(min=1e-20)
    eta = ((1 - 1 / 32) * crit / r2.clamp(min=1e-30)).sqrt().clamp(0, 1)
    unsafe = (n > 1e-20) & (r2 > crit)
    row = rounded(torch.where(unsafe, mean + eta * (beta - mean), beta), io_dtype)
    a, nu, r2, crit = measure(row)
    eps = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}.get(io_dtype, 0.0)
    still = (n > 1e-20) & (r2 > crit + 4 * eps * (n * nu + a * a))
    constant = rounded(a / n.clamp(min=1e-20), io_dtype)
    return torch.where(still, constant, row)


def guarded(beta, k, log_decay, io_dtype):
    """guarded_row(); the identity in the gradient."""
    return beta + (guarded_row(beta, k, log_decay, io_dtype) - beta.detach())
