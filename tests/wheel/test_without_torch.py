"""An installed deltaworks where there is no torch."""

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import deltaworks
import deltaworks.numpy as dwn
from deltaworks import _library
from token_loop import distance, make_inputs, token_loop

PROBLEM = "gdn:fwd:bf16:N4T8192H16HV32K128V128:l2norm"


def run_command(*arguments: str, status: int = 0) -> str:
    """Standard output of the installed command `deltaworks`."""
    command = Path(sys.prefix) / "bin" / "deltaworks"
    result = subprocess.run([command, *arguments], stdout=subprocess.PIPE, text=True)
    assert result.returncode == status
    return result.stdout


def test_the_installed_package_is_tested():
    assert Path(deltaworks.__file__).is_relative_to(sys.prefix)
    assert importlib.util.find_spec("torch") is None


def test_one_version():
    library = _library.library().dw_version().decode()
    assert deltaworks.__version__ == version("deltaworks") == library


def test_built_for_release():
    assert _library.library().dw_build().decode().endswith("Release")


@pytest.mark.parametrize("plan_name", ["gdn_cpu", "gdn_reference"])
def test_numpy(plan_name):
    inputs = make_inputs()
    wanted = token_loop(inputs)
    arguments = inputs._asdict()
    flow = arguments.pop("flow")
    options = {"output_final_state": True, "plan_name": plan_name}
    o, final_state = dwn.gated_delta_net(**arguments, **options)
    gradients = dwn.gated_delta_net_backward(**arguments, dO=flow, plan_name=plan_name)
    got = {"o": o, "final_state": final_state, **gradients._asdict()}
    assert got.pop("da_log") is None and got.pop("ddt_bias") is None
    assert {array.dtype for array in got.values()} == {np.dtype(np.float32)}
    errors = {name: distance(got[name], wanted[name]) for name in wanted}
    assert got.keys() == errors.keys()
    assert max(errors.values()) < 2e-6, errors


def test_operators_say_that_torch_is_missing():
    with pytest.raises(ImportError, match="torch"):
        import deltaworks.ops  # noqa: F401


def test_command_info():
    facts = json.loads(run_command("info", "--json"))
    assert facts["version"] == deltaworks.__version__
    assert {"gdn_sm80", "gdn_cpu", "gdn_reference"} <= set(facts["engines"])


def test_command_explain():
    assert "gdn_cpu" in run_command("explain", PROBLEM)


def test_cuda_without_a_card(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    answer = json.loads(run_command("explain", f"{PROBLEM}:device=cuda0", "--json", status=1))
    assert answer["runs"] is None
    (reason,) = next(x["reasons"] for x in answer["engines"] if x["plan_name"] == "gdn_sm80")
    assert reason.startswith("a CUDA driver with the tensors' device, got ")


@pytest.mark.parametrize("name", ["deltaworks.cli", "deltaworks.numpy", "deltaworks.testing"])
def test_modules_import(name):
    importlib.import_module(name)
