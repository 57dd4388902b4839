"""deltaworks explain PROBLEM: which engine runs it, and why the others do not."""

from __future__ import annotations

import os

from deltaworks.cli._errors import parse_problem, user_errors
from deltaworks.cli._output import add_json, console, print_json, print_table
from deltaworks.errors import NotSupportedError


def add_to(commands) -> None:
    parser = commands.add_parser("explain", help="each engine's verdict on a problem")
    parser.add_argument("problem", help="problem string (docs/problems.md)")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments) -> int:
    problem = parse_problem(arguments.problem)
    with user_errors():
        verdicts = problem.explain()
        try:
            runs = problem.plan_name
        except NotSupportedError:
            runs = None
    if arguments.json:
        print_json(
            {
                "problem": str(problem),
                "runs": runs,
                "engines": [
                    verdict._asdict() | {"accepts": verdict.accepts} for verdict in verdicts
                ],
            }
        )
    else:
        _print(problem, runs, verdicts)
    return 0 if runs else 1


def _print(problem, runs, verdicts):
    console().print(str(problem), soft_wrap=True)
    rows = []
    for verdict in verdicts:
        if verdict.accepts:
            answer = "runs" if verdict.plan_name == runs else "accepts"
            workspace = f"{verdict.workspace_bytes:,}"
            rows.append((verdict.plan_name, answer, workspace, verdict.configuration))
        else:
            rows.append((verdict.plan_name, "declines", "", "\n".join(verdict.reasons)))
    columns = ("plan", "verdict", ">workspace, bytes", "configuration or reasons")
    print_table(columns, rows)
    if not runs:
        console().print(_why_nothing_runs(problem))


def _why_nothing_runs(problem) -> str:
    if problem.pinned_plan:
        return f"{problem.pinned_plan}, which the problem pins (plan=), does not take it"
    if engine := os.environ.get("DELTAWORKS_ENGINE"):
        return f"{problem.variant}_{engine}, which DELTAWORKS_ENGINE names, does not take it"
    return "no engine runs this problem"
