"""From the arguments of any operation to its results: describe, plan, allocate, execute.

Nothing is copied and nothing is cast. What a call allocates is its outputs and the workspace that
its plan asks for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from deltaworks import _hooks
from deltaworks import _library as dw
from deltaworks._operations import Operation
from deltaworks.errors import NotSupportedError
from deltaworks.numpy._arrays import View, empty, view
from deltaworks.numpy._options import problem_fields


def forward(operation: Operation, arguments: dict[str, Any]):
    """(o, final_state or None) of a call with these arguments, by name."""
    outputs = _run(operation, dw.FORWARD, arguments)
    o = outputs[operation.names[dw.OUT]]
    if arguments["overwrite_initial_state"]:
        return o, arguments["initial_state"]
    return o, outputs.get("final_state")


def backward(operation: Operation, arguments: dict[str, Any]) -> dict[str, np.ndarray | None]:
    """The gradients of a call with these arguments, by name; among the arguments is `wanted`."""
    wanted = _wanted(operation, arguments["wanted"])
    ports = [
        operation.ports[gradient]
        for name, gradient in operation.gradients.items()
        if name in wanted and arguments[name] is not None
    ]
    outputs = _run(operation, dw.BACKWARD, arguments, sum(1 << port for port in ports))
    return {gradient: outputs.get(gradient) for gradient in operation.gradients.values()}


def _run(operation, pass_, arguments, wanted=0) -> dict[str, np.ndarray]:
    """The outputs by name. Whatever is wrong is raised before an output is written."""
    views = _views(operation, pass_, arguments)
    ports, fields = operation.ports, problem_fields(operation, arguments)
    problem = dw.Problem(op=operation.number, pass_=pass_, **fields)
    for name, x in views.items():
        problem.add(ports[name], x.dtype, x.shape, x.strides, x.device_type, x.device_index)
    described = problem.add_outputs(wanted)

    hook = _hooks.call_hook
    if hook is not None:
        hook(problem, {name: arguments[name] for name in views})
    plan = dw.Plan(problem)
    if any(x.device_type != dw.CPU for x in views.values()):  # an engine may run there
        raise NotSupportedError(
            f"{operation.name}: NumPy's results are in CPU memory, so arguments must be there, too"
        )
    if problem.flags & dw.OVERWRITE_INITIAL_STATE and not views["initial_state"].writeable:
        raise ValueError(f"{operation.name}: initial_state is written and must not be read-only")
    outputs = {operation.names[output.port]: empty(output) for output in described}
    workspace = np.empty(plan.workspace_bytes, np.uint8)
    pointers = {ports[name]: x.address for name, x in views.items()}
    pointers |= {ports[name]: x.ctypes.data for name, x in outputs.items()}
    plan.execute(pointers, workspace.ctypes.data)
    return outputs


def _views(operation, pass_, arguments) -> dict[str, View]:
    names = operation.required + operation.optional
    if pass_ == dw.BACKWARD:
        names += tuple(operation.flows.values())
    # Filled in a loop: should an array be refused, the traceback holds those before it, and no
    # producer's destructor has to run while the exception is on its way.
    views = {}
    for name in names:
        if arguments[name] is not None or name in operation.required:
            views[name] = view(arguments[name], f"{operation.name}: {name}")
    return views


def _wanted(operation, names: Iterable[str] | None):
    if names is None:
        return tuple(operation.gradients)
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(
            f"{operation.name}: wanted must be an iterable of names or None, got "
            f"{type(names).__name__}"
        )
    names = tuple(names)
    for name in names:
        if name not in operation.gradients:
            known = ", ".join(operation.gradients)
            raise ValueError(f"{operation.name}: wanted must hold some of {known}; got {name!r}")
    return names
