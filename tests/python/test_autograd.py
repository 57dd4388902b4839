"""The operators under torch's autograd: partial gradients, transforms, checkpointing."""

import dataclasses

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import deltaworks as dw
from cases import Case, build
from deltaworks import ops
from deltaworks.ops import last_plan
from run_op import assert_same_bits, call, leaves_of, plan_of, run, same_bits

SMALL = {"lengths": (17, 0, 20), "tail": 2, "heads": (2, 2, 4)}
SAFE = {**SMALL, "regime": "safe", "a_log": "fp32", "dt_bias": "fp32"}
FULL = [  # every tensor that the operation takes
    Case(**SAFE),
    Case(op="kda", **SAFE),
    Case(op="gdn2", guard=True, **SAFE),
    Case(op="gdp", steps=2, token_major=True, **SAFE),
    Case(op="mamba2", D="channel", z=True, dt_bias="fp32", **SMALL),
]
every_case = pytest.mark.parametrize("case", FULL, ids=lambda case: case.op)


def names_of(case):
    return build(case).op.differentiable


def forward(problem, requires_grad=(), **options):
    """(outputs, leaves); leaves keep the inputs' strides, `requires_grad` names those that do."""
    leaves = leaves_of(problem, requires_grad)
    return call(problem, leaves, **options), leaves


@every_case
def test_a_single_gradient_is_the_one_of_the_full_backward(case):
    problem = build(case)
    expected = run(problem)
    for name in problem.op.differentiable:
        outputs, leaves = forward(problem, [name])
        torch.autograd.backward(outputs, [problem.d_o, problem.d_final])
        assert last_plan() == plan_of(problem, "cpu")
        assert same_bits(leaves[name].grad, expected[name]), name
        assert all(leaf.grad is None for other, leaf in leaves.items() if other != name)


@every_case
def test_pairs_of_gradients_are_those_of_the_full_backward(case):
    problem = build(case)
    expected = run(problem)
    wanted = problem.op.differentiable
    for first in range(len(wanted)):
        for second in range(first):
            names = [wanted[first], wanted[second]]
            outputs, leaves = forward(problem, names)
            flows = [problem.d_o, problem.d_final]
            grads = torch.autograd.grad(outputs, [leaves[name] for name in names], flows)
            assert_same_bits(dict(zip(names, grads, strict=True)), expected, names)


@every_case
def test_nothing_requires_grad_without_an_input_that_does(case):
    (o, final_state), _ = forward(build(case))
    assert not o.requires_grad and not final_state.requires_grad
    with torch.no_grad():
        (o, final_state), _ = forward(build(case), names_of(case))
    assert not o.requires_grad and not final_state.requires_grad
    with torch.inference_mode():
        assert same_bits(forward(build(case))[0][0], o)


@every_case
def test_a_sum_s_expanded_gradient_acts_as_ones(case):
    problem = build(case)
    (o, final_state), leaves = forward(problem, names_of(case))
    (o.sum() + final_state.sum()).backward()
    problem.d_o = torch.ones_like(problem.d_o)
    problem.d_final = torch.ones_like(problem.d_final)
    assert_same_bits(
        {name: leaf.grad for name, leaf in leaves.items()}, run(problem), names_of(case)
    )


@every_case
def test_transposed_gradients_act_as_contiguous_ones(case):
    problem = build(case)
    expected = run(problem)
    problem.d_o = problem.d_o.transpose(0, 2).contiguous().transpose(0, 2)
    problem.d_final = problem.d_final.transpose(2, 3).contiguous().transpose(2, 3)
    assert not problem.d_o.is_contiguous() and not problem.d_final.is_contiguous()
    assert_same_bits(run(problem), expected)


@pytest.mark.parametrize("used", ["o", "final_state"])
@every_case
def test_a_missing_output_gradient_counts_as_zeros(case, used):
    problem = build(case)
    (o, final_state), leaves = forward(problem, names_of(case))
    if used == "o":
        o.backward(problem.d_o)
        problem.d_final = torch.zeros_like(problem.d_final)
    else:
        final_state.backward(problem.d_final)
        problem.d_o = torch.zeros_like(problem.d_o)
    got = {name: leaf.grad for name, leaf in leaves.items()}
    expected = run(problem)
    for name in names_of(case):
        # a zero may come with either sign
        assert torch.equal(got[name], expected[name]), name
    assert got[problem.op.v].any()


@every_case
def test_without_a_final_state_only_o_flows(case):
    problem = build(case)
    (o, final_state), leaves = forward(problem, names_of(case), output_final_state=False)
    assert final_state is None
    o.backward(problem.d_o)
    problem.d_final = None
    expected = run(problem)
    assert_same_bits({name: leaf.grad for name, leaf in leaves.items()}, expected, names_of(case))


