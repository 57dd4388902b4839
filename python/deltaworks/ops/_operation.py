"""Operations by port numbers, in whose order the dispatcher operators take and give tensors."""

from typing import NamedTuple

from deltaworks import _arguments, _operations
from deltaworks import _library as dw


class Operation(NamedTuple):
    number: int
    name: str
    inputs: tuple[int, ...]  # ports
    arguments: tuple[
        tuple[str, int, bool], ...
    ]  # of each input: name, bit, whether it must be there
    state: int  # where initial_state is among the inputs
    gradients: tuple[int, ...]  # the gradient's port for each input; -1: not differentiable
    outputs: tuple[tuple[int, int], ...]  # port of each output, of the gradient that flows into it
    options: tuple[_arguments.Option, ...]
    defaults: tuple  # of the options
    rare: bool


def _by_port(row: _operations.Operation) -> Operation:
    ports = row.ports
    inputs = sorted(row.required + row.optional, key=ports.get)
    return Operation(
        row.number,
        row.name,
        tuple(ports[name] for name in inputs),
        tuple((name, 1 << ports[name], name in row.required) for name in inputs),
        inputs.index("initial_state"),
        tuple(ports[row.gradients[x]] if x in row.gradients else -1 for x in inputs),
        tuple((ports[output], ports[flow]) for output, flow in row.flows.items()),
        row.options,
        row.defaults,
        row.rare,
    )


OPERATIONS = {number: _by_port(row) for number, row in _operations.OPERATIONS.items()}
GATED_DELTA_NET = OPERATIONS[dw.GATED_DELTA_NET]
KIMI_DELTA_ATTENTION = OPERATIONS[dw.KIMI_DELTA_ATTENTION]
GATED_DELTA_NET_V2 = OPERATIONS[dw.GATED_DELTA_NET_V2]
GATED_DELTA_PRODUCT = OPERATIONS[dw.GATED_DELTA_PRODUCT]
MAMBA2 = OPERATIONS[dw.MAMBA2]
