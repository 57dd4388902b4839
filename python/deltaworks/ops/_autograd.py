"""The operators under autograd: first derivatives of every tensor input."""

from __future__ import annotations

import torch

from deltaworks import _hooks
from deltaworks import _library as dw
from deltaworks.errors import NotSupportedError, translated
from deltaworks.ops import _fake, _graph
from deltaworks.ops._fake import OPTIONS
from deltaworks.ops._operation import OPERATIONS

_is_compiling = torch.compiler.is_compiling  # looked up in every call


def run_forward(options, tensors, ports):
    """The forward without autograd: its outputs, in port order.

    options: (op, flags, *scalars), see _arguments.SCALARS; tensors: those whose bits are set in
    `ports`, in port order.
    """
    if _is_compiling():
        return _graph.graph_forward(*options[:OPTIONS], tensors, ports, *options[OPTIONS:])
    if _hooks.call_hook is not None and _fake.have_data(tensors):
        _hooks.call_hook(*_fake.describe(dw.FORWARD, options, tensors, ports))
    try:
        return _graph.forward(*options[:OPTIONS], tensors, ports, *options[OPTIONS:])
    except RuntimeError as error:
        raise translated(error) from None


def run_in_place(options, tensors, ports):
    """As run_forward, where the final states replace initial_state, which is among the tensors."""
    at = _place(dw.INITIAL_STATE, ports)
    others, state = tensors[:at] + tensors[at + 1 :], tensors[at]
    ports_of_others = ports & ~(1 << dw.INITIAL_STATE)
    arguments = (*options[:OPTIONS], others, ports_of_others, state, *options[OPTIONS:])
    if _is_compiling():
        if any(
            step == 0 and size > 1 for step, size in zip(state.stride(), state.shape, strict=True)
        ):
            # The library refuses it when the graph runs; torch would while it makes the graph.
            return _graph.graph_forward(*options[:OPTIONS], tensors, ports, *options[OPTIONS:])
        return [_graph.graph_forward_in_place(*arguments)]
    if _hooks.call_hook is not None and _fake.have_data(tensors):
        _hooks.call_hook(*_fake.describe(dw.FORWARD, options, tensors, ports))
    try:
        return [_graph.overwrite(*arguments)]
    except RuntimeError as error:
        raise translated(error) from None


def _place(port, ports):
    """Of a port among those whose bits are set."""
    return (ports & (1 << port) - 1).bit_count()


def run_backward(options, tensors, ports, wanted):
    """The gradients whose bits are set in `wanted`, in port order."""
    arguments = (*options[:OPTIONS], tensors, ports, wanted, *options[OPTIONS:])
    if _is_compiling():
        return _graph.graph_backward(*arguments)
    if _hooks.call_hook is not None and _fake.have_data(tensors):
        _hooks.call_hook(*_fake.describe(dw.BACKWARD, options, tensors, ports, wanted))
    try:
        return _graph.backward(*arguments)
    except RuntimeError as error:
        raise translated(error) from None


class LinearAttention(torch.autograd.Function):
    """apply(options, ports, *tensors) -> outputs, as run_forward."""

    @staticmethod
    def forward(ctx, options, ports, *tensors):
        if not _is_compiling():  # an output that is not used has no gradient at all
            ctx.set_materialize_grads(False)
        ctx.options = options
        ctx.ports = ports
        ctx.save_for_backward(*tensors)
        return tuple(run_forward(options, list(tensors), ports))

    @staticmethod
    def backward(ctx, *flows):
        options, ports = ctx.options, ctx.ports
        operation = OPERATIONS[options[0]]
        ports_of_gradients = [  # for each saved tensor
            gradient
            for port, gradient in zip(operation.inputs, operation.gradients, strict=True)
            if ports >> port & 1
        ]
        needed = ctx.needs_input_grad[2:]
        wanted = sum(
            1 << port for port, need in zip(ports_of_gradients, needed, strict=True) if need
        )
        tensors = list(ctx.saved_tensors)
        for (_, port), flow in zip(operation.outputs, flows, strict=False):
            if flow is not None:
                tensors.insert(_place(port, ports), flow)
                ports |= 1 << port
        if all(flow is None for flow in flows):  # zero, which autograd writes None
            return (None,) * (2 + len(needed))
        options = (options[0], options[1] & ~dw.REQUIRES_GRADIENT, *options[2:])
        if torch.is_grad_enabled() and not _is_compiling():
            gradients = FirstDerivative.apply(options, ports, wanted, *tensors)
        else:
            gradients = run_backward(options, tensors, ports, wanted)
        found = iter(gradients)
        return (None, None, *[next(found) if need else None for need in needed])


class FirstDerivative(torch.autograd.Function):
    """The backward with create_graph=True: its result can be used, but not differentiated."""

    @staticmethod
    def forward(ctx, options, ports, wanted, *tensors):
        ctx.name = OPERATIONS[options[0]].name
        return tuple(run_backward(options, list(tensors), ports, wanted))

    @staticmethod
    def backward(ctx, *_):
        raise NotSupportedError(f"{ctx.name}: second derivatives are not supported")
