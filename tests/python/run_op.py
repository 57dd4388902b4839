"""Runs the operator on a problem and collects its results by name, as oracle.run does."""

from __future__ import annotations

import torch

from deltaworks import ops
from oracle import DIFFERENTIABLE

CPU = "gdn_cpu"


def run(problem, plan_name=CPU, backward=True, executed=None, **changes):
    """Outputs and, with `backward`, gradients; asserts in both passes which plan was executed.

    `changes` replaces inputs. Leaves keep the inputs' own strides. `executed` is the plan expected
    where none is pinned.
    """
    inputs = {**problem.inputs, **changes}
    leaves = {name: inputs[name].detach() for name in DIFFERENTIABLE if name in inputs}
    for leaf in leaves.values():
        leaf.requires_grad_(backward)
    o, final_state = ops.gated_delta_net(
        **leaves,
        cu_seqlens=inputs["cu_seqlens"],
        output_final_state=True,
        plan_name=plan_name,
        **problem.options,
    )
    assert ops.last_plan() == (plan_name or executed)
    results = {"o": o.detach(), "final_state": final_state.detach()}
    if backward:
        outputs, flows = [o], [problem.d_o]
        if problem.d_final is not None:
            outputs.append(final_state)
            flows.append(problem.d_final)
        grads = torch.autograd.grad(outputs, list(leaves.values()), flows)
        assert ops.last_plan() == (plan_name or executed)
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
