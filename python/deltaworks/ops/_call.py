"""From a public operator's arguments to the dispatcher: kinds of values, autograd or not.

Judged here is only what the C library cannot see: that an argument is a strided tensor or a dtype
at all, and torch's transforms; the arguments that are no tensors by _arguments.py.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from deltaworks import _arguments
from deltaworks import _library as dw
from deltaworks.errors import NOT_SUPPORTED, TYPE, from_status
from deltaworks.ops import _graph
from deltaworks.ops._autograd import LinearAttention, run_forward, run_in_place
from deltaworks.ops._fake import dtype_number

# Looked up in every call.
_Tensor, _strided = torch.Tensor, torch.strided
_OVERWRITE, _FINAL, _STATE = dw.OVERWRITE_INITIAL_STATE, dw.OUTPUT_FINAL_STATE, dw.INITIAL_STATE


def call(operation, inputs, options):
    """Runs the forward of `operation`; returns (o, final_state or None).

    inputs: the tensors or None, in the order of operation.arguments; options: the other arguments,
    in the order of operation.options.
    """
    present, ports, differentiable, problem = [], 0, False, None
    for tensor, (name, bit, required) in zip(inputs, operation.arguments, strict=True):
        if tensor is None:
            if required:
                problem = problem or _arguments.wrong_kind(name, "a Tensor", tensor, _kind)
        elif not isinstance(tensor, _Tensor):
            problem = problem or _arguments.wrong_kind(name, "a Tensor", tensor, _kind)
        elif tensor.layout is not _strided:
            problem = problem or (
                TYPE,
                f"{name} must be a strided tensor, got layout {tensor.layout}",
            )
        else:
            present.append(tensor)
            ports |= bit
            differentiable = differentiable or tensor.requires_grad

    wrong, flags, scalars = _arguments.judge(operation, options, _DOOR)
    problem = problem or wrong or _judge_transforms(present)
    if problem is not None:
        return _fail(operation, *problem, flags)

    differentiable = differentiable and torch.is_grad_enabled()
    if differentiable:
        flags |= dw.REQUIRES_GRADIENT
    options = (operation.number, flags, *scalars)
    in_place = flags & _OVERWRITE and ports >> _STATE & 1
    if differentiable:  # with overwrite_initial_state the library refuses it
        outputs = LinearAttention.apply(options, ports, *present)
    elif in_place:
        outputs = run_in_place(options, present, ports)
    else:
        outputs = run_forward(options, present, ports)
    if in_place:
        return outputs[0], inputs[operation.state]
    return outputs[0], outputs[1] if flags & _FINAL else None


def _kind(value):
    return "Tensor" if isinstance(value, _Tensor) else _arguments.kind(value)


def _dtype(value):
    return dtype_number(value) if isinstance(value, torch.dtype) else None


_DOOR = _arguments.Door(_kind, _dtype)


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
    states = flags & (_FINAL | _OVERWRITE)
    return outputs, outputs if states else None
