"""Random inputs for a problem, in the ranges that its options expect.

Every tensor is drawn from the seed and its own number, so that it does not depend on which others
take part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deltaworks import _library
from deltaworks.problem import Problem, Tensor
from deltaworks.testing.arrays import DTYPES, laid_out, require_memory

# Rounding a row to a 16-bit dtype may lengthen it by 2^-9: its norm stays below 1.
_KEY_NORM = 1 - 2**-8


def make_inputs(
    problem: Problem, seed: int = 0, lengths: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """Arrays by name with the problem's shapes, dtypes and strides.

    `lengths` are those of the N sequences, at most T tokens together; by default T is divided
    evenly. Without the l2norm option the keys have a norm of at most 1. Raises ValueError for
    lengths that do not fit, strides that give one place two values, and problems beyond memory.
    """
    require_memory(problem)
    dims = problem.dims
    arrays = {}
    for name, tensor in problem.inputs.items():
        rng = np.random.default_rng([seed, problem.operation.ports[name]])
        if name == "cu_seqlens":
            values = _offsets(dims.T, dims.N, lengths)
        elif name == "state_indices":
            values = _slots(rng, problem.tensors["initial_state"].shape[0], dims.N)
        else:
            # elements that share memory by a zero stride share their value
            shape = [
                1 if stride == 0 else size
                for size, stride in zip(tensor.shape, tensor.strides, strict=True)
            ]
            values = _draw(name, problem, rng, shape, tensor)
        arrays[name] = laid_out(name, values.astype(DTYPES[tensor.dtype]), tensor)
    return arrays


def _offsets(tokens: int, sequences: int, lengths: Sequence[int] | None) -> np.ndarray:
    if lengths is None:
        return np.arange(sequences + 1) * tokens // max(sequences, 1)
    if len(lengths) != sequences or min(lengths, default=0) < 0 or sum(lengths) > tokens:
        raise ValueError(
            f"lengths must be {sequences} numbers >= 0 with a sum of at most {tokens}, "
            f"got {list(lengths)}"
        )
    return np.cumsum([0, *lengths])


def _slots(rng, rows: int, sequences: int) -> np.ndarray:
    """Distinct rows of a pool; -1, no slot, for sequences beyond its rows."""
    slots = np.full(sequences, -1)
    count = min(rows, sequences)
    slots[:count] = rng.permutation(rows)[:count]
    return slots


def _draw(name: str, problem: Problem, rng, shape: list[int], tensor: Tensor) -> np.ndarray:
    def normal(deviation=1.0, mean=0.0):
        return mean + deviation * rng.standard_normal(shape, np.float32)

    flags = problem.flags
    if name == "k" and not flags & _library.L2NORM:
        rows = np.broadcast_to(normal(), (*shape[:-1], tensor.shape[-1]))
        return _KEY_NORM * rows / np.sqrt(np.square(rows).sum(-1, keepdims=True))
    if name == "g":
        if flags & _library.SAFE_GATE:
            return normal()
        gate = -rng.random(shape, np.float32)
        return np.exp(gate) if problem.gate_domain == "linear" else gate
    if name == "A":
        return -np.exp(normal(0.5, -1))
    if name == "w":
        return rng.random(shape, np.float32)
    if name == "beta":
        return normal(2) if flags & _library.BETA_SIGMOID else rng.random(shape, np.float32)
    if name == "a_log":
        return normal(0.5, -1)
    if name in ("dt_bias", "initial_state", "d_final_state"):
        return normal(0.5)
    return normal()
