"""deltaworks verify and bench: they must be able to fail, and to measure."""

import json
import time

import numpy as np
import pytest

from deltaworks import Problem
from deltaworks import _library as dw
from deltaworks.cli import bench_overhead, main, verify
from deltaworks.testing import bounds
from test_cli import process

SMALL = "gdn:fwd:bf16:N2T40H2K16V8:l2norm:final"
VARIANTS = ("gdn", "kda", "gdn2", "gdp", "mamba2")
BACKWARD = "gdn:bwd:fp32:N2T40H2K16V8:l2norm:final"
OVERWRITES = "gdn:fwd:fp32:N2T40H2K16V8:l2norm:state:overwrite"
ONLY_REFERENCE = "gdn:fwd:fp64:N1T8H1K4V4"


def printed(capsys, *arguments, code=0):
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_default_list(capsys):
    start = time.monotonic()
    record = printed(capsys, "verify")
    assert time.monotonic() - start < 10
    assert record["ok"] and len(record["problems"]) == len(verify.PROBLEMS) == 33
    rows = [
        row
        for problem in record["problems"]
        for plan in problem["plans"]
        for row in plan["tensors"]
    ]
    assert {plan["plan"] for problem in record["problems"] for plan in problem["plans"]} == {
        f"{variant}_cpu" for variant in VARIANTS
    }
    assert all(row["ok"] and not row["tiny"] and row["error"] <= row["bound"] for row in rows)
    # two engines that round differently, not one compared with itself
    assert sum(row["error"] > 0 for row in rows) > len(rows) / 2


