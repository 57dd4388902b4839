"""What a call allocates: its outputs and its plan's workspace, whatever the inputs' strides."""

import dataclasses
import os

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import layouts
from cases import Case, build
from deltaworks import ops
from operations import OPERATIONS
from run_op import call, leaves_of

CASE = Case(lengths=(100, 0, 157), tail=3, heads=(2, 2, 4), K=48, V=40)
OWN = {
    "gdn": {},
    "kda": {},
    "gdn2": {"guard": True},
    "gdp": {"steps": 2, "token_major": True},
    "mamba2": {"D": "head", "z": True},
}


def zero_strides(x):
    return layouts.expanded(x, 0)


def contiguous(x):
    return x


def allocated_by(function):
    """(result, bytes that torch's allocator handed out during the call)."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()
    events = profiler.profiler.kineto_results.events()
    total = sum(max(e.nbytes(), 0) for e in events if e.name() == "[memory]")
    assert total > 0
    return result, total


def size(tensors):
    return sum(x.numel() * x.element_size() for x in tensors)


@pytest.mark.parametrize(
    "layout", [contiguous, *layouts.ALL, zero_strides], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_call_allocates_its_outputs_and_its_workspace(op, io, layout):
    problem = build(dataclasses.replace(CASE, io=io, op=op, **OWN[op]))
    tensors = problem.inputs
    problem.inputs = {n: x if n == "cu_seqlens" else layout(x) for n, x in tensors.items()}
    leaves = leaves_of(problem, problem.op.differentiable)
    flows = [layout(problem.d_o), layout(problem.d_final)]

    def forward():
        return call(problem, leaves)

    forward()  # plans and pools are made once
    outputs, total = allocated_by(forward)
    assert total == size(outputs) + ops.workspace_bytes()

    def backward():
        return torch.autograd.grad(outputs, list(leaves.values()), flows, retain_graph=True)

    backward()
    grads, total = allocated_by(backward)
    assert total == size(grads) + ops.workspace_bytes()


def test_the_measure_sees_a_copy():
    x = torch.zeros(1000)
    _, total = allocated_by(lambda: x.clone())
    assert total == 4000


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_backward_allocates_the_wanted_gradients_only(op):
    problem = build(dataclasses.replace(CASE, op=op, **OWN[op]))
    name = "dt" if op == "mamba2" else "beta"
    leaves = leaves_of(problem, [name])
    o, _ = call(problem, leaves, output_final_state=False)
    (grad,), total = allocated_by(lambda: torch.autograd.grad(o, leaves[name], problem.d_o))
    assert total == size([grad]) + ops.workspace_bytes()


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", ["forward", "backward", "rejected", "malformed"])
def test_repeated_calls_do_not_leak(kind):
    """100 calls on fresh tensors of some 1 MB each: a leak of one of them a call shows as 50 MB."""
    beta_dtype = torch.float64 if kind == "rejected" else torch.float32
    offsets = torch.tensor([0, 5000 if kind == "malformed" else 2000])

    def call():
        q, k, v = (torch.randn(2000, 2, 64) for _ in range(3))
        g, beta = -torch.rand(2000, 2), torch.rand(2000, 2).to(beta_dtype)
        v.requires_grad_(kind == "backward")
        o, _ = ops.gated_delta_net(q, k, v, g, beta, offsets, use_qk_l2norm_in_kernel=True)
        if kind == "backward":
            o.sum().backward()

    def repeat(count):
        for _ in range(count):
            try:
                call()
                assert kind in ("forward", "backward")
            except (TypeError, ValueError):
                assert kind in ("rejected", "malformed")

    repeat(10)
    before = resident_bytes()
    repeat(100)
    assert resident_bytes() - before < 25e6
