"""overwrite_initial_state: the final states replace the initial ones, whichever door is taken."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import deltaworks.numpy
import layouts
from cases import Case, build
from deltaworks import ops
from deltaworks.ops import last_plan, workspace_bytes
from run_op import plan_of, run, same_bits
from test_dlpack_capsules import FLOAT, produce
from test_memory import allocated_by, size
from test_numpy_kit import to_numpy, to_torch
from test_numpy_memory import peak_of

CASES = [
    Case(lengths=(17, 0, 70), tail=3, heads=(2, 2, 4), K=33, V=20),
    Case(lengths=(40, 5), heads=(4, 4, 1), K=64, V=64, io="bf16", state="bf16"),
    Case(lengths=(0, 33), heads=(6, 2, 2), io="fp16", state="fp16", regime="safe"),
]
SHAPE = {"lengths": (17, 0, 30), "tail": 3, "heads": (2, 2, 4), "K": 33, "V": 20}
OTHERS = [
    Case(op="kda", **SHAPE),
    Case(op="gdn2", io="bf16", state="fp16", **SHAPE),
    Case(op="gdp", steps=2, token_major=True, **SHAPE),
    Case(op="mamba2", D="head", z=True, io="bf16", state="bf16", **SHAPE),
]
every_case = pytest.mark.parametrize("case", CASES + OTHERS, ids=str)
EAGER = "no compiler"


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def overwrite(inputs, options, op="gated_delta_net", **changes):
    return getattr(ops, op)(**inputs, **options, **changes, overwrite_initial_state=True)


def through(backend, function):
    if backend == EAGER:
        return function
    return torch.compile(function, fullgraph=True, backend=backend)


def with_state(problem, state):
    return {**problem.inputs, "initial_state": state}


@pytest.mark.parametrize("layout", [torch.clone, *layouts.ALL], ids=lambda f: f.__name__)
@pytest.mark.parametrize("engine", ["cpu", "reference"])
@every_case
def test_a_tensor_takes_the_final_states(case, engine, layout):
    problem = build(case)
    plan_name = plan_of(problem, engine)
    expected = run(problem, plan_name, backward=False)
    state = layout(problem.inputs["initial_state"])
    version = state._version
    for asked in (False, True):
        state.copy_(problem.inputs["initial_state"])
        o, final_state = overwrite(
            with_state(problem, state),
            problem.options,
            problem.op.name,
            output_final_state=asked,
            plan_name=plan_name,
        )
        assert last_plan() == plan_name
        assert final_state is state
        assert same_bits(o, expected["o"]) and same_bits(state, expected["final_state"])
    assert state._version == version + 4


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_compiled_graph_overwrites_its_callers_tensor(case, backend):
    problem = build(case)
    expected = run(problem, backward=False)
    plan_name = plan_of(problem, "cpu")
    call = through(
        backend,
        lambda inputs: overwrite(inputs, problem.options, problem.op.name, plan_name=plan_name),
    )
    for layout in (torch.clone, layouts.padded_misaligned, layouts.outer_reversed):
        state = layout(problem.inputs["initial_state"])
        version = state._version
        o, final_state = call(with_state(problem, state))
        assert final_state is state and state._version > version
        assert same_bits(o, expected["o"]) and same_bits(state, expected["final_state"])


@pytest.mark.parametrize("backend", [EAGER, "eager", "aot_eager", "inductor"])
def test_amid_other_operations(backend):
    """Two calls on one state, read before, between and after them, and a part of a larger one."""
    problem = build(CASES[0])

    def steps(inputs, pool):
        state = pool[1:-1]
        before = state * 1
        o, _ = overwrite({**inputs, "initial_state": state}, problem.options)
        between = state * 1
        second, state = overwrite({**inputs, "initial_state": state}, problem.options)
        return o, second, before, between, state * 1

    inputs = {name: x for name, x in problem.inputs.items() if name != "initial_state"}
    first = run(problem, backward=False)
    second = run(problem, backward=False, initial_state=first["final_state"])
    initial_state = problem.inputs["initial_state"]
    pool = torch.nn.functional.pad(initial_state, (0, 0, 0, 0, 0, 0, 1, 1), value=7.0)
    got = through(backend, steps)(inputs, pool)
    expected = (first["o"], second["o"], initial_state, first["final_state"], second["final_state"])
    assert all(same_bits(a, b) for a, b in zip(got, expected, strict=True))
    assert same_bits(pool[1:-1], second["final_state"])
    assert (pool[0] == 7).all() and (pool[-1] == 7).all()


@pytest.mark.parametrize("backend", [EAGER, "aot_eager"])
@pytest.mark.parametrize("name", ["initial_state", "q"])
def test_gradients_are_refused_and_parameters_without_grad_mode_are_not(name, backend):
    problem = build(CASES[0])
    expected = run(problem, backward=False)
    inputs = with_state(problem, problem.inputs["initial_state"].clone())
    inputs[name] = inputs[name].clone().requires_grad_()
    call = through(backend, lambda tensors: overwrite(tensors, problem.options))
    text = "^gated_delta_net: overwrite_initial_state excludes autograd$"
    with pytest.raises(ValueError, match=text):
        call(inputs)
    state = inputs["initial_state"]
    assert same_bits(state, problem.inputs["initial_state"])
    with torch.no_grad():
        o, final_state = call(inputs)
    assert final_state is state and state.requires_grad == (name == "initial_state")
    assert same_bits(o, expected["o"]) and same_bits(state, expected["final_state"])


@pytest.mark.parametrize("backend", [EAGER, "eager", "aot_eager"])
def test_autograd_notices_that_a_saved_state_changed(backend):
    problem = build(CASES[0])
    state, weight = problem.inputs["initial_state"], torch.tensor(2.0, requires_grad=True)
    product = (state * weight).sum()  # its backward reads the state
    through(backend, lambda inputs: overwrite(inputs, problem.options))(problem.inputs)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_a_copy_on_write_state_gets_memory_of_its_own():
    problem = build(CASES[0])
    expected = run(problem, backward=False)
    state = problem.inputs["initial_state"]
    before, lazy = state.clone(), torch._lazy_clone(state)
    overwrite(with_state(problem, lazy), problem.options)
    assert same_bits(state, before) and same_bits(lazy, expected["final_state"])


def test_inference_mode():
    problem = build(CASES[0])
    expected = run(problem, backward=False)
    with torch.inference_mode():
        state = problem.inputs["initial_state"].clone()
        assert overwrite(with_state(problem, state), problem.options)[1] is state
    assert same_bits(state, expected["final_state"])


def test_tensors_without_data():
    problem = build(CASES[0])
    o = run(problem, backward=False)["o"]
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(x) for name, x in problem.inputs.items()}
        results = [overwrite(fake, problem.options), fake]
    meta = {name: x.to("meta") for name, x in problem.inputs.items()}
    for (got, final_state), inputs in (results, (overwrite(meta, problem.options), meta)):
        assert final_state is inputs["initial_state"]
        assert (got.shape, got.dtype, got.stride()) == (o.shape, o.dtype, o.stride())


def test_the_dispatcher_operator_passes_opcheck():
    """torch's own checks, among them that it writes what its schema says and nothing else."""
    problem = build(CASES[0])
    recorded = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace == "deltaworks":
                recorded.append((function, args))
            return function(*args, **(kwargs or {}))

    with Recorder():
        overwrite(problem.inputs, problem.options)
    [(function, args)] = recorded
    assert function is torch.ops.deltaworks.forward_in_place.default
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(function, args, test_utils=tests)


