"""From a public operator's arguments to the dispatcher: kinds of values, autograd or not.

Judged here is only what the C library cannot see: that an argument is a tensor, a number, a dtype
or a string at all, and torch's transforms.
"""

from __future__ import annotations

import numbers

import torch
from torch.autograd import forward_ad

from deltaworks import _library as dw
from deltaworks.errors import NOT_SUPPORTED, TYPE, from_status
from deltaworks.ops import _graph
from deltaworks.ops._autograd import LinearAttention, run_forward
from deltaworks.ops._fake import dtype_number


def call(
    operation,
    inputs,
    flags,
    scale,
    gate_domain,
    plan_name,
    checkpoint_every_n_tokens,
    checkpoint_dtype,
):
    """Runs the forward of `operation`; returns (o, final_state or None).

    inputs: the tensors or None, in the order of operation.inputs; flags: bits of _library. The
    other arguments are those of the public operators.
    """
    present, ports, differentiable, problem = [], 0, False, None
    for tensor, (port, name) in zip(inputs, operation.inputs, strict=True):
        if isinstance(tensor, torch.Tensor):
            present.append(tensor)
            ports |= 1 << port
            differentiable = differentiable or tensor.requires_grad
        elif tensor is not None or operation.required >> port & 1:
            problem = problem or _kind(name, "a Tensor", tensor)

    if scale is None:
        scale = 0.0
    else:
        flags |= dw.HAS_SCALE
        if not isinstance(scale, (float, int)):
            if not isinstance(scale, numbers.Real):
                problem = problem or _kind("scale", "a number or None", scale)
            else:
                scale = float(scale)
    if plan_name is None:
        plan_name = ""
    elif not isinstance(plan_name, str):
        problem = problem or _kind("plan_name", "a str or None", plan_name)
    if not isinstance(gate_domain, str):
        problem = problem or _kind("gate_domain", "a str", gate_domain)
    if not isinstance(checkpoint_every_n_tokens, int):
        problem = problem or _kind("checkpoint_every_n_tokens", "an int", checkpoint_every_n_tokens)
    if checkpoint_dtype is None:
        checkpoint_dtype = 0
    elif isinstance(checkpoint_dtype, torch.dtype):
        flags |= dw.HAS_CHECKPOINT_DTYPE
        checkpoint_dtype = dtype_number(checkpoint_dtype)
    else:
        problem = problem or _kind("checkpoint_dtype", "a dtype or None", checkpoint_dtype)

    problem = problem or _judge_transforms(present)
    if problem is not None:
        return _fail(operation, *problem, flags)

    differentiable = differentiable and torch.is_grad_enabled()
    if differentiable:
        flags |= dw.REQUIRES_GRADIENT
    options = (
        operation.number,
        flags,
        scale,
        gate_domain,
        plan_name,
        checkpoint_every_n_tokens,
        checkpoint_dtype,
    )
    if differentiable:
        outputs = LinearAttention.apply(options, ports, *present)
    else:
        outputs = run_forward(options, present, ports)
    return outputs[0], outputs[1] if flags & dw.OUTPUT_FINAL_STATE else None


def _kind(name, expected, got):
    kind = "Tensor" if isinstance(got, torch.Tensor) else type(got).__name__
    return TYPE, f"{name} must be {expected}, got {kind}"


def _transforms_active():
    return torch._C._are_functorch_transforms_active()


# A traced graph holds the answer of the time when it was traced, inside the same transform.
_transforms_active._dynamo_marked_constant = True


def _judge_transforms(tensors):
    """torch.func's transforms and forward-mode AD would pass the operator by."""
    if _transforms_active():
        return (
            NOT_SUPPORTED,
            "torch.func transforms (vmap, grad, jvp, ...) are not supported",
        )
    if forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
    ):
        return NOT_SUPPORTED, "forward-mode automatic differentiation is not supported"
    return None


def _fail(operation, status, text, flags):
    text = f"{operation.name}: {text}"
    if not torch.compiler.is_compiling():
        raise from_status(status, text)
    # The graph goes on with some tensor and raises when it runs.
    outputs = _graph.graph_failure(status, text, torch.empty(0))
    return outputs, outputs if flags & dw.OUTPUT_FINAL_STATE else None
