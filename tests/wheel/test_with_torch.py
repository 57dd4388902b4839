"""An installed deltaworks beside torch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import deltaworks
from deltaworks.ops import gated_delta_net, last_plan
from token_loop import distance, make_inputs, token_loop


def test_the_installed_package_is_tested():
    assert Path(deltaworks.__file__).is_relative_to(sys.prefix)
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    ours = [Path(path) for path in loaded if "libdeltaworks" in path]
    assert {path.name for path in ours} == {"libdeltaworks.so.0", "libdeltaworks_torch.so"}
    assert all(path.is_relative_to(sys.prefix) for path in ours)


@pytest.mark.parametrize(
    "name", ["deltaworks", "deltaworks.cli", "deltaworks.numpy", "deltaworks.testing"]
)
def test_import_leaves_torch_alone(name):
    code = f"import sys, {name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_operator():
    inputs = make_inputs()
    wanted = token_loop(inputs)
    tensors = {name: torch.from_numpy(array) for name, array in inputs._asdict().items()}
    flow = tensors.pop("flow")
    for name in tensors.keys() - {"cu_seqlens"}:
        tensors[name].requires_grad_()
    o, final_state = gated_delta_net(**tensors, output_final_state=True)
    assert last_plan() == "gdn_cpu"
    o.backward(flow)
    got = {"o": o, "final_state": final_state, "d_initial_state": tensors["initial_state"].grad}
    got |= {f"d{name}": tensors[name].grad for name in ("q", "k", "v", "g", "beta")}
    errors = {name: distance(got[name].detach().numpy(), wanted[name]) for name in wanted}
    assert got.keys() == errors.keys()
    assert max(errors.values()) < 2e-6, errors


def test_operator_in_a_compiled_graph():
    inputs = make_inputs()
    names = ("q", "k", "v", "g", "beta", "cu_seqlens")
    tensors = [torch.from_numpy(getattr(inputs, name)) for name in names]
    compiled = torch.compile(gated_delta_net, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*tensors)[0], gated_delta_net(*tensors)[0])