def test_the_operator_that_may_not_write_does_not():
    """The forward's schema says that it writes nothing: it refuses the option that would."""
    problem = build(CASES[0])
    q, k, v, g, beta, cu_seqlens, state = problem.inputs.values()
    before = state.clone()
    tensors = [q, k, v, g, beta, cu_seqlens, state]
    ports = 0b1_1001_1111
    with pytest.raises(RuntimeError, match="only forward_in_place overwrites initial_state"):
        torch.ops.deltaworks.forward(0, 64, 0.0, "log", "", 0, 0, tensors, ports)
    assert same_bits(state, before)


def test_a_call_that_fails_writes_nothing():
    problem = build(CASES[0])
    state = problem.inputs["initial_state"]
    before, version = state.clone(), state._version
    inputs = {**problem.inputs, "cu_seqlens": torch.tensor([0, 17, 9, 87])}
    with pytest.raises(ValueError, match="cu_seqlens must not decrease"):
        overwrite(inputs, problem.options)
    assert same_bits(state, before) and state._version == version


def test_no_state_is_allocated():
    problem = build(Case(lengths=(100, 0, 157), heads=(2, 2, 4), K=48, V=40))

    def call():
        return overwrite(problem.inputs, problem.options)

    call()  # plans and pools are made once
    (o, _), total = allocated_by(call)
    assert total == size([o]) + workspace_bytes()

    inputs = {name: to_numpy(x) for name, x in problem.inputs.items()}
    (o, state), peak = peak_of(
        lambda: deltaworks.numpy.gated_delta_net(
            **inputs, **problem.options, overwrite_initial_state=True
        )
    )
    assert peak < o.nbytes + workspace_bytes() + state.nbytes


