"""How close torch's results must be to the float64 reference; the numbers are those of
deltaworks.testing.bounds.

Three metrics per tensor: RMS(got - ref) / RMS(ref) over the tensor, the same for every (sequence,
head), and max |got - ref| against 30 x bound x RMS(ref), since one wrong token among thousands
hides in an RMS. fp32 bounds follow the error that a plain fp32 token loop makes on the same inputs.
"""

from __future__ import annotations

import math

import torch

from deltaworks.testing import bounds as tolerances

STATES = ("final_state", "initial_state")
GATE_PARAMETERS = ("a_log", "dt_bias", "A")
PARAMETERS = (*GATE_PARAMETERS, "D")  # sums over all tokens
GATES = ("g", "dt")
OUTPUTS = tolerances.OUTPUTS


def by_dtype(table):
    return {getattr(torch, name): value for name, value in table.items()}


FORWARD, BACKWARD = by_dtype(tolerances.FORWARD), by_dtype(tolerances.BACKWARD)
VANISHED = by_dtype(tolerances.VANISHED)
GATE_SUM, LOOP, MAXIMUM = tolerances.GATE_SUM, tolerances.LOOP, tolerances.MAXIMUM
NOT_TINY, GATE_FLOOR = tolerances.NOT_TINY, tolerances.GATE_FLOOR
SMALL_GROUP, SMALL_FLOOR = tolerances.SMALL_GROUP, tolerances.SMALL_FLOOR
UNDERFLOW = tolerances.UNDERFLOW


def bound(name, io_dtype, dtype):
    """The 16-bit or base bound of a tensor of `dtype` in a call whose q k v are `io_dtype`."""
    table = FORWARD if name in OUTPUTS else BACKWARD
    base = max(table[io_dtype], table[dtype])
    narrow = base > table[torch.float32]
    if narrow and (name in GATE_PARAMETERS or (name in GATES and dtype == torch.bfloat16)):
        return GATE_SUM
    return base


def assert_close(problem, got, reference, loop=None):
    """Every tensor of `got` within its bounds; `loop` is needed where some tensor is fp32."""
    for name, value in got.items():
        assert_tensor_close(problem, name, value, reference, loop)


def assert_tensor_close(problem, name, value, reference, loop):
    ref = reference[name]
    io_dtype = problem.inputs[roles(problem.inputs)[0]].dtype
    base = bound(name, io_dtype, value.dtype)
    follows_loop = base in (FORWARD[torch.float32], BACKWARD[torch.float32])
    assert value.shape == ref.shape, f"{name}: {tuple(value.shape)} != {tuple(ref.shape)}"
    assert value.isfinite().all(), f"{name}: not finite"
    if value.numel() == 0:
        return

    floor = VANISHED.get(value.dtype, UNDERFLOW)
    rows = gate_scale(problem, reference) if name in GATES else None
    scale = rms(ref) if rows is None else max(rms(ref), GATE_FLOOR * rms(rows))
    if name not in problem.may_vanish:
        assert scale > NOT_TINY, f"{name}: RMS of the reference is {scale:.1e}, nothing is tested"
    scale = max(scale, floor)

    error = value.double() - ref
    tensor_loop = rms(loop[name].double() - ref) / scale if follows_loop else 0.0
    allowed = max(base, LOOP * tensor_loop)
    assert rms(error) <= allowed * scale, (
        f"{name}: relative RMS error {rms(error) / scale:.2e} > {allowed:.2e}"
    )
    worst = error.abs().max().item()
    assert worst <= MAXIMUM * allowed * scale, (
        f"{name}: largest error {worst / scale:.2e} RMS(ref) > {MAXIMUM * allowed:.2e}"
    )
    if name in PARAMETERS:
        return

    # one number a (sequence, head)
    ref_rms, size = group_rms(problem, name, ref)
    error_rms, _ = group_rms(problem, name, error)
    if rows is not None:
        ref_rms = torch.maximum(ref_rms, GATE_FLOOR * group_rms(problem, name, rows)[0])
    small = size < SMALL_GROUP
    ref_rms[small] = ref_rms[small].clamp(min=SMALL_FLOOR * rms(ref))
    ref_rms = ref_rms.clamp(min=floor)
    limit = torch.full_like(ref_rms, base)
    if follows_loop:
        loop_error = group_rms(problem, name, loop[name].double() - ref)[0] / ref_rms
        loop_error = loop_error.clamp(min=tensor_loop)
        loop_error[small] = loop_error.max()
        limit = torch.maximum(limit, LOOP * loop_error)
    over = error_rms / ref_rms / limit
    assert over.numel() == 0 or over.max() <= 1, (
        f"{name}: (sequence, head) {divmod(int(over.argmax()), over.shape[1])} has relative RMS "
        f"error {(error_rms / ref_rms).flatten()[over.argmax()]:.2e}, {over.max():.2f} x its bound"
    )


def rms(x):
    return x.double().square().mean().sqrt().item()


def group_rms(problem, name, x):
    """RMS and element count of each (sequence that is not empty, head of x): two [n, heads]."""
    x = x.double()
    if name in STATES:
        means = x.square().flatten(2).mean(2)
        return means.sqrt(), torch.full_like(means, x[0, 0].numel())
    offsets = problem.inputs["cu_seqlens"].tolist()
    spans = [(a, b) for a, b in zip(offsets, offsets[1:], strict=False) if b > a]
    if not spans:
        return x.new_zeros(0, x.shape[1]), x.new_zeros(0, x.shape[1])
    x = by_token(problem, name, x)
    means = torch.stack([x[a:b].square().mean((0, 2)) for a, b in spans])
    sizes = torch.tensor([(b - a) * x.shape[2] for a, b in spans]).double()
    return means.sqrt(), sizes[:, None].expand_as(means)


def roles(inputs):
    """Names of the inputs that act as q, k and g in the recurrence."""
    return ("C", "B", "dt") if "C" in inputs else ("q", "k", "g")


def by_token(problem, name, x):
    """[T, heads, numbers of a token and head] of an input or output with rows by token; sub-steps
    count as one token's."""
    q, k = (problem.inputs[role] for role in roles(problem.inputs)[:2])
    token_major = k.dim() == 4
    steps = k.shape[1] if token_major else len(k) // max(len(q), 1)
    if steps > 1 or token_major:
        if name in ("k", "v"):
            x = x.reshape(len(q), steps, *x.shape[-2:]).transpose(1, 2)
        elif name == "beta":
            x = x.reshape(len(q), steps, x.shape[-1]).transpose(1, 2)
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]))


def gate_scale(problem, reference):
    """[T, HO]: sum_d |q_d dq_d| + |k_d dk_d|, whose difference a gate gradient is."""
    q, k, g = roles(problem.inputs)
    heads, total = problem.inputs[g].shape[1], 0
    for name in (q, k):
        row = (problem.inputs[name].double() * reference[name]).abs()
        row = by_token(problem, name, row).sum(-1)
        total = total + row.repeat_interleave(heads // row.shape[1], 1)
    return total
