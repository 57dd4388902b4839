"""deltaworks bench cpu: time of a call on random inputs.

All problems run in turns in one process, so that a disturbance of the machine meets them alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from deltaworks import _library
from deltaworks.cli._errors import UserError, parse_problem, user_errors
from deltaworks.cli._machine import machine
from deltaworks.cli._output import add_json, print_json, print_table, progress
from deltaworks.problem import Problem
from deltaworks.testing import make_inputs
from deltaworks.testing.execute import Run

# A layer of a small model and one of a large one; norm, sigmoid and safe gate as layers use them.
PROBLEMS = tuple(
    f"gdn:{pass_}:{io}:N1{dims}K128V128:l2norm:sigmoid:safe"
    for dims in ("T512H4", "T2048H16")
    for io in ("fp32", "bf16")
    for pass_ in ("fwd", "bwd")
)
_ROUND_SECONDS = 0.05  # of one problem: shorter calls are repeated
_LARGEST_COUNT = 2**31 - 1  # of threads, in the C interface


class Bench(NamedTuple):
    """A problem that is being timed."""

    problem: Problem
    run: Run
    calls: int  # in one round
    seconds: list[float]  # a call: one median a round


def add_to(benchmarks) -> None:
    parser = benchmarks.add_parser("cpu", help="time of a call, forward and backward")
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="default: a list of 8")
    parser.add_argument("--threads", type=count, help="upper bound on threads")
    parser.add_argument("--rounds", type=count, default=9, help="default: 9")
    add_json(parser)
    parser.set_defaults(run=run)


def count(text: str) -> int:
    """A count, for argparse."""
    if not text.isdecimal() or len(text) > 10 or not 1 <= int(text) <= _LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"must be a number in 1..{_LARGEST_COUNT}, got {text!r}")
    return int(text)


def run(arguments) -> int:
    problems = [parse_problem(text) for text in arguments.problems or PROBLEMS]
    with user_errors():
        isa, lanes = _library.cpu_isa()
    benches = [prepare(problem, arguments.threads) for problem in problems]
    for _ in progress(range(arguments.rounds), "bench cpu", quiet=arguments.json):
        for bench in benches:
            bench.seconds.append(seconds_a_call(bench.run.execute, bench.calls))
    rows = [_summary(bench) for bench in benches]
    if arguments.json:
        record = {"lanes": lanes, "rounds": arguments.rounds, "problems": rows}
        print_json(machine() | record)
    else:
        print_table(
            ("problem", "plan", ">us a call", ">us a token and head", ">tokens/s", ">spread"),
            map(_cells, rows),
            f"{isa}, {lanes} fp32 lanes; medians of {arguments.rounds} rounds",
        )
    return 0


def prepare(problem: Problem, threads: int | None) -> Bench:
    """Inputs, plan and the number of calls that fills a round; warms up."""
    if threads is not None:
        struct = problem.struct()
        struct.threads = threads
        problem = Problem.from_struct(struct)
    with user_errors(str(problem)):
        if problem.dims.T * problem.dims.HO == 0:
            raise UserError(f"{problem}: there is nothing to time without tokens and heads")
        run = Run(problem, make_inputs(problem))
        run.execute()
    calls = max(1, round(_ROUND_SECONDS / max(seconds_a_call(run.execute, 1), 1e-6)))
    return Bench(problem, run, calls, [])


def seconds_a_call(call: Callable[[], object], calls: int) -> float:
    """The median of `calls` calls, each timed alone: who is put aside loses one of them."""
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def spread(seconds: list[float]) -> float:
    """Distance of the quartiles, relative to the median."""
    if len(seconds) < 2:
        return 0.0
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / median


def _summary(bench: Bench) -> dict:
    dims, median = bench.problem.dims, statistics.median(bench.seconds)
    return {
        "problem": str(bench.problem),
        "plan": bench.run.plan.name,
        "configuration": bench.run.plan.configuration,
        "us_per_call": 1e6 * median,
        "us_per_token_head": 1e6 * median / (dims.T * dims.HO),
        "tokens_per_second": dims.T / median,
        "spread": spread(bench.seconds),
        "seconds": bench.seconds,
    }


def _cells(row: dict) -> tuple[str, ...]:
    return (
        row["problem"],
        f"{row['plan']}: {row['configuration']}",
        f"{row['us_per_call']:,.1f}",
        f"{row['us_per_token_head']:.3f}",
        f"{row['tokens_per_second']:,.0f}",
        f"{100 * row['spread']:.1f} %",
    )