@pytest.mark.parametrize("layout", [torch.clone, *layouts.ALL], ids=lambda f: f.__name__)
@every_case
def test_an_array_takes_the_final_states(case, layout):
    problem = build(case)
    expected = run(problem, backward=False)
    tensor = layout(problem.inputs["initial_state"])
    inputs = {name: to_numpy(x) for name, x in problem.inputs.items()}
    for state in (to_numpy(tensor), tensor):  # NumPy's own, and one that speaks DLPack
        tensor.copy_(problem.inputs["initial_state"])
        o, final_state = getattr(deltaworks.numpy, problem.op.name)(
            **{**inputs, "initial_state": state},
            **problem.options,
            overwrite_initial_state=True,
            plan_name=plan_of(problem, "cpu"),
        )
        assert final_state is state
        assert same_bits(to_torch(o), expected["o"]) and same_bits(tensor, expected["final_state"])


def test_read_only_memory_is_refused():
    """An array that says so, and a capsule: those of test_dlpack_capsules.py do."""
    problem = build(CASES[0])
    inputs = {name: to_numpy(x) for name, x in problem.inputs.items()}
    array = inputs["initial_state"].copy()
    array.flags.writeable = False
    for state in (array, produce(array, FLOAT, 32)):
        arguments = {**inputs, "initial_state": state, **problem.options}
        assert deltaworks.numpy.gated_delta_net(**arguments)[0].any()  # may be read
        with pytest.raises(ValueError, match="initial_state is written and must not be read-only"):
            deltaworks.numpy.gated_delta_net(**arguments, overwrite_initial_state=True)
    assert (array == inputs["initial_state"]).all()


@pytest.mark.parametrize("tokens,sequences", [(0, 2), (5, 0)])
def test_states_without_tokens_stay(tokens, sequences):
    rows = torch.ones(tokens, 2, 4)
    state = torch.arange(sequences * 32.0).view(sequences, 2, 4, 4)
    inputs = dict(q=rows, k=rows, v=rows, g=rows[..., 0], beta=rows[..., 0])
    inputs |= dict(cu_seqlens=torch.zeros(sequences + 1, dtype=torch.int64))
    before = state.clone()
    o, final_state = overwrite({**inputs, "initial_state": state}, {})
    assert o.shape == rows.shape and not o.any()
    assert final_state is state and same_bits(state, before)


def test_decoding_in_place_is_decoding():
    """Bit for bit what separate states give, and to rounding what one call gives."""
    problem = build(Case(lengths=(30, 30), heads=(2, 2, 4)))
    expected = run(problem, backward=False)
    state = problem.inputs["initial_state"].clone()
    apart = state.clone()
    ones = torch.tensor([0, 1, 2])
    for t in range(30):
        rows = [t, 30 + t]
        step = {n: problem.inputs[n][rows] for n in ("q", "k", "v", "g", "beta")}
        step["cu_seqlens"] = ones
        o, _ = overwrite({**step, "initial_state": state}, problem.options)
        o_apart, apart = ops.gated_delta_net(
            **step, initial_state=apart, output_final_state=True, **problem.options
        )
        assert same_bits(o, o_apart) and same_bits(state, apart)
        assert (o - expected["o"][rows]).norm() < 1e-6 * expected["o"][rows].norm()
    assert (state - expected["final_state"]).norm() < 1e-6 * expected["final_state"].norm()
