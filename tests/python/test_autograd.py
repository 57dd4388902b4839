"""The operator under torch's autograd: gradcheck, partial gradients, transforms, checkpointing."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import deltaworks as dw
from cases import Case, build
from deltaworks.ops import gated_delta_net, last_plan
from run_op import CPU, assert_same_bits, run, same_bits

NAMES = ("q", "k", "v", "g", "beta", "a_log", "dt_bias", "initial_state")
FULL = Case(
    lengths=(17, 0, 20), tail=2, heads=(2, 2, 4), regime="safe", a_log="fp32", dt_bias="fp32"
)
FP64 = {"io": "fp64", "gate": "fp64", "beta": "fp64", "state": "fp64"}
GRADCHECK = [
    Case(l2norm=False),
    Case(),
    Case(sigmoid="sigmoid"),
    Case(sigmoid="doubled"),
    Case(regime="safe"),
    Case(regime="safe", a_log="fp64", dt_bias="fp64"),
    Case(regime="safe", heads=(4, 1, 1), a_log="fp64"),
    Case(regime="linear"),
    Case(regime="weak", heads=(6, 2, 2)),
    Case(heads=(2, 4, 4), scale=0.3),
    Case(heads=(2, 2, 4), state=None),
    Case(regime="beta_two", l2norm=False),
]


@pytest.mark.parametrize("case", GRADCHECK, ids=lambda c: f"{c}-{c.sigmoid}-{c.a_log}-{c.l2norm}")
def test_gradcheck_in_float64(case):
    small = {"lengths": (3, 0, 2), "tail": 1, "K": 3, "V": 2}
    state = None if case.state is None else "fp64"
    problem = build(Case(**{**vars(case), **FP64, **small, "state": state}))
    if case.regime == "linear":  # finite differences need room below and above alpha
        problem.inputs["g"] = problem.inputs["g"].clamp(0.1, 0.9)
    names = [name for name in NAMES if name in problem.inputs]

    def call(*leaves):
        o, final_state = gated_delta_net(
            **dict(zip(names, leaves, strict=True)),
            cu_seqlens=problem.inputs["cu_seqlens"],
            output_final_state=True,
            **problem.options,
        )
        assert last_plan() == "gdn_reference"
        return o, final_state

    if case.sigmoid != "no":  # the sigmoid's rounding is 0 in float64
        assert problem.inputs["beta"].dtype == torch.float64
    leaves = [problem.inputs[name].clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(call, leaves, atol=1e-6, rtol=1e-5)


def forward(problem, requires_grad=(), output_final_state=True, **options):
    """(outputs, leaves); leaves keep the inputs' strides, `requires_grad` names those that do."""
    leaves = {name: problem.inputs[name].detach() for name in NAMES if name in problem.inputs}
    for name in requires_grad:
        leaves[name].requires_grad_()
    outputs = gated_delta_net(
        **leaves,
        cu_seqlens=problem.inputs["cu_seqlens"],
        output_final_state=output_final_state,
        plan_name=CPU,
        **problem.options,
        **options,
    )
    assert last_plan() == CPU
    return outputs, leaves


@pytest.mark.parametrize("name", NAMES)
def test_a_single_gradient_is_the_one_of_the_full_backward(name):
    problem = build(FULL)
    expected = run(problem)
    outputs, leaves = forward(problem, [name])
    torch.autograd.backward(outputs, [problem.d_o, problem.d_final])
    assert last_plan() == CPU
    assert same_bits(leaves[name].grad, expected[name])
    assert all(leaf.grad is None for other, leaf in leaves.items() if other != name)


def test_pairs_of_gradients_are_those_of_the_full_backward():
    problem = build(FULL)
    expected = run(problem)
    for first in range(len(NAMES)):
        for second in range(first):
            names = [NAMES[first], NAMES[second]]
            outputs, leaves = forward(problem, names)
            flows = [problem.d_o, problem.d_final]
            grads = torch.autograd.grad(outputs, [leaves[name] for name in names], flows)
            assert_same_bits(dict(zip(names, grads, strict=True)), expected, names)


def test_nothing_requires_grad_without_an_input_that_does():
    (o, final_state), _ = forward(build(FULL))
    assert not o.requires_grad and not final_state.requires_grad
    with torch.no_grad():
        (o, final_state), _ = forward(build(FULL), NAMES)
    assert not o.requires_grad and not final_state.requires_grad
    with torch.inference_mode():
        assert same_bits(forward(build(FULL))[0][0], o)


def test_a_sum_s_expanded_gradient_acts_as_ones():
    problem = build(FULL)
    (o, final_state), leaves = forward(problem, NAMES)
    (o.sum() + final_state.sum()).backward()
    problem.d_o = torch.ones_like(problem.d_o)
    problem.d_final = torch.ones_like(problem.d_final)
    assert_same_bits({name: leaf.grad for name, leaf in leaves.items()}, run(problem), NAMES)


def test_transposed_gradients_act_as_contiguous_ones():
    problem = build(FULL)
    expected = run(problem)
    problem.d_o = problem.d_o.transpose(0, 2).contiguous().transpose(0, 2)
    problem.d_final = problem.d_final.transpose(2, 3).contiguous().transpose(2, 3)
    assert not problem.d_o.is_contiguous() and not problem.d_final.is_contiguous()
    assert_same_bits(run(problem), expected)


