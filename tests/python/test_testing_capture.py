"""deltaworks.testing.capture: a call that was made can be made again."""

import os

import numpy as np
import pytest
import safetensors
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import deltaworks.numpy
from deltaworks import NotSupportedError, Problem, _hooks, _library, ops
from deltaworks.testing import capture, make_inputs, read_capture, run_problem
from deltaworks.testing.arrays import same_bits

STRIDED = "gdn:fwd:bf16:N2T12H2K8V4:l2norm:scale=0.5:g=bf16:beta=bf16:state=bf16:final:q@-20x9x1"


def numpy_call(inputs, **options):
    return deltaworks.numpy.gated_delta_net(**inputs, **options)


def torch_leaves(dtype=torch.float32, tokens=9, heads=2):
    random = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.rand(*shape, generator=random).to(dtype).requires_grad_()

    leaves = {name: draw(tokens, heads, 4) for name in "qkv"}
    leaves |= {"g": draw(tokens, heads), "beta": draw(tokens, heads)}
    with torch.no_grad():
        leaves["g"].neg_()
    return leaves | {"cu_seqlens": torch.tensor([0, 4, tokens])}


def test_a_numpy_call(tmp_path):
    problem = Problem(STRIDED)
    inputs = make_inputs(problem)
    path = tmp_path / "call.safetensors"
    with capture(path) as seen:
        o, state = numpy_call(
            inputs, use_qk_l2norm_in_kernel=True, scale=0.5, output_final_state=True
        )
    assert seen.problem == problem and seen.calls == 1
    read, arrays = read_capture(path)
    assert read == problem and list(arrays) == list(inputs)
    for name, array in arrays.items():
        assert same_bits(array, inputs[name]) and array.strides == inputs[name].strides, name
    again = run_problem(read, arrays)
    assert same_bits(again["o"], o) and same_bits(again["final_state"], state)
    assert os.listdir(tmp_path) == ["call.safetensors"]


def test_a_call_on_a_card_is_kept_for_the_cpu(tmp_path):
    here = Problem("gdn:fwd:bf16:N1T9H2K16V16")
    path = tmp_path / "call.safetensors"
    with capture(path) as seen:
        seen(Problem(f"{here}:device=cuda0").struct(), make_inputs(here))
    assert str(seen.problem) == f"{here}:device=cuda0"
    read, arrays = read_capture(path)
    assert read == here
    assert np.isfinite(run_problem(read, arrays)["o"].astype(np.float32)).all()


