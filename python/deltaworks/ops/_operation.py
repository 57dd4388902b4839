"""What the generic operator path must know of an operation: one row each."""

from typing import NamedTuple

from deltaworks import _library as dw


class Operation(NamedTuple):
    """Ports in the order of their numbers, which is the order of the dispatcher operators."""

    number: int
    name: str
    inputs: tuple[tuple[int, str], ...]  # port, argument name
    required: int  # bits of the inputs that must be there
    gradients: tuple[int, ...]  # the gradient's port for each input; -1: not differentiable
    outputs: tuple[tuple[int, int], ...]  # port of each output, of the gradient that flows into it


GATED_DELTA_NET = Operation(
    number=dw.GATED_DELTA_NET,
    name="gated_delta_net",
    inputs=(
        (dw.Q, "q"),
        (dw.K, "k"),
        (dw.V, "v"),
        (dw.G, "g"),
        (dw.BETA, "beta"),
        (dw.A_LOG, "a_log"),
        (dw.DT_BIAS, "dt_bias"),
        (dw.CU_SEQLENS, "cu_seqlens"),
        (dw.INITIAL_STATE, "initial_state"),
        (dw.STATE_INDICES, "state_indices"),
    ),
    required=sum(1 << port for port in (dw.Q, dw.K, dw.V, dw.G, dw.BETA, dw.CU_SEQLENS)),
    gradients=(
        dw.DQ,
        dw.DK,
        dw.DV,
        dw.DG,
        dw.DBETA,
        dw.DA_LOG,
        dw.DDT_BIAS,
        -1,
        dw.D_INITIAL_STATE,
        -1,
    ),
    outputs=((dw.OUT, dw.DO), (dw.FINAL_STATE, dw.D_FINAL_STATE)),
)

OPERATIONS = {operation.number: operation for operation in (GATED_DELTA_NET,)}