def test_the_default_list_covers_what_there_is():
    problems = [Problem(text) for text in verify.PROBLEMS]
    assert len(set(problems)) == len(problems)
    for pass_ in ("forward", "backward"):
        some = [problem for problem in problems if problem.pass_ == pass_]
        assert {problem.variant for problem in some} == set(VARIANTS)
        some_gdn = [problem for problem in some if problem.variant == "gdn"]
        assert {p.tensors["q"].dtype for p in some_gdn} == {"float32", "bfloat16", "float16"}
        assert {p.tensors["g"].dtype for p in some_gdn} == {"float32", "bfloat16", "float16"}
        assert {p.gate_domain for p in some_gdn} == {"log", "linear"}
        assert {p.dims.HV // p.dims.H for p in some_gdn} >= {0, 1, 2}
        flags = 0
        for problem in some_gdn:
            flags |= problem.flags
        assert flags & 0b1111 == 0b1111  # norm, sigmoid, doubled, safe gate
        names = {name for problem in some for name in problem.inputs}
        assert names >= {"a_log", "dt_bias", "initial_state", "w", "D", "z"}
    assert {problem.gate for problem in problems} == {"sigmoid", "softplus"}
    flags = 0
    for problem in problems:
        flags |= problem.flags
    for flag in (dw.BETA_GUARD, dw.HAS_GATE_LOWER_BOUND, dw.DT_LINEAR, dw.HAS_DT_MAX):
        assert flags & flag


@pytest.mark.parametrize("text", verify.PROBLEMS)
def test_every_tensor_is_judged(capsys, monkeypatch, text):
    """A tensor that is wrong by a third is found, and no other."""

    def wrong(problem, inputs, plan_name):
        outputs = right(problem, inputs, plan_name)
        array = outputs[spoilt]
        array[...] = array * array.dtype.type(1.35)
        return outputs

    right = verify.run_problem
    monkeypatch.setattr(verify, "run_problem", wrong)
    for spoilt in Problem(text).outputs:
        [problem] = printed(capsys, "verify", text, code=1)["problems"]
        [plan] = problem["plans"]
        assert [row["tensor"] for row in plan["tensors"] if not row["ok"]] == [spoilt]


def test_overwritten_states_are_judged(capsys):
    (problem,) = printed(capsys, "verify", OVERWRITES)["problems"]
    (plan,) = problem["plans"]
    assert [row["tensor"] for row in plan["tensors"]] == ["o", "final_state"]
    assert all(row["ok"] and row["error"] > 0 for row in plan["tensors"])


def test_a_bound_that_is_too_tight_fails(capsys, monkeypatch):
    assert main(["verify", SMALL, BACKWARD]) == 0
    monkeypatch.setitem(bounds.BACKWARD, "float32", 1e-9)
    monkeypatch.setattr(bounds, "LOOP", 0.0)
    capsys.readouterr()
    assert main(["verify", SMALL, BACKWARD]) == 1
    text = capsys.readouterr().out
    assert "OUT OF BOUNDS" in text and "FAILED: 1 of 2" in text
    record = printed(capsys, "verify", SMALL, BACKWARD, code=1)
    assert [problem["ok"] for problem in record["problems"]] == [True, False]


@pytest.mark.parametrize("tensor", ["o", "final_state"])
def test_a_wrong_output_fails(capsys, monkeypatch, tensor):
    def wrong(problem, inputs, plan_name):
        outputs = right(problem, inputs, plan_name)
        outputs[tensor][-1, 0] = 0
        return outputs

    right = verify.run_problem
    monkeypatch.setattr(verify, "run_problem", wrong)
    [problem] = printed(capsys, "verify", SMALL, code=1)["problems"]
    [plan] = problem["plans"]
    assert [row["tensor"] for row in plan["tensors"] if not row["ok"]] == [tensor]


def test_an_output_that_is_not_finite_fails(capsys, monkeypatch):
    def wrong(problem, inputs, plan_name):
        outputs = right(problem, inputs, plan_name)
        outputs["o"][3, 0, 0] = np.inf
        return outputs

    right = verify.run_problem
    monkeypatch.setattr(verify, "run_problem", wrong)
    [problem] = printed(capsys, "verify", SMALL, code=1)["problems"]
    assert problem["plans"][0]["tensors"][0]["error"] is None


def test_what_only_the_reference_takes(capsys):
    assert main(["verify", ONLY_REFERENCE]) == 1
    text = capsys.readouterr().out
    assert "declined: q k v must be float32, bfloat16 or float16, got float64" in text
    assert "FAILED: 1 of 1" in text
    record = printed(capsys, "verify", ONLY_REFERENCE, SMALL, "--allow-declined")
    [declined], [compared] = (problem["plans"] for problem in record["problems"])
    assert declined["tensors"] == [] and "float64" in declined["declined"][0]
    assert compared["declined"] == [] and compared["tensors"]


@pytest.mark.parametrize("allow", [[], ["--allow-declined"]])
@pytest.mark.parametrize("pin", ["", ":plan=gdn_cpu"])
def test_what_not_even_the_reference_takes_fails_alone(capsys, pin, allow):
    problem = f"gdn:fwd:fp32:N1T8H1K4V4:every=4{pin}"
    record = printed(capsys, "verify", problem, SMALL, *allow, code=1)
    declined, compared = record["problems"]
    assert [declined["ok"], compared["ok"]] == [False, True]
    assert [plan["plan"] for plan in declined["plans"]] == ["gdn_cpu", "gdn_reference"]
    for plan in declined["plans"]:
        assert plan["tensors"] == []
        assert "checkpoint_every_n_tokens must be 0" in plan["declined"][-1]
    assert main(["verify", problem, SMALL, *allow]) == 1
    text = capsys.readouterr().out
    assert "FAILED: 1 of 2" in text and text.count(problem) == 1
    assert text.count("declined: checkpoint_every_n_tokens must be 0") == 2


def test_what_the_reference_alone_declines_fails(capsys, monkeypatch):
    """There is nothing to compare with."""

    def explain(problem):
        cpu, reference = right(problem)
        return [cpu, reference._replace(reasons=("is away",))]

    right = Problem.explain
    monkeypatch.setattr(Problem, "explain", explain)
    assert main(["verify", SMALL]) == 1
    assert "declined: is away" in capsys.readouterr().out


def test_a_pinned_plan(capsys):
    record = printed(capsys, "verify", SMALL + ":plan=gdn_cpu")
    assert record["problems"][0]["plans"][0]["plan"] == "gdn_cpu"
    record = printed(capsys, "verify", SMALL + ":plan=gdn_reference", code=1)
    assert record["problems"][0]["plans"] == []
    assert main(["verify", SMALL + ":plan=gdn_reference"]) == 1
    assert "no engine but the reference" in capsys.readouterr().out


def test_the_seed_changes_the_data(capsys):
    errors = [
        printed(capsys, "verify", BACKWARD, "--seed", seed)["problems"][0]["plans"][0]["tensors"]
        for seed in ("0", "0", "1")
    ]
    assert errors[0] == errors[1] != errors[2]


def test_bench_cpu(capsys):
    problems = ["gdn:fwd:fp32:N1T32H2K16V16", "gdn:bwd:fp32:N1T32H2K16V16"]
    record = printed(capsys, "bench", "cpu", *problems, "--rounds", "3", "--threads", "1")
    assert record["rounds"] == 3 and record["lanes"] >= 4
    for row, problem in zip(record["problems"], problems, strict=True):
        assert row["problem"] == problem + ":threads=1" and row["plan"] == "gdn_cpu"
        assert "1 thread" in row["configuration"]
        assert len(row["seconds"]) == 3 and row["spread"] >= 0
        assert row["us_per_call"] == pytest.approx(1e6 * sorted(row["seconds"])[1])
        assert row["us_per_token_head"] == pytest.approx(row["us_per_call"] / 64)
        assert row["tokens_per_second"] == pytest.approx(32e6 / row["us_per_call"])
    assert main(["bench", "cpu", problems[0], "--rounds", "1"]) == 0
    text = capsys.readouterr().out
    assert problems[0] in text and "tokens/s" in text and "fp32 lanes" in text


def test_bench_overhead(capsys):
    record = printed(capsys, "bench", "overhead", "--rounds", "3")
    rows = {row["call"]: row for row in record["overhead"]}
    assert [row["target_us"] for row in rows.values()] == [2, None, 10, 20, None]
    assert rows["built plan"]["overhead_us"] < rows["NumPy operator"]["overhead_us"]
    assert rows["NumPy operator"]["ratio_to_kernels"] > 1
    for row in rows.values():
        met = None if row["target_us"] is None else row["overhead_us"] <= row["target_us"]
        assert row["met"] is met
    assert record["plan"] == "gdn_cpu" and "1 thread" in record["configuration"]
    assert {"date", "processor", "deltaworks", "isa", "torch"} <= record.keys()
    kernels = record["kernel_us"]
    assert 0 < kernels["forward"] < kernels["forward_and_backward"]
    assert main(["bench", "overhead", "--rounds", "1"]) == 0
    text = capsys.readouterr().out
    assert "PyTorch operator, forward and backward" in text and "for information" in text


def test_bench_overhead_in_an_environment_that_is_wrong():
    result = process("bench", "overhead", DELTAWORKS_LOG="bogus")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("deltaworks bench: DELTAWORKS_LOG must be ")
    assert result.stderr.count("\n") == 1


def test_bench_overhead_without_torch(capsys, monkeypatch):
    monkeypatch.setattr(bench_overhead.importlib.util, "find_spec", lambda name: None)
    record = printed(capsys, "bench", "overhead", "--rounds", "1")
    assert [row["call"] for row in record["overhead"]] == ["built plan", "NumPy operator"]
