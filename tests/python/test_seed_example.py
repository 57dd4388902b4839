"""4096 tokens in three sequences through the smallest calls that train: every gradient of the sum
of the output, at shapes of a model."""

import pytest
import torch

import bounds
import oracle
from cases import Case, build
from run_op import call, leaves_of

LENGTHS = (1000, 2500, 596)
ROWS = {
    "gdn": Case(lengths=LENGTHS, heads=(2, 2, 4), K=64, V=64, state=None, op="gdn"),
    "mamba2": Case(
        lengths=LENGTHS, heads=(1, 1, 2), K=128, V=64, state=None, D="head", op="mamba2"
    ),
}


def head(problem, name, x):
    """The first group of a tensor: heads 0 of q and k, and those of o that read them."""
    group = problem.case.out_heads // problem.case.heads[0]
    count = 1 if name in problem.op.narrow else group
    return x[:count] if name in problem.op.parameters else x[:, :count]


@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("op", ROWS)
def test_the_sum_of_the_output_has_every_gradient(op, io):
    case = ROWS[op]
    problem = build(Case(**{**vars(case), "io": io}))
    assert sum(LENGTHS) == 4096 == len(problem.d_o)
    if op == "mamba2":
        problem.inputs["D"] = torch.ones(case.out_heads)
    names = [name for name in problem.op.differentiable if name in problem.inputs]
    leaves = leaves_of(problem, names)
    o, final_state = call(problem, leaves, output_final_state=False)
    assert final_state is None and o.isfinite().all()
    o.sum().backward()
    for name, leaf in leaves.items():
        assert leaf.grad.dtype == leaf.dtype and leaf.grad.shape == leaf.shape, name
        assert leaf.grad.isfinite().all() and leaf.grad.any(), name
    check_one_group(problem, o, leaves)


def check_one_group(problem, o, leaves):
    """Heads do not meet: the last sequence, of one group of heads, is a problem of its own."""
    start, end = sum(LENGTHS[:-1]), sum(LENGTHS)
    part = build(problem.case)
    part.d_final, part.d_o = None, head(problem, "o", torch.ones_like(problem.d_o))[start:end]
    part.inputs = {"cu_seqlens": torch.tensor([0, end - start])}
    got = {"o": head(problem, "o", o.detach())[start:end]}
    for name, leaf in leaves.items():
        rows = head(problem, name, leaf)
        grad = head(problem, name, leaf.grad)
        if name not in problem.op.parameters:  # whose gradients are sums over all sequences
            rows, grad = rows[start:end], grad[start:end]
            got[name] = grad
        part.inputs[name] = rows.detach()
    reference = oracle.of(part)
    loop = oracle.of(part, torch.float32)
    bounds.assert_close(part, got, reference, loop)