@pytest.mark.parametrize("used", ["o", "final_state"])
def test_a_missing_output_gradient_counts_as_zeros(used):
    problem = build(FULL)
    (o, final_state), leaves = forward(problem, NAMES)
    if used == "o":
        o.backward(problem.d_o)
        problem.d_final = torch.zeros_like(problem.d_final)
    else:
        final_state.backward(problem.d_final)
        problem.d_o = torch.zeros_like(problem.d_o)
    got = {name: leaf.grad for name, leaf in leaves.items()}
    expected = run(problem)
    for name in NAMES:
        # a zero may come with either sign
        assert torch.equal(got[name], expected[name]), name
    assert got["v"].any()


def test_without_a_final_state_only_o_flows():
    problem = build(FULL)
    (o, final_state), leaves = forward(problem, NAMES, output_final_state=False)
    assert final_state is None
    o.backward(problem.d_o)
    problem.d_final = None
    expected = run(problem)
    assert_same_bits({name: leaf.grad for name, leaf in leaves.items()}, expected, NAMES)


def test_a_retained_graph_gives_the_same_gradients_twice():
    problem = build(FULL)
    outputs, leaves = forward(problem, NAMES)
    flows = [problem.d_o, problem.d_final]
    first = torch.autograd.grad(outputs, list(leaves.values()), flows, retain_graph=True)
    second = torch.autograd.grad(outputs, list(leaves.values()), flows)
    assert all(same_bits(a, b) for a, b in zip(first, second, strict=True))


def test_a_second_derivative_raises():
    problem = build(FULL)
    (o, _), leaves = forward(problem, NAMES)
    (grad,) = torch.autograd.grad(o.sum(), leaves["v"], create_graph=True)
    with pytest.raises(RuntimeError, match="(?i)second|differentiable|twice"):
        torch.autograd.grad(grad.sum(), leaves["q"])


def test_changing_a_saved_input_in_place_raises_in_the_backward():
    problem = build(FULL)
    (o, _), leaves = forward(problem, ["v"])
    leaves["k"].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_inputs_keep_their_versions():
    problem = build(FULL)
    (o, _), leaves = forward(problem, NAMES)
    o.sum().backward()
    assert all(leaf._version == 0 for leaf in leaves.values())


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_gives_the_same_bits(reentrant):
    problem = build(FULL)
    expected = run(problem)
    leaves = {name: problem.inputs[name].clone().requires_grad_() for name in NAMES}

    def block(*tensors):
        return gated_delta_net(
            **dict(zip(NAMES, tensors, strict=True)),
            cu_seqlens=problem.inputs["cu_seqlens"],
            output_final_state=True,
            plan_name=CPU,
            **problem.options,
        )

    outputs = checkpoint(block, *leaves.values(), use_reentrant=reentrant)
    torch.autograd.backward(outputs, [problem.d_o, problem.d_final])
    assert last_plan() == CPU
    got = {name: leaf.grad for name, leaf in leaves.items()}
    got.update(o=outputs[0].detach(), final_state=outputs[1].detach())
    assert_same_bits(got, expected)


def test_saved_tensors_are_unpacked_once():
    problem = build(FULL)
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
        outputs, leaves = forward(problem, NAMES)
    torch.autograd.backward(outputs, [problem.d_o, problem.d_final])
    assert packed and sorted(unpacked) == list(range(1, len(packed) + 1))
    assert_same_bits({name: leaf.grad for name, leaf in leaves.items()}, expected, NAMES)


def test_autocast_casts_nothing():
    for io in ("fp32", "fp16"):
        problem = build(Case(io=io))
        expected = run(problem)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = run(problem)
        assert_same_bits(got, expected)


def function_of_v(problem):
    others = {name: x for name, x in problem.inputs.items() if name != "v"}
    return lambda v: gated_delta_net(v=v, **others, **problem.options)[0]


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, v: torch.vmap(f)(v[None]),
        lambda f, v: torch.func.grad(lambda x: f(x).sum())(v),
        lambda f, v: torch.func.vjp(f, v)[1](torch.ones(57, 2, 8)),
        lambda f, v: torch.func.jvp(f, (v,), (v,)),
        lambda f, v: torch.func.jacrev(f)(v),
    ],
    ids=["vmap", "grad", "vjp", "jvp", "jacrev"],
)
def test_function_transforms_raise_clearly(transform):
    problem = build(Case())
    with pytest.raises(dw.NotSupportedError, match="^gated_delta_net: .*torch.func"):
        transform(function_of_v(problem), problem.inputs["v"])


def test_forward_mode_differentiation_raises_clearly():
    problem = build(Case())
    with torch.autograd.forward_ad.dual_level():
        v = torch.autograd.forward_ad.make_dual(problem.inputs["v"], problem.inputs["v"])
        with pytest.raises(dw.NotSupportedError, match="^gated_delta_net: "):
            function_of_v(problem)(v)


def test_gradients_accumulate_over_two_uses():
    problem = build(FULL)
    expected = run(problem)["v"]
    v = problem.inputs["v"].clone().requires_grad_()
    for _ in range(2):
        outputs = gated_delta_net(
            **{**problem.inputs, "v": v}, output_final_state=True, plan_name=CPU, **problem.options
        )
        torch.autograd.backward(outputs, [problem.d_o, problem.d_final])
    assert torch.equal(v.grad, expected + expected)
