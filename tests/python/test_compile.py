"""The operator under torch.compile(fullgraph=True) and FakeTensor: the eager call's results."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import layouts
import new_operations
from cases import Case, build
from deltaworks import ops
from deltaworks.ops import gated_delta_net, last_plan
from run_op import CPU, assert_same_bits, run, same_bits

CASES = [
    Case(tail=3, heads=(2, 2, 4)),
    Case(io="bf16", beta="io", gate="bf16", state="bf16", heads=(4, 4, 1), sigmoid="doubled"),
    Case(io="fp16", regime="safe", a_log="fp32", dt_bias="fp16", scale=0.3),
    Case(regime="linear", state=None, heads=(6, 2, 2)),
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def operator(options, output_final_state=True):
    def call(tensors):
        return gated_delta_net(
            **tensors, output_final_state=output_final_state, plan_name=CPU, **options
        )

    return call


def compiled_run(problem, backend, **compile_options):
    """As run(), through a compiled graph whose backward is compiled too."""
    call = torch.compile(
        operator(problem.options), fullgraph=True, backend=backend, **compile_options
    )
    leaves = {name: x.detach() for name, x in problem.inputs.items()}
    wanted = [name for name, x in leaves.items() if x.is_floating_point()]
    for name in wanted:
        leaves[name].requires_grad_()
    outputs = call(leaves)
    assert last_plan() == CPU
    flows = [problem.d_o, problem.d_final]
    grads = torch.autograd.grad(outputs, [leaves[name] for name in wanted], flows)
    assert last_plan() == CPU
    return {
        "o": outputs[0].detach(),
        "final_state": outputs[1].detach(),
        **dict(zip(wanted, grads, strict=True)),
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_compiled_graph_gives_the_eager_bits(case):
    problem = build(case)
    assert_same_bits(compiled_run(problem, "aot_eager"), run(problem))


def test_inductor_gives_the_eager_bits():
    problem = build(CASES[0])
    assert_same_bits(compiled_run(problem, "inductor"), run(problem))


def test_inductor_keeps_strided_inputs_of_computed_tensors():
    """The operator amid other operations that inductor may fuse and lay out anew."""
    problem = build(Case(io="bf16"))

    def block(x, tensors):
        q = (x * 2).transpose(0, 1).contiguous().transpose(0, 1)
        v = torch.nn.functional.silu(tensors["v"])
        o, _ = gated_delta_net(**{**tensors, "q": q, "v": v}, **problem.options)
        return o.float().square().sum()

    results = []
    for call in (block, torch.compile(block, fullgraph=True)):
        x = problem.inputs["q"].clone().requires_grad_()
        loss = call(x, problem.inputs)
        loss.backward()
        results.append((loss.detach(), x.grad))
    (loss, grad), (compiled_loss, compiled_grad) = results
    torch.testing.assert_close(compiled_loss, loss, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(compiled_grad, grad, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("used", ["o", "final_state"])
def test_a_compiled_graph_may_use_one_output_only(used):
    """The loss is a sum, so the gradient that flows in is expanded; the other output has none."""
    problem = build(CASES[0])
    call = operator(problem.options)

    def loss(tensors):
        o, final_state = call(tensors)
        return (o if used == "o" else final_state).sum()

    grads = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = {name: x.detach() for name, x in problem.inputs.items()}
        leaves["v"].requires_grad_()
        grads.extend(torch.autograd.grad(function(leaves), leaves["v"]))
    assert torch.equal(grads[0], grads[1]) and grads[0].any()


def test_the_dispatcher_operators_pass_opcheck():
    """torch's own checks: schema, fake kernels, dynamic shapes in compiled graphs."""
    problem = build(CASES[0])
    recorded = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace == "deltaworks":
                recorded.append((function, args))
            return function(*args, **(kwargs or {}))

    with Recorder():
        run(problem)
    assert len(recorded) == 2  # forward and backward
    for function, args in recorded:
        tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        args = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, args)
        torch.library.opcheck(function, args, test_utils=tests)


def test_without_final_state_and_gradients():
    problem = build(CASES[0])
    call = torch.compile(
        operator(problem.options, output_final_state=False), fullgraph=True, backend="aot_eager"
    )
    o, final_state = call(problem.inputs)
    assert final_state is None
    assert same_bits(o, run(problem, backward=False)["o"])


def test_strided_inputs_in_a_compiled_graph():
    problem = build(CASES[0])
    expected = run(problem)
    problem.inputs = {name: layouts.padded_misaligned(x) for name, x in problem.inputs.items()}
    assert_same_bits(compiled_run(problem, "aot_eager"), expected)


