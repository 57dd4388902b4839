"""The operators on tensors without data: shapes, dtypes and strides of the outputs, and the C
library's own verdict on the call.

Sizes may be symbolic. The verdict is then asked for the sizes' example values, which installs no
guard; where a size has none, the operator judges when it runs.
"""

from __future__ import annotations

import torch

from deltaworks import _arguments, _operations
from deltaworks import _library as dw
from deltaworks.ops._operation import OPERATIONS

_DTYPES = {
    torch.float32: dw.FLOAT32,
    torch.bfloat16: dw.BFLOAT16,
    torch.float16: dw.FLOAT16,
    torch.float64: dw.FLOAT64,
    torch.int32: dw.INT32,
    torch.int64: dw.INT64,
    torch.bool: dw.BOOL,
    torch.uint8: dw.UINT8,
    torch.int8: dw.INT8,
    torch.int16: dw.INT16,
    torch.complex64: dw.COMPLEX64,
}
_DEVICES = {"cpu": dw.CPU, "cuda": dw.CUDA}


OPTIONS = 2 + _arguments.COMMON  # that the dispatcher operators take before the tensors


class _NoExample(Exception):
    """A symbolic size that has no example value."""


def tracing() -> bool:
    """Whether a graph is being compiled. An exception of a fake kernel would then reach the user as
    the compiler's; so an invalid call is traced with plausible outputs and raises when it runs."""
    return torch._guards.TracingContext.try_get() is not None


def forward(*arguments):
    """Outputs of deltaworks::forward, without data."""
    options, inputs, _ = _taken(arguments, 0)
    return _forward(options, inputs)


def forward_in_place(*arguments):
    """The output of deltaworks::forward_in_place, without data."""
    options, inputs, (initial_state,) = _taken(arguments, 1)
    (o,) = _forward(options, {**inputs, dw.INITIAL_STATE: initial_state})
    return o


def _forward(options, inputs):
    outputs = _forward_outputs(options[1], inputs)
    _judge(dw.FORWARD, options, inputs, outputs)
    like = inputs[dw.Q]
    return [like.new_empty(shape, dtype=dtype) for shape, dtype in outputs.values()]


def backward(*arguments):
    """Outputs of deltaworks::backward, without data: each like its input, but contiguous."""
    options, inputs, (wanted,) = _taken(arguments, 1)
    primals = _primals(options[0], inputs, wanted)
    outputs = {port: (tuple(primal.shape), primal.dtype) for port, primal in primals.items()}
    _judge(dw.BACKWARD, options, inputs, outputs)
    return [primals[port].new_empty(shape) for port, (shape, _) in outputs.items()]


def have_data(tensors):
    """Whether a call on these tensors computes: not on meta tensors, nor under FakeTensorMode."""
    fake = torch._guards.detect_fake_mode(tensors) is not None
    return not fake and not any(tensor.is_meta for tensor in tensors)


def describe(pass_, options, tensors, ports, wanted=0):
    """The problem of a call on real tensors, outputs described, and its tensors by name."""
    inputs = _by_port(tensors, ports)
    problem = _problem(pass_, options, inputs)
    problem.add_outputs(wanted)
    names = _operations.OPERATIONS[options[0]].names
    return problem, {names[port]: tensor for port, tensor in inputs.items()}


def dtype_number(dtype):
    """A torch dtype as the C library numbers it."""
    return _DTYPES.get(dtype, dw.OTHER)


def _primals(op, inputs, wanted):
    """The input of each wanted gradient, by the gradient's port."""
    operation = OPERATIONS[op]
    return {
        gradient: inputs[port]
        for port, gradient in zip(operation.inputs, operation.gradients, strict=True)
        if gradient >= 0 and wanted >> gradient & 1
    }


def _taken(arguments, own):
    """(options, inputs by port, `own` more arguments) of a dispatcher operator."""
    tensors, ports, *rest = arguments[OPTIONS:]
    return (*arguments[:OPTIONS], *rest[own:]), _by_port(tensors, ports), rest[:own]


def _by_port(tensors, ports):
    numbers = [port for port in range(dw.PORT_COUNT) if ports >> port & 1]
    return dict(zip(numbers, tensors, strict=True))


def _forward_outputs(flags, inputs):
    """Port -> (shape, dtype), as the C library describes them (dw_describe_outputs); symbolic sizes
    stay symbolic."""
    q, v, cu_seqlens = inputs[dw.Q], inputs[dw.V], inputs[dw.CU_SEQLENS]
    heads = torch.sym_max(_extent(q, 1), _extent(v, -2))  # v may have an axis of sub-steps
    value_dim = _extent(v, -1)
    outputs = {dw.OUT: ((_extent(q, 0), heads, value_dim), q.dtype)}
    if flags & dw.OUTPUT_FINAL_STATE and not flags & dw.OVERWRITE_INITIAL_STATE:
        sequences = _extent(cu_seqlens, 0) - 1
        if isinstance(sequences, int):
            sequences = max(sequences, 0)
        if dw.INITIAL_STATE in inputs:
            dtype = inputs[dw.INITIAL_STATE].dtype
        else:
            dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        outputs[dw.FINAL_STATE] = ((sequences, heads, value_dim, _extent(q, 2)), dtype)
    return outputs


def _extent(tensor, axis):
    """Of an axis counted from the front or, if negative, from the back."""
    return tensor.shape[axis] if -tensor.dim() <= axis < tensor.dim() else 0


def _judge(pass_, options, inputs, outputs):
    """Raises what the operator itself would raise, unless a graph is being compiled."""
    if tracing():
        return
    try:
        problem = _problem(pass_, options, inputs)
        device = _device(inputs[dw.Q].device, _all_meta(inputs))
        for port, (shape, dtype) in outputs.items():
            shape = [_example(size) for size in shape]
            problem.add(port, dtype_number(dtype), shape, _contiguous(shape), *device)
    except _NoExample:
        return
    dw.check(problem)


def _problem(pass_, options, inputs):
    """The inputs and options of a call as the C library takes them."""
    op, flags, *scalars = options
    problem = dw.Problem(
        op=op,
        pass_=pass_,
        threads=torch.get_num_threads(),
        **_arguments.fields(flags, scalars),
    )
    meta = _all_meta(inputs)
    for port, tensor in inputs.items():
        shape = [_example(size) for size in tensor.shape]
        stride = [_example(step) for step in tensor.stride()]
        device = _device(tensor.device, meta)
        problem.add(port, dtype_number(tensor.dtype), shape, stride, *device)
    return problem


def _all_meta(inputs):
    """Meta tensors alone stand for CPU tensors; among others they are on a wrong device."""
    return all(tensor.device.type == "meta" for tensor in inputs.values())


def _device(device, meta):
    device_type = dw.CPU if meta else _DEVICES.get(device.type, dw.OTHER_DEVICE)
    return device_type, 0 if device_type == dw.CPU else device.index or 0


def _example(size):
    if isinstance(size, int):
        return size
    hint = size.node.hint
    if not isinstance(hint, int):
        raise _NoExample
    return hint


def _contiguous(shape):
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return stride[::-1]
