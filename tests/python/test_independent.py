"""Agreement with the plain implementations of other projects: flash-linear-attention's and
mamba_ssm's, fetched by independent/fetch.py and run in a process of their own."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

import oracle
from cases import Case, build
from run_op import run
from test_numpy_kit import to_numpy

HERE = pathlib.Path(__file__).parent / "independent"
FOLDER = HERE.parents[2] / "build" / "independent"
# Theirs compute in float32 and so do ours, each in its own order.
FORWARD, BACKWARD = 1e-5, 1e-4

DELTA = {"lengths": (48,), "l2norm": False, "K": 16, "V": 8}
MAMBA2 = {"lengths": (48,), "op": "mamba2", "dt_bias": "fp32", "K": 16, "V": 8}
ROWS = {
    "gated_delta_rule": Case(**DELTA),
    "gated_delta_rule_in_chunks": Case(**DELTA, seed=1),
    "kda": Case(op="kda", heads=(2, 2, 4), **DELTA),
    "kda_in_chunks": Case(op="kda", heads=(2, 2, 4), seed=1, **DELTA),
    "gated_delta_product": Case(op="gdp", steps=3, **DELTA),
    "ssd_minimal": Case(heads=(2, 2, 4), **MAMBA2),
    "selective_state_update": Case(heads=(2, 2, 4), D="head", z=True, **MAMBA2),
}


def theirs(name, problem, tmp_path):
    arrays = {key: to_numpy(x) for key, x in problem.inputs.items() if key != "cu_seqlens"}
    arrays |= {"d_o": to_numpy(problem.d_o), "d_final": to_numpy(problem.d_final)}
    inputs, results = tmp_path / "inputs.npz", tmp_path / "results.npz"
    np.savez(inputs, **arrays)
    command = [sys.executable, HERE / "evaluate.py", FOLDER, name, inputs, results]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(results) as got:
        return {key: got[key] for key in got.files}


@pytest.mark.skipif(not FOLDER.exists(), reason="independent/fetch.py has fetched nothing")
@pytest.mark.parametrize("name", ROWS)
def test_another_project_computes_the_same(name, tmp_path):
    problem = build(ROWS[name])
    expected = theirs(name, problem, tmp_path)
    gradients = name != "selective_state_update"  # theirs writes its state
    assert ("initial_state" in expected) == gradients
    for ours in (run(problem), oracle.of(problem)):
        for key, value in expected.items():
            got = ours[key].numpy()
            assert got.shape == value.shape, key
            scale = np.sqrt(np.square(value).mean())
            assert scale > 1e-3, f"{key} tests nothing"
            error = np.sqrt(np.square(got - value).mean()) / scale
            bound = FORWARD if key in ("o", "final_state") else BACKWARD
            assert error < bound, f"{key}: {error:.1e}"


@pytest.mark.skipif(not FOLDER.exists(), reason="independent/fetch.py has fetched nothing")
def test_the_comparison_sees_a_difference(tmp_path):
    problem = build(ROWS["kda"])
    expected = theirs("kda", problem, tmp_path)
    problem.inputs["g"][20] *= 1.01
    error = np.abs(run(problem)["o"].numpy() - expected["o"]).max()
    assert error > FORWARD
