"""The NumPy operators on the problems of cases.py: conversions, and a run like run_op.run.

torch draws the data, NumPy views the same memory with the same strides, and results come back as
tensors, so that the bounds and the comparisons of bits apply as they are.
"""

import ml_dtypes
import numpy as np
import pytest
import torch

import layouts
from cases import DTYPES
from deltaworks import _library
from deltaworks import numpy as operators
from run_op import plan_of, same_bits


def to_numpy(x):
    """The same memory as an array with the same strides."""
    x = x.detach()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def to_torch(x):
    """A tensor with the bits of an array."""
    x = np.ascontiguousarray(x)
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def gradient_of(name):
    return "d_initial_state" if name == "initial_state" else "d" + name


def run(problem, plan_name="cpu", executed=None, convert=to_numpy, backward=True, **options):
    """Outputs and gradients by name, as run_op.run; asserts which plan ran in both passes.

    `convert` makes each of the problem's tensors an argument of the operator.
    """
    inputs = {name: convert(x) for name, x in problem.inputs.items()}
    name = problem.op.name
    forward, backward_of = (getattr(operators, name + suffix) for suffix in ("", "_backward"))
    plan_name = plan_of(problem, plan_name)
    options = {"plan_name": plan_name, "output_final_state": True, **problem.options, **options}
    o, final_state = forward(**inputs, **options)
    assert _library.last_plan() == (plan_name or executed)
    results = {"o": to_torch(o), "final_state": to_torch(final_state)}
    if backward:
        flows = {{"o": "dO", "y": "dy"}[problem.op.output]: convert(problem.d_o)}
        if problem.d_final is not None:
            flows["d_final_state"] = convert(problem.d_final)
        gradients = backward_of(**inputs, **flows, **options)
        assert _library.last_plan() == (plan_name or executed)
        assert len(gradients) == len(problem.op.differentiable)
        for name in problem.op.differentiable:
            gradient = getattr(gradients, gradient_of(name))
            assert (gradient is None) == (name not in inputs), name
            if gradient is not None:
                results[name] = to_torch(gradient)
                expected = problem.inputs[name]
                assert results[name].dtype == expected.dtype, name
                assert results[name].shape == expected.shape, name
    return results


@pytest.mark.parametrize("layout", layouts.ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_conversions_keep_bits_memory_and_strides(dtype, layout):
    x = layout(torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0)).to(dtype))
    array = to_numpy(x)
    assert array.ctypes.data == x.data_ptr()
    assert array.strides == tuple(x.element_size() * stride for stride in x.stride())
    assert same_bits(to_torch(array), x)