@every_case
def test_a_retained_graph_gives_the_same_gradients_twice(case):
    problem = build(case)
    outputs, leaves = forward(problem, names_of(case))
    flows = [problem.d_o, problem.d_final]
    first = torch.autograd.grad(outputs, list(leaves.values()), flows, retain_graph=True)
    second = torch.autograd.grad(outputs, list(leaves.values()), flows)
    assert all(same_bits(a, b) for a, b in zip(first, second, strict=True))


@every_case
def test_a_second_derivative_raises(case):
    problem = build(case)
    (o, _), leaves = forward(problem, names_of(case))
    (grad,) = torch.autograd.grad(o.sum(), leaves[problem.op.v], create_graph=True)
    with pytest.raises(RuntimeError, match="(?i)second|differentiable|twice"):
        torch.autograd.grad(grad.sum(), leaves[problem.op.q])


@every_case
def test_changing_a_saved_input_in_place_raises_in_the_backward(case):
    problem = build(case)
    (o, _), leaves = forward(problem, [problem.op.v])
    leaves[problem.op.k].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


@every_case
def test_inputs_keep_their_versions(case):
    problem = build(case)
    (o, _), leaves = forward(problem, names_of(case))
    o.sum().backward()
    assert all(leaf._version == 0 for leaf in leaves.values())


@pytest.mark.parametrize("reentrant", [False, True])
@every_case
def test_activation_checkpointing_gives_the_same_bits(case, reentrant):
    problem = build(case)
    expected = run(problem)
    leaves = leaves_of(problem, problem.op.differentiable)

    def block(*tensors):
        return call(problem, dict(zip(leaves, tensors, strict=True)))

    outputs = checkpoint(block, *leaves.values(), use_reentrant=reentrant)
    torch.autograd.backward(outputs, [problem.d_o, problem.d_final])
    assert last_plan() == plan_of(problem, "cpu")
    got = {name: leaf.grad for name, leaf in leaves.items()}
    got.update(o=outputs[0].detach(), final_state=outputs[1].detach())
    assert_same_bits(got, expected)


@every_case
def test_saved_tensors_are_unpacked_once(case):
    problem = build(case)
    unpacked = []

    def unpack(index_and_tensor):
        unpacked.append(index_and_tensor[0])
        return index_and_tensor[1]

    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return len(packed), tensor.clone()

    expected = run(problem)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        outputs, leaves = forward(problem, names_of(case))
    torch.autograd.backward(outputs, [problem.d_o, problem.d_final])
    assert packed and sorted(unpacked) == list(range(1, len(packed) + 1))
    assert_same_bits({name: leaf.grad for name, leaf in leaves.items()}, expected, names_of(case))


@every_case
def test_autocast_casts_nothing(case):
    for io in ("fp32", "fp16"):
        problem = build(dataclasses.replace(case, io=io))
        expected = run(problem)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = run(problem)
        assert_same_bits(got, expected)


def function_of_v(problem):
    others = {name: x for name, x in problem.inputs.items() if name != problem.op.v}
    operator = getattr(ops, problem.op.name)
    return lambda v: operator(**{problem.op.v: v}, **others, **problem.options)[0]


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, v: torch.vmap(f)(v[None]),
        lambda f, v: torch.func.grad(lambda x: f(x).sum())(v),
        lambda f, v: torch.func.vjp(f, v)[1](torch.ones(39, 4, 8)),
        lambda f, v: torch.func.jvp(f, (v,), (v,)),
        lambda f, v: torch.func.jacrev(f)(v),
    ],
    ids=["vmap", "grad", "vjp", "jvp", "jacrev"],
)
@every_case
def test_function_transforms_raise_clearly(case, transform):
    problem = build(case)
    with pytest.raises(dw.NotSupportedError, match=f"^{problem.op.name}: .*torch.func"):
        transform(function_of_v(problem), problem.inputs[problem.op.v])


@every_case
def test_forward_mode_differentiation_raises_clearly(case):
    problem = build(case)
    v = problem.inputs[problem.op.v]
    with torch.autograd.forward_ad.dual_level():
        v = torch.autograd.forward_ad.make_dual(v, v)
        with pytest.raises(dw.NotSupportedError, match=f"^{problem.op.name}: "):
            function_of_v(problem)(v)


@every_case
def test_gradients_accumulate_over_two_uses(case):
    problem = build(case)
    expected = run(problem)[problem.op.v]
    v = problem.inputs[problem.op.v].clone().requires_grad_()
    for _ in range(2):
        outputs = call(problem, {**leaves_of(problem), problem.op.v: v})
        torch.autograd.backward(outputs, [problem.d_o, problem.d_final])
    assert torch.equal(v.grad, expected + expected)
