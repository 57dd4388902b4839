"""Runs a problem's operator and collects its results by name, as oracle.run does."""

from __future__ import annotations

import torch

from deltaworks import ops

CPU = "gdn_cpu"


def plan_of(problem, engine):
    """The plan of `engine` ("cpu", "reference") for the problem's operation; a plan's own name, and
    None, as they are."""
    return f"{problem.op.prefix}_{engine}" if engine and "_" not in engine else engine


def leaves_of(problem, requires_grad=(), **changes):
    """The differentiable inputs, detached, with the inputs' own strides."""
    inputs = {**problem.inputs, **changes}
    names = [name for name in problem.op.differentiable if name in inputs]
    return {name: inputs[name].detach().requires_grad_(name in requires_grad) for name in names}


def call(problem, leaves, plan_name="cpu", executed=None, **options):
    """The operator's outputs on `leaves`, with output_final_state; asserts the executed plan."""
    plan_name = plan_of(problem, plan_name)
    arguments = {"output_final_state": True, **problem.options, **options}
    arguments.setdefault("cu_seqlens", problem.inputs["cu_seqlens"])
    outputs = getattr(ops, problem.op.name)(**leaves, plan_name=plan_name, **arguments)
    assert ops.last_plan() == (plan_name or executed)
    return outputs


def run(problem, plan_name="cpu", backward=True, executed=None, **changes):
    """Outputs and, with `backward`, gradients; asserts in both passes which plan was executed.

    `changes` replaces inputs. `plan_name` may be an engine's. `executed` is the plan expected where
    none is pinned.
    """
    inputs = {**problem.inputs, **changes}
    wanted = problem.op.differentiable if backward else ()
    leaves = leaves_of(problem, wanted, **changes)
    o, final_state = call(problem, leaves, plan_name, executed, cu_seqlens=inputs["cu_seqlens"])
    results = {"o": o.detach(), "final_state": final_state.detach()}
    if backward:
        outputs, flows = [o], [problem.d_o]
        if problem.d_final is not None:
            outputs.append(final_state)
            flows.append(problem.d_final)
        grads = torch.autograd.grad(outputs, list(leaves.values()), flows)
        assert ops.last_plan() == (plan_of(problem, plan_name) or executed)
        results.update(zip(leaves, grads, strict=True))
        for name, grad in zip(leaves, grads, strict=True):
            assert grad.dtype == inputs[name].dtype and grad.shape == inputs[name].shape, name
    return results


def assert_same_bits(got, expected, names=None):
    """Both results hold the same bits under `names` (default: every name of `expected`)."""
    for name in names or expected:
        assert same_bits(got[name], expected[name]), f"{name} differs in its bits"


def same_bits(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(bits(a), bits(b))


def bits(x):
    width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.detach().contiguous().view(width)
