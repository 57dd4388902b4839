"""What the programs of this folder share: the engine under test, its two judges, how tests run.

    python NAME_test.py                 on the card: nothing may be skipped
    python NAME_test.py --device cpu    the same tests on the CPU engine, to debug them without one

Cases, oracle and layouts are those of tests/python. A result is judged against the float64 token
loop and against the CPU engine, within the bounds of deltaworks.testing.bounds.
"""

import argparse
import dataclasses
import sys
import time
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import oracle
import run_op
from cases import Case, Problem
from deltaworks.testing import bounds

_parser = argparse.ArgumentParser()
_parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
DEVICE = _parser.parse_args().device
PLAN = {"cuda": "gdn_sm80", "cpu": "gdn_cpu"}[DEVICE]

# SPEC's factor on the bounds for 16-bit operands where keys repeat or alternate, g is near 0 and
# beta is 1 or more; the CPU engine rounds no operand.
NARROW_OPERANDS = 3.0 if DEVICE == "cuda" else 1.0
# Where every token reflects the state about one key or two (beta = 2, no decay), nothing contracts
# and errors of 512 tokens add up: docs/design/cuda.md.
REFLECTIONS = 20.0 if DEVICE == "cuda" else 1.0
NARROW_REGIMES = ("repeated", "beta_two")
IO = ("bf16", "fp16")
LONG = 1024  # tokens of a sequence from which on the oracle runs on the device

_tests = []
_worst = {}  # (io dtype, judge) -> (error / bound, what)


def test(function):
    _tests.append(function)
    return function


def needs_card(function):
    function.needs_card = True
    return function


def moved(problem: Problem, device=DEVICE) -> Problem:
    """The same problem with its inputs on `device`; strides are not kept."""
    inputs = {name: x.to(device) for name, x in problem.inputs.items()}
    return dataclasses.replace(problem, inputs=inputs)


def replaced(problem: Problem, **inputs) -> Problem:
    return dataclasses.replace(problem, inputs=problem.inputs | inputs)


def with_options(problem: Problem, **options) -> Problem:
    return dataclasses.replace(problem, options=problem.options | options)


def run(problem: Problem, **changes):
    """{"o", "final_state"} of the engine under test, on the device; asserts the plan that ran.

    `changes` replaces inputs. Inputs on the device keep their strides.
    """
    inputs = problem.inputs | changes
    return run_op.run(moved(dataclasses.replace(problem, inputs=inputs)), PLAN, backward=False)


def reference(problem: Problem):
    """The oracle's float64 results."""
    long = max(problem.case.lengths, default=0) >= LONG
    device = DEVICE if long else "cpu"
    with torch.device(device), torch.no_grad():  # the oracle makes its index tensors there
        return oracle.run(moved(problem, device).inputs, problem.options)


def on_cpu(problem: Problem):
    """The CPU engine's results."""
    return run_op.run(moved(problem, "cpu"), run_op.CPU, backward=False)


def check(problem: Problem, factor=None, judges=(reference, on_cpu)):
    """The engine's results are within `factor` times the bounds of every judge's, whether or not
    sequences must be independent of their batch, which may be another path."""
    if factor is None:
        factor = NARROW_OPERANDS if problem.case.regime in NARROW_REGIMES else 1.0
    expected = {judge.__name__: judge(problem) for judge in judges}
    for batch_invariant in (False, True):
        got = run(with_options(problem, batch_invariant=batch_invariant))
        for judge, results in expected.items():
            for name, value in got.items():
                assert_close(problem, name, value, results[name], judge, factor)


def assert_close(problem, name, value, expected, judge, factor):
    assert value.shape == expected.shape, f"{name}: {value.shape} != {expected.shape}"
    io = dtype_name(problem.inputs["q"])
    offsets = problem.inputs["cu_seqlens"].tolist()
    got, ref = (x.double().cpu().numpy() for x in (value, expected))
    row = bounds.errors(name, dtype_name(value), io, got, ref, None, offsets)
    what = f"{name} of {problem.case}, by {judge}"
    assert row.worst <= factor, (
        f"{what}: relative RMS error {row.error:.2e}, {row.worst:.2f} x its bound > {factor}"
    )
    vanishes = value.numel() == 0 or name in problem.may_vanish
    assert vanishes or not row.tiny, f"{what}: the reference is about 0, nothing is tested"
    ratio = (row.worst / factor, what)
    _worst[io, judge] = max(_worst.get((io, judge), ratio), ratio)


def dtype_name(x):
    return str(x.dtype).removeprefix("torch.")


def spans(case: Case):
    """(start, end) of every sequence."""
    ends = torch.tensor(case.lengths).cumsum(0).tolist()
    return [(end - length, end) for end, length in zip(ends, case.lengths, strict=True)]


def main():
    """Runs the tests in their order; 1 if one fails."""
    failed, skipped, start = 0, [], time.monotonic()
    for function in _tests:
        begin = time.monotonic()
        if DEVICE == "cpu" and getattr(function, "needs_card", False):
            skipped.append(function.__name__)
            continue
        try:
            function()
            outcome = "ok"
        except Exception:
            traceback.print_exc()
            outcome, failed = "FAILED", failed + 1
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
        print(f"{function.__name__:60} {outcome:6} {time.monotonic() - begin:6.2f} s", flush=True)
    for (io, judge), (ratio, what) in sorted(_worst.items()):
        print(f"worst error / bound, {io}, by {judge}: {ratio:.3f} ({what})")
    if skipped:
        print(f"skipped, for they need a card: {', '.join(skipped)}")
    print(f"{failed} of {len(_tests)} failed, {time.monotonic() - start:.1f} s on {DEVICE}")
    return 1 if failed else 0
