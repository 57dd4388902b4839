"""Problem: everything about an operator call but its data, as a value (docs/problems.md).

problem = Problem("gdn:fwd:bf16:N4T8192H16HV32K128V128:l2norm")
problem.plan_name           "gdn_cpu": the plan that runs it here
problem.tensors["q"]        Tensor(dtype="bfloat16", shape=(8192, 16, 128), ...)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from deltaworks import _arguments, _library
from deltaworks._operations import OPERATIONS, Operation
from deltaworks.errors import from_status

_PASSES = {_library.FORWARD: "forward", _library.BACKWARD: "backward"}
_DTYPES = {
    _library.FLOAT32: "float32",
    _library.BFLOAT16: "bfloat16",
    _library.FLOAT16: "float16",
    _library.FLOAT64: "float64",
    _library.INT32: "int32",
    _library.INT64: "int64",
}
_DEVICES = {_library.CPU: "cpu", _library.CUDA: "cuda"}
_OUTPUTS = (
    *(_library.OUT, _library.FINAL_STATE),
    *(_library.DQ, _library.DK, _library.DV, _library.DG, _library.DBETA),
    *(_library.DA_LOG, _library.DDT_BIAS, _library.D_INITIAL_STATE),
    *(_library.DW, _library.DD, _library.DZ),
)


class Tensor(NamedTuple):
    """Where the elements of one tensor of a problem lie; strides count elements."""

    dtype: str  # "float32", "bfloat16", ...
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str  # "cpu", "cuda0"


class Dims(NamedTuple):
    """The sizes that a valid problem's tensors agree on (see docs/problems.md)."""

    T: int
    N: int
    K: int
    V: int
    H: int
    HK: int
    HV: int
    HO: int


class Problem:
    """An operator call without its data; immutable, equal where the canonical strings are."""

    __slots__ = ("_struct", "_text")

    def __init__(self, text: str):
        """Reads a problem string; ValueError says what is wrong with it."""
        _require_text("problem string", text)
        self._struct = _library.parse_problem(text)
        self._text = _library.format_problem(self._struct)

    @classmethod
    def parse(cls, text: str) -> Problem:
        """The same as Problem(text)."""
        return cls(text)

    @classmethod
    def from_struct(cls, struct: _library.Problem) -> Problem:
        """The problem that a dw_problem describes."""
        return cls(_library.format_problem(struct))

    def struct(self) -> _library.Problem:
        """A dw_problem of its own, for _library's functions."""
        return _library.parse_problem(self._text)

    def pinned(self, plan_name: str | None) -> Problem:
        """The same problem for one engine; None: for the first that accepts."""
        if plan_name is not None:
            _require_text("plan_name", plan_name)
        struct = self.struct()
        struct.plan_name = plan_name.encode() if plan_name else None
        return Problem.from_struct(struct)

    @property
    def op(self) -> str:
        """Name of the operator: "gated_delta_net"."""
        return self.operation.name

    @property
    def operation(self) -> Operation:
        """The operation's row: names of its tensors, their ports, its options."""
        return OPERATIONS[self._struct.op]

    @property
    def pass_(self) -> str:
        """ "forward" or "backward"."""
        return _PASSES[self._struct.pass_]

    @property
    def variant(self) -> str:
        """First field of the string and of plan names: "gdn"."""
        return self._text.partition(":")[0]

    @property
    def flags(self) -> int:
        """Options as bits of _library: L2NORM, SAFE_GATE, ..."""
        return self._struct.flags

    @property
    def overwrites(self) -> bool:
        """Whether the final states replace initial_state, so that final_state is no tensor."""
        return bool(self.flags & _library.OVERWRITE_INITIAL_STATE)

    @property
    def gate_domain(self) -> str:
        """ "log" or "linear"."""
        return (self._struct.gate_domain or b"log").decode()

    @property
    def scale(self) -> float | None:
        """Scale of the output; None: K^-0.5."""
        return self._struct.scale if self.flags & _library.HAS_SCALE else None

    @property
    def gate(self) -> str:
        """ "sigmoid" or "softplus": what safe_gate makes of a gate a channel."""
        return (self._struct.gate or b"sigmoid").decode()

    @property
    def gate_lower_bound(self) -> float:
        """Of that sigmoid; -5 where the call does not say."""
        given = self.flags & _library.HAS_GATE_LOWER_BOUND
        return self._struct.gate_lower_bound if given else -5.0

    @property
    def num_householder(self) -> int:
        """Sub-steps a token; 1 for operations that have none."""
        return self._struct.num_householder or 1

    @property
    def dt_bounds(self) -> tuple[float, float]:
        """dt_min and dt_max, which may be infinity."""
        given = self.flags & _library.HAS_DT_MAX
        return self._struct.dt_min, self._struct.dt_max if given else math.inf

    @property
    def pinned_plan(self) -> str | None:
        """Name of the plan that the problem asks for."""
        return self._struct.plan_name.decode() if self._struct.plan_name else None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that take part, by the operation's names, in the order of the ports."""
        described = sorted(self._struct.described(), key=lambda tensor: tensor.port)
        names = self.operation.names
        return {names[tensor.port]: _tensor(tensor) for tensor in described}

    @property
    def io_dtype(self) -> str:
        """That of q, k, v, or x, B, C."""
        return self.tensors[self.operation.names[_library.Q]].dtype

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The tensors that are read."""
        return {name: x for name, x in self.tensors.items() if not self._is_output(name)}

    @property
    def outputs(self) -> dict[str, Tensor]:
        """The tensors that are written; final_state also where it overwrites initial_state."""
        tensors = self.tensors
        outputs = {name: x for name, x in tensors.items() if self._is_output(name)}
        if self.overwrites:
            outputs["final_state"] = tensors["initial_state"]
        return outputs

    @property
    def dims(self) -> Dims:
        """The sizes; raises what is wrong with a problem that is not valid."""
        dims = _library.validate(self._struct)
        return Dims(*(getattr(dims, name) for name in Dims._fields))

    @property
    def plan_name(self) -> str:
        """Name of the plan that runs it; NotSupportedError holds every engine's reasons."""
        return _library.Plan(self._struct).name

    def explain(self) -> list[_library.Verdict]:
        """Every engine's verdict, in the order they are asked."""
        return _library.explain(self._struct)

    def _is_output(self, name: str) -> bool:
        return self.operation.ports[name] in _OUTPUTS

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Problem({self._text!r})"

    def __eq__(self, other) -> bool:
        return self._text == other._text if isinstance(other, Problem) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self):
        return Problem, (self._text,)


def _require_text(name: str, value: str) -> None:
    problem = _arguments.judge_text(name, value)
    if problem is not None:
        raise from_status(*problem)


def _tensor(tensor: _library.Tensor) -> Tensor:
    device = _DEVICES.get(tensor.device_type, "other")
    if device == "cuda":
        device += str(tensor.device_index)
    dtype = _DTYPES.get(tensor.dtype, "other")
    return Tensor(dtype, tensor.sizes(), tensor.strides(), device)
