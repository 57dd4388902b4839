"""What the environment decides: the engine, the log, and the warning of the reference engine.

The library reads it when it is loaded, so every case is a process of its own.
"""

import json
import os
import re
import subprocess
import sys

import pytest

# A call of 3 tokens in 1 sequence, 2 heads, K = V = 4; prints the plan that ran.
CALL = """
import sys
import numpy as np
from deltaworks import _library
from deltaworks.numpy import gated_delta_net, gated_delta_net_backward
x = np.full((3, 2, 4), 0.5, {dtype})
x[2, 1, 3] = {value}
arguments = dict(q=x, k=x, v=x, g=-x[..., 0], beta=x[..., 0], cu_seqlens=np.array([0, 3]))
for call in range({calls}):
    gated_delta_net(**arguments, {options})
print(_library.last_plan())
"""


def run(environment=(), dtype="np.float32", options="", calls=1, value=0.5, check=True):
    script = CALL.format(dtype=dtype, options=options, calls=calls, value=value)
    names = ("DELTAWORKS_ENGINE", "DELTAWORKS_LOG", "DELTAWORKS_ISA")
    clean = {name: x for name, x in os.environ.items() if name not in names}
    clean |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **dict(environment)}
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=clean, check=check
    )


def test_nothing_is_said_and_the_first_engine_runs():
    result = run()
    assert (result.stdout, result.stderr) == ("gdn_cpu\n", "")


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_an_engine_is_forced(engine):
    assert run({"DELTAWORKS_ENGINE": engine}).stdout == f"gdn_{engine}\n"


def test_a_call_that_names_its_plan_keeps_it():
    result = run({"DELTAWORKS_ENGINE": "reference"}, options="plan_name='gdn_cpu'")
    assert result.stdout == "gdn_cpu\n"


def test_a_forced_engine_that_declines_is_an_error():
    result = run({"DELTAWORKS_ENGINE": "cpu"}, dtype="np.float64", check=False)
    assert result.returncode == 1
    text = "gdn_cpu, pinned by DELTAWORKS_ENGINE, does not take this problem"
    assert f"NotSupportedError: gated_delta_net: {text}" in result.stderr
    assert "gdn_cpu: q k v must be float32, bfloat16 or float16, got float64" in result.stderr


def test_an_engine_that_is_not_there_is_an_error():
    result = run({"DELTAWORKS_ENGINE": "sm100"}, check=False)
    error = "ValueError: DELTAWORKS_ENGINE must be one of cpu, reference, got sm100"
    assert result.returncode == 1 and result.stderr.strip().endswith(error)


@pytest.mark.parametrize("level", ["", "off"])
def test_the_log_is_off(level):
    assert run({"DELTAWORKS_LOG": level}).stderr == ""


LINE = re.compile(
    r"deltaworks: (?P<problem>\S+) (?P<plan>\S+) \((?P<configuration>[^)]*)\) "
    r"(?P<ms>\S+) ms(?P<rest>.*)"
)


def logged(level, **options):
    lines = run({"DELTAWORKS_LOG": level}, **options).stderr.splitlines()
    return [LINE.fullmatch(line) for line in lines]


def test_every_call_is_a_line():
    lines = logged("calls", calls=3, options="threads=2")
    assert len(lines) == 3
    for line in lines:
        assert line["problem"] == "gdn:fwd:fp32:N1T3H2K4V4:cu_seqlens=i64:beta@8x4:threads=2"
        assert line["plan"] == "gdn_cpu" and "2 items" in line["configuration"]
        assert 0 <= float(line["ms"]) < 1000 and line["rest"] == ""


def test_the_arguments_are_told():
    (line,) = logged("args")
    assert " q=float32[3,2,4] strides [8,4,1] at 0x" in line["rest"]
    assert " beta=float32[3,2] strides [8,4] at 0x" in line["rest"]  # a view
    assert " o=float32[3,2,4] strides [8,4,1] at 0x" in line["rest"]
    assert "{" not in line["rest"]


def test_the_values_are_told():
    (line,) = logged("stats")
    assert " q=float32[3,2,4]" in line["rest"]
    assert " g{min -0.5 max -0.5 mean -0.5 rms 0.5}" in line["rest"]
    assert " q{min 0.5 max 0.5 mean 0.5 rms 0.5}" in line["rest"]
    assert re.search(r" o\{min \S+ max \S+ mean \S+ rms \S+\}", line["rest"])
    assert "cu_seqlens{" not in line["rest"]


def test_states_that_were_overwritten_are_told_as_final_states():
    (line,) = logged(
        "stats", options="initial_state=np.zeros((1, 2, 4, 4), 'f4'), overwrite_initial_state=True"
    )
    assert ":state:overwrite" in line["problem"]
    assert " initial_state=float32[1,2,4,4]" in line["rest"]
    assert re.search(r" final_state\{min \S+ max 0\.[1-9]", line["rest"])
    assert "initial_state{" not in line["rest"]


def test_values_that_are_not_finite_are_counted():
    (line,) = logged("stats", value="np.inf")
    assert " q{min 0.5 max 0.5 mean 0.5 rms 0.5 not finite 1}" in line["rest"]


def test_a_level_that_is_not_there_is_an_error():
    result = run({"DELTAWORKS_LOG": "all"}, check=False)
    error = "ValueError: DELTAWORKS_LOG must be off, calls, args or stats, got all"
    assert result.returncode == 1 and result.stderr.strip().endswith(error)


WARNING = (
    "deltaworks: warning: gated_delta_net: float64 tensors run on the reference engine, which is "
    "slow and meant for tests; pin its plan_name to silence this\n"
)


def test_the_reference_engine_warns_once():
    result = run(dtype="np.float64", calls=3)
    assert (result.stdout, result.stderr) == ("gdn_reference\n", WARNING)


def test_who_names_the_reference_engine_is_not_warned():
    assert run(dtype="np.float64", options="plan_name='gdn_reference'").stderr == ""
    assert run({"DELTAWORKS_ENGINE": "reference"}, dtype="np.float64").stderr == ""


def test_explain_follows_the_environment():
    """What the command line says of a problem is what a call then does."""
    command = [sys.executable, "-m", "deltaworks.cli", "explain", "--json"]
    command.append("gdn:fwd:fp32:N1T3H2K4V4")
    environment = os.environ | {"DELTAWORKS_ENGINE": "reference"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "gdn_reference" in json.dumps(json.loads(result.stdout)["runs"])