def test_the_metadata(tmp_path):
    problem, path = Problem(STRIDED), tmp_path / "call.safetensors"
    with capture(path):
        numpy_call(
            make_inputs(problem),
            use_qk_l2norm_in_kernel=True,
            scale=0.5,
            output_final_state=True,
        )
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {
            "format": "deltaworks call 1",
            "problem": str(problem),
            "op": "gated_delta_net",
            "pass": "forward",
            "tensors": "q k v g beta cu_seqlens initial_state",
            "deltaworks": "0.1.0",
            "build": _library.library().dw_build().decode(),
            "isa": _library.cpu_isa()[0],
        }
        assert sorted(file.keys()) == sorted(problem.inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_torch_calls_forward_and_backward(tmp_path, dtype):
    leaves = torch_leaves(dtype)
    if dtype in (torch.bfloat16, torch.float16):
        leaves["beta"] = leaves["beta"].detach().float().requires_grad_()
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
    weight = torch.linspace(-1, 1, 72).view(9, 2, 4).to(dtype)
    first, second = tmp_path / "forward.safetensors", tmp_path / "backward.safetensors"
    with capture(first), capture(second, call=1) as inner:
        o = ops.gated_delta_net(**leaves)[0]
        gradients = torch.autograd.grad(o, wanted, weight)
    assert inner.calls == 2
    problem, arrays = read_capture(first)
    assert (problem.pass_, problem.tensors["q"].dtype) == ("forward", str(dtype)[6:])
    assert problem.flags & _library.REQUIRES_GRADIENT
    got = run_problem(problem, arrays)["o"]
    assert np.array_equal(got.astype(np.float64), o.detach().double().numpy())
    problem, arrays = read_capture(second)
    assert problem.pass_ == "backward"
    got = run_problem(problem, arrays)
    for name, gradient in zip(("dq", "dk", "dv", "dg", "dbeta"), gradients, strict=True):
        assert np.array_equal(got[name].astype(np.float64), gradient.double().numpy()), name


def test_expanded_and_sliced_tensors(tmp_path):
    leaves = torch_leaves()
    joint = torch.rand(9, 2, 13)
    leaves["q"], leaves["k"] = joint[..., :4], joint[..., 5:9]
    leaves["g"] = torch.tensor(-0.5).expand(9, 2)
    with torch.no_grad(), capture(tmp_path / "call.safetensors"):
        o = ops.gated_delta_net(**leaves)[0]
    problem, arrays = read_capture(tmp_path / "call.safetensors")
    assert problem.tensors["k"].strides == (26, 13, 1) and problem.tensors["g"].strides == (0, 0)
    assert np.array_equal(run_problem(problem, arrays)["o"], o.numpy())
    assert (tmp_path / "call.safetensors").stat().st_size < 3000


def test_calls_that_fail(tmp_path):
    leaves, path = torch_leaves(), tmp_path / "call.safetensors"
    leaves["cu_seqlens"] = torch.tensor([0, 7, 5])
    with pytest.raises(ValueError, match="must not decrease, got 7 then 5"), capture(path):
        ops.gated_delta_net(**leaves)
    problem, arrays = read_capture(path)
    assert arrays["cu_seqlens"].tolist() == [0, 7, 5]
    with pytest.raises(ValueError, match="must not decrease, got 7 then 5"):
        run_problem(problem, arrays)


@pytest.mark.parametrize("torch_call", [False, True])
def test_states_are_those_from_before_a_call_that_overwrites_them(tmp_path, torch_call):
    problem = Problem("gdn:fwd:fp32:N2T9H2K4V4:state:overwrite")
    inputs, path = make_inputs(problem), tmp_path / "call.safetensors"
    before = inputs["initial_state"].copy()
    with capture(path) as seen:
        if torch_call:
            tensors = {name: torch.from_numpy(x) for name, x in inputs.items()}
            o = ops.gated_delta_net(**tensors, overwrite_initial_state=True)[0].numpy()
        else:
            o, _ = numpy_call(inputs, overwrite_initial_state=True)
    read, arrays = read_capture(path)
    assert read == seen.problem.pinned(None) and read.overwrites
    assert same_bits(arrays["initial_state"], before)
    again = run_problem(read, arrays)
    assert same_bits(again["o"], o)
    assert same_bits(again["final_state"], inputs["initial_state"])
    assert not same_bits(again["final_state"], before)


def test_calls_that_no_engine_takes(tmp_path):
    problem = Problem("gdn:fwd:fp32:N2T9H2K4V4")
    inputs, path = make_inputs(problem), tmp_path / "call.safetensors"
    with pytest.raises(NotSupportedError), capture(path):
        numpy_call(inputs, checkpoint_every_n_tokens=16)
    read, _ = read_capture(path)
    assert str(read) == "gdn:fwd:fp32:N2T9H2K4V4:every=16"


def test_calls_that_are_not_valid_have_no_problem(tmp_path):
    problem = Problem("gdn:fwd:fp32:N2T9H2K4V4")
    inputs, path = make_inputs(problem), tmp_path / "call.safetensors"
    inputs["v"] = inputs["v"][:-1]
    with pytest.raises(ValueError, match=r"v must have shape"), capture(path) as seen:
        numpy_call(inputs)
    assert seen.calls == 1 and seen.problem is None and not path.exists()


def test_only_the_chosen_call_is_written(tmp_path):
    problem, path = Problem("gdn:fwd:fp32:N1T3H1K4V4"), tmp_path / "call.safetensors"
    calls = [make_inputs(problem, seed) for seed in range(3)]
    with capture(path, call=1) as seen:
        for inputs in calls:
            numpy_call(inputs)
    assert seen.calls == 3
    assert same_bits(read_capture(path)[1]["q"], calls[1]["q"])


def test_a_call_that_is_not_made(tmp_path):
    problem, path = Problem("gdn:fwd:fp32:N1T3H1K4V4"), tmp_path / "call.safetensors"
    expected = (
        "call 1 was not seen, the block made 1 operator calls; calls inside graphs of "
        "torch.compile and on tensors without data cannot be captured"
    )
    with pytest.raises(RuntimeError, match=expected):
        with capture(path, call=1):
            numpy_call(make_inputs(problem))
    assert not path.exists()
    with pytest.raises(ValueError, match="call must be >= 0, got -1"), capture(path, call=-1):
        pass


def test_tensors_without_data_are_not_calls(tmp_path):
    """Forward and backward; the user's calls work as without the capture."""
    path = tmp_path / "call.safetensors"
    leaves = torch_leaves()
    with capture(path) as seen:
        with FakeTensorMode() as mode:
            fake = {name: mode.from_tensor(x) for name, x in leaves.items()}
            o = ops.gated_delta_net(**fake)[0]
            o.backward(torch.ones_like(o))
            assert fake["q"].grad.shape == (9, 2, 4)
        meta = {name: x.detach().to("meta") for name, x in leaves.items()}
        assert ops.gated_delta_net(**meta)[0].device.type == "meta"
        assert seen.calls == 0 and not path.exists()
        ops.gated_delta_net(**leaves)
    assert seen.calls == 1 and read_capture(path)[0] == seen.problem


def test_calls_in_compiled_graphs_are_not_seen(tmp_path):
    leaves = torch_leaves()
    call = torch.compile(lambda x: ops.gated_delta_net(**x)[0], fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match="made 0 operator calls; calls inside graphs of torch"):
        with capture(tmp_path / "call.safetensors"):
            call(leaves)


def test_a_call_that_is_not_valid_and_caught(tmp_path):
    with pytest.raises(RuntimeError, match="capture: call 0 is not valid, nothing was written"):
        with capture(tmp_path / "call.safetensors"):
            with pytest.raises(ValueError, match="v must have shape"):
                ops.gated_delta_net(**torch_leaves() | {"v": torch.zeros(8, 2, 4)})


def test_the_hook_is_gone_afterwards(tmp_path):
    assert _hooks.call_hook is None
    with pytest.raises(KeyError), capture(tmp_path / "call.safetensors"):
        raise KeyError("from the block")
    assert _hooks.call_hook is None


def test_the_folder_must_be_there(tmp_path):
    problem = Problem("gdn:fwd:fp32:N1T3H1K4V4")
    with pytest.raises(FileNotFoundError), capture(tmp_path / "none" / "call.safetensors"):
        numpy_call(make_inputs(problem))
