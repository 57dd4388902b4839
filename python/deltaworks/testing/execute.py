"""Runs a problem on NumPy arrays, straight through the C interface."""

from __future__ import annotations

import numpy as np

from deltaworks import _library
from deltaworks.problem import Problem
from deltaworks.testing.arrays import empty, require_match, require_memory


class Run:
    """A problem's plan with everything that an execution needs: inputs, outputs, workspace.

    The inputs are kept: an initial_state that is overwritten is a copy, outputs["final_state"].
    """

    def __init__(self, problem: Problem, inputs: dict[str, np.ndarray]):
        """Raises if the inputs are not what the problem describes, or no engine takes it."""
        _require_inputs(problem, inputs)
        require_memory(problem)
        self.plan = _library.Plan(problem.struct())
        self.outputs = {name: empty(tensor) for name, tensor in problem.outputs.items()}
        self._inputs = inputs  # their memory
        self._overwrites = problem.overwrites
        self._workspace = np.empty(self.plan.workspace_bytes, np.uint8)
        arrays = inputs | self.outputs
        if problem.overwrites:
            arrays["initial_state"] = arrays.pop("final_state")
        ports = problem.operation.ports
        self._pointers = {ports[name]: array.ctypes.data for name, array in arrays.items()}

    def execute(self) -> None:
        """Writes the outputs."""
        self._set_states()
        self.plan.execute(self._pointers, self._workspace.ctypes.data)

    def time(self, calls: int) -> tuple[float, float]:
        """Seconds of an execution and of the kernels in it, medians of `calls`."""
        self._set_states()
        return self.plan.time(self._pointers, self._workspace.ctypes.data, calls)

    def _set_states(self):
        if self._overwrites:
            self.outputs["final_state"][...] = self._inputs["initial_state"]


def run_problem(
    problem: Problem, inputs: dict[str, np.ndarray], plan_name: str | None = None
) -> dict[str, np.ndarray]:
    """The outputs by name, in arrays with the problem's own strides.

    `plan_name` pins an engine. Raises ValueError and TypeError for inputs that are not what the
    problem describes, NotSupportedError where no engine takes it.
    """
    run = Run(problem.pinned(plan_name) if plan_name else problem, inputs)
    run.execute()
    return run.outputs


def _require_inputs(problem: Problem, inputs: dict[str, np.ndarray]) -> None:
    expected = problem.inputs
    for name in expected.keys() - inputs.keys():
        raise ValueError(f"{name} is missing")
    for name in inputs.keys() - expected.keys():
        raise ValueError(f"{name} is no input of {problem}")
    for name, tensor in expected.items():
        if tensor.device != "cpu":
            raise ValueError(f"{name} must be on the CPU to run on NumPy arrays: {tensor.device}")
        require_match(name, inputs[name], tensor)
