"""Operations by port numbers, in whose order the dispatcher operators take and give tensors."""

from typing import NamedTuple

from deltaworks import _library as dw
from deltaworks import _operations

_PORTS = {name: port for port, name in enumerate(dw.PORTS)}


class Operation(NamedTuple):
    number: int
    name: str
    inputs: tuple[tuple[int, str], ...]  # port, argument name
    required: int  # bits of the inputs that must be there
    state: int  # where initial_state is among the inputs
    gradients: tuple[int, ...]  # the gradient's port for each input; -1: not differentiable
    outputs: tuple[tuple[int, int], ...]  # port of each output, of the gradient that flows into it


def _by_port(row: _operations.Operation) -> Operation:
    inputs = sorted((_PORTS[name], name) for name in row.required + row.optional)
    return Operation(
        row.number,
        row.name,
        tuple(inputs),
        sum(1 << _PORTS[name] for name in row.required),
        inputs.index((dw.INITIAL_STATE, "initial_state")),
        tuple(_PORTS[row.gradients[x]] if x in row.gradients else -1 for _, x in inputs),
        tuple((_PORTS[output], _PORTS[flow]) for output, flow in row.flows.items()),
    )


GATED_DELTA_NET = _by_port(_operations.GATED_DELTA_NET)
OPERATIONS = {operation.number: operation for operation in (GATED_DELTA_NET,)}