def test_dynamic_lengths_compile_at_most_twice():
    counter = CompileCounterWithBackend("aot_eager")
    call = torch.compile(
        operator({"use_qk_l2norm_in_kernel": True}), fullgraph=True, backend=counter, dynamic=True
    )
    for tokens in (9, 16, 31, 64, 70):
        problem = build(Case(lengths=(tokens, 3)))
        leaves = {name: x.detach() for name, x in problem.inputs.items()}
        leaves["v"].requires_grad_()
        outputs = call(leaves)
        (grad,) = torch.autograd.grad(outputs, leaves["v"], [problem.d_o, problem.d_final])
        expected = run(problem)
        assert same_bits(outputs[0], expected["o"]) and same_bits(grad, expected["v"])
    assert counter.frame_count <= 2


def test_the_number_of_sequences_is_dynamic_too():
    counter = CompileCounterWithBackend("aot_eager")
    call = torch.compile(
        operator({"use_qk_l2norm_in_kernel": True}), fullgraph=True, backend=counter, dynamic=True
    )
    for lengths in ((9, 3), (4, 4, 8), (5, 0, 6, 7), (3, 2, 2, 2, 9)):
        problem = build(Case(lengths=lengths))
        assert same_bits(call(problem.inputs)[0], run(problem, backward=False)["o"])
    assert counter.frame_count <= 2


def test_checkpointing_inside_a_compiled_graph():
    problem = build(CASES[0])
    call = operator(problem.options)

    def block(tensors):
        return checkpoint(call, tensors, use_reentrant=False)

    leaves = {name: x.detach() for name, x in problem.inputs.items()}
    leaves["k"].requires_grad_()
    outputs = torch.compile(block, fullgraph=True, backend="aot_eager")(leaves)
    (grad,) = torch.autograd.grad(outputs, leaves["k"], [problem.d_o, problem.d_final])
    assert same_bits(grad, run(problem)["k"])


@pytest.mark.parametrize("layout", [lambda x: x, *layouts.ALL], ids=lambda f: f.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_fake_results_look_like_the_real_ones(case, layout):
    """Shapes, dtypes, strides and devices of outputs and gradients."""
    problem = build(case)
    problem.inputs = {name: layout(x) for name, x in problem.inputs.items()}
    real = run(problem)
    with FakeTensorMode() as mode:
        leaves = {name: mode.from_tensor(x) for name, x in problem.inputs.items()}
        wanted = [name for name, x in leaves.items() if x.is_floating_point()]
        for name in wanted:
            leaves[name].requires_grad_()
        outputs = operator(problem.options)(leaves)
        flows = [mode.from_tensor(problem.d_o), mode.from_tensor(problem.d_final)]
        grads = torch.autograd.grad(outputs, [leaves[name] for name in wanted], flows)
    fake = dict(zip(("o", "final_state", *wanted), (*outputs, *grads), strict=True))
    for name, value in fake.items():
        assert look(value) == look(real[name]), name


def look(x):
    return x.shape, x.dtype, x.stride(), x.device, x.storage_offset()


def test_meta_tensors_give_meta_results():
    problem = build(CASES[0])
    real = run(problem, backward=False)
    o, final_state = operator(problem.options)({n: x.to("meta") for n, x in problem.inputs.items()})
    for value, name in ((o, "o"), (final_state, "final_state")):
        assert value.device.type == "meta"
        assert (value.shape, value.dtype) == (real[name].shape, real[name].dtype)


@pytest.mark.parametrize("name", new_operations.calls())
def test_every_operation_compiles_and_has_fake_results(name):
    """Outputs and all gradients: the eager bits from a compiled graph, their looks from fakes."""
    arguments = new_operations.calls()[name]
    names = [n for n, x in arguments.items() if torch.is_tensor(x) and x.is_floating_point()]

    def results(operator, convert=lambda x: x):
        leaves = {n: convert(x) if torch.is_tensor(x) else x for n, x in arguments.items()}
        for n in names:
            leaves[n] = leaves[n].detach().requires_grad_()
        outputs = operator(leaves)
        flows = [torch.ones_like(x) for x in outputs]
        return (*outputs, *torch.autograd.grad(outputs, [leaves[n] for n in names], flows))

    def call(leaves):
        return getattr(ops, name)(**leaves, output_final_state=True)

    eager = results(call)
    compiled = results(torch.compile(call, fullgraph=True, backend="aot_eager"))
    with FakeTensorMode() as mode:
        fake = results(call, mode.from_tensor)
    for real, other, looks in zip(eager, compiled, fake, strict=True):
        assert same_bits(real, other) and look(real) == look(looks)
