"""Time of a call of given problems, through built plans and without PyTorch.

All problems run in turns in one process, so that a disturbance of the machine meets them alike.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

from deltaworks import _library
from deltaworks.cli._cpu_timing import calls_in, seconds_a_call, spread
from deltaworks.cli._errors import UserError, parse_problem, user_errors
from deltaworks.cli._machine import machine
from deltaworks.cli._output import print_json, print_table, progress
from deltaworks.problem import Problem
from deltaworks.testing import make_inputs
from deltaworks.testing.execute import Run

_ROUND_SECONDS = 0.05  # of one problem: shorter calls are repeated


class Bench(NamedTuple):
    """A problem that is being timed."""

    problem: Problem
    run: Run
    calls: int  # in one round
    seconds: list[float]  # a call: one median a round


def run(texts: list[str], threads: int | None, rounds: int, as_json: bool) -> int:
    """Times the problems and prints the table or the record; the exit code."""
    problems = [parse_problem(text) for text in texts]
    with user_errors():
        isa, lanes = _library.cpu_isa()
    benches = [prepare(problem, threads) for problem in problems]
    for _ in progress(range(rounds), "bench cpu", quiet=as_json):
        for bench in benches:
            bench.seconds.append(seconds_a_call(bench.run.execute, bench.calls))
    rows = [_summary(bench) for bench in benches]
    if as_json:
        print_json(machine() | {"lanes": lanes, "rounds": rounds, "problems": rows})
    else:
        print_table(
            ("problem", "plan", ">us a call", ">us a token and head", ">tokens/s", ">spread"),
            map(_cells, rows),
            f"{isa}, {lanes} fp32 lanes; medians of {rounds} rounds",
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
    return Bench(problem, run, calls_in(_ROUND_SECONDS, run.execute), [])


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
