"""The outputs of a run beside those of the reference engine, judged by bounds.py."""

from __future__ import annotations

import numpy as np

from deltaworks import _library
from deltaworks.problem import Problem
from deltaworks.testing import bounds
from deltaworks.testing.execute import run_problem
from deltaworks.testing.loop import token_loop


class Yardstick:
    """What results of a problem on these inputs are held against; made once for many engines."""

    def __init__(self, problem: Problem, inputs: dict[str, np.ndarray]):
        """Raises NotSupportedError where the reference engine does not take the problem."""
        self._problem, self._inputs = problem, inputs
        self._tensors = problem.outputs
        self._io = problem.io_dtype
        self.reference = run_problem(problem, inputs, f"{problem.variant}_reference")
        self._loop = {}
        if any(bounds.follows_loop(name, self._io, x.dtype) for name, x in self._tensors.items()):
            self._loop = token_loop(problem, inputs)

    def judge(self, outputs: dict[str, np.ndarray]) -> list[bounds.Row]:
        """One row a tensor."""
        offsets = self._inputs["cu_seqlens"].tolist()
        gate_rows = None
        operation = self._problem.operation
        names = {operation.gradients[operation.names[port]] for port in (_library.Q, _library.K)}
        if names <= self.reference.keys():
            gate_rows = bounds.gate_scale(self._problem, self._inputs, self.reference)
        return [
            bounds.errors(
                name,
                tensor.dtype,
                self._io,
                *(
                    self._by_token(name, results)
                    for results in (outputs, self.reference, self._loop)
                ),
                offsets,
                gate_rows if name in bounds.GATES else None,
            )
            for name, tensor in self._tensors.items()
        ]

    def _by_token(self, name, results):
        return bounds.by_token(self._problem, name, results[name]) if name in results else None


def compare(
    problem: Problem, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]
) -> list[bounds.Row]:
    """Errors of `outputs` against the reference engine on the same inputs, one row a tensor."""
    return Yardstick(problem, inputs).judge(outputs)
