"""deltaworks verify: every engine against the reference on a list of problems."""

from __future__ import annotations

from typing import NamedTuple

from deltaworks._library import Verdict
from deltaworks.cli._error_rows import COLUMNS, as_cells, as_json
from deltaworks.cli._errors import UserError, parse_problem, user_errors
from deltaworks.cli._output import add_json, console, print_json, print_table, progress
from deltaworks.problem import Problem
from deltaworks.testing import make_inputs, run_problem
from deltaworks.testing.bounds import Row
from deltaworks.testing.comparison import Yardstick

# Every operation, both passes, all io dtypes, grouped heads, every option, sizes that are no
# multiples of anything.
PROBLEMS = (
    "gdn:fwd:fp32:N1T64H2K64V64",
    "gdn:fwd:fp32:N3T70H2HV4K33V17:l2norm:state:final",
    "gdn:fwd:fp32:N2T90H4HK1HV1K64V128:sigmoid:neg:scale=0.3",
    "gdn:fwd:fp32:N2T65H2K128V64:l2norm:safe:a_log:dt_bias:final",
    "gdn:fwd:fp32:N2T48H2K16V8:linear:cu_seqlens=i64:state=bf16:final",
    "gdn:fwd:bf16:N1T130H2HV4K64V64:l2norm",
    "gdn:fwd:bf16:N4T100H2K128V128:l2norm:sigmoid:g=bf16:beta=bf16:state:final",
    "gdn:fwd:bf16:N2T60H1K96V40:safe:a_log=bf16:g@2x1:q@200x96x1",
    "gdn:fwd:fp16:N2T70H4HK4HV2K64V64:l2norm:state=fp16:final",
    "gdn:fwd:fp16:N1T33H1K256V8:linear:g=fp16:beta=fp16:invariant",
    "gdn:bwd:fp32:N1T64H2K64V64",
    "gdn:bwd:fp32:N3T70H2HV4K33V17:l2norm:state:final",
    "gdn:bwd:fp32:N2T50H4HK1HV1K64V64:sigmoid:neg:scale=0.3",
    "gdn:bwd:fp32:N2T65H2K64V128:l2norm:safe:a_log:dt_bias:final",
    "gdn:bwd:fp32:N2T48H2K16V8:linear:cu_seqlens=i64",
    "gdn:bwd:bf16:N1T130H2HV4K64V64:l2norm",
    "gdn:bwd:bf16:N2T100H2K128V64:l2norm:sigmoid:safe:a_log:dt_bias=bf16:g=bf16:beta=bf16",
    "gdn:bwd:bf16:N2T60H2K64V64:linear:state=bf16:final:k@1x8192x128",
    "gdn:bwd:fp16:N2T70H4HK4HV2K64V64:l2norm:state=fp16:final",
    "gdn:bwd:fp16:N1T40H1K96V40:sigmoid:g=fp16:beta=fp16",
    "kda:fwd:fp32:N2T50H2HV4K33V17:safe:bound=-2.5:a_log:dt_bias:l2norm:state:final",
    "kda:fwd:bf16:N2T70H2K64V64:linear:sigmoid:neg:g=bf16:beta=bf16",
    "kda:bwd:fp32:N2T40H2K32V24:safe:softplus:a_log:dt_bias:l2norm:state:final",
    "gdn2:fwd:fp32:N2T50H2HV4K33V17:l2norm:guard:final",
    "gdn2:bwd:fp32:N2T40H2K32V24:l2norm:sigmoid:safe:a_log:dt_bias:state:final",
    "gdn2:bwd:fp16:N2T40H4HK4HV2K32V24:l2norm:guard:beta=fp16:w=fp16",
    "gdp:fwd:bf16:N2T50H2HV4K33V17:n=3:l2norm:state:final",
    "gdp:fwd:fp32:N2T33H2K32V24:n=2:token_major:sigmoid:neg:scale=0.3",
    "gdp:bwd:fp32:N2T40H4HK4HV2K32V24:n=2:token_major=k,beta:l2norm:safe:a_log:dt_bias:final",
    "mamba2:fwd:bf16:N2T70H4G2P64S32:D:z:dt_bias:dt=bf16:final",
    "mamba2:fwd:fp32:N2T50H2P17S33:DP:dt_min=0.1:dt_max=1:state:final",
    "mamba2:bwd:fp32:N2T40H4G2P24S32:D:z:dt_bias:dt_min=0.1:dt_max=1.5:state:final",
    "mamba2:bwd:fp16:N2T40H2G1P24S32:DP=fp16:z:linear_dt",
)


def add_to(commands) -> None:
    parser = commands.add_parser("verify", help="engines against the reference engine")
    parser.add_argument(
        "problems", nargs="*", metavar="PROBLEM", help=f"default: a list of {len(PROBLEMS)}"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the inputs")
    parser.add_argument(
        "--allow-declined",
        action="store_true",
        help="a problem that only the reference takes is no failure",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments) -> int:
    if arguments.seed < 0:
        raise UserError(f"--seed must be >= 0, got {arguments.seed}")
    problems = [parse_problem(text) for text in arguments.problems or PROBLEMS]
    records = []
    for problem in progress(problems, "verify", quiet=arguments.json):
        with user_errors(str(problem)):
            records.append(verify(problem, arguments.seed, arguments.allow_declined))
    ok = all(record.ok for record in records)
    if arguments.json:
        problems = [_as_json(record) for record in records]
        print_json({"ok": ok, "seed": arguments.seed, "problems": problems})
    else:
        _print(records, ok)
    return 0 if ok else 1


class Answer(NamedTuple):
    """What one engine makes of a problem: its reasons to decline, or its errors."""

    plan: str
    declined: tuple[str, ...]
    rows: list[Row]


class Record(NamedTuple):
    """What the engines make of a problem."""

    problem: Problem
    answers: list[Answer]
    ok: bool


def verify(problem: Problem, seed: int, allow_declined: bool) -> Record:
    """Every engine but the reference, or the one that is pinned, on random inputs."""
    reference = f"{problem.variant}_reference"
    verdicts = [
        verdict
        for verdict in problem.pinned(None).explain()
        if verdict.plan_name != reference
        and (
            problem.pinned_plan == verdict.plan_name or (not problem.pinned_plan and _here(verdict))
        )
    ]
    [own] = [v for v in problem.pinned(reference).explain() if v.plan_name == reference]
    if not own.accepts:  # nothing to compare with
        answers = [Answer(verdict.plan_name, verdict.reasons, []) for verdict in (*verdicts, own)]
        return Record(problem, answers, ok=False)
    inputs = make_inputs(problem, seed)
    yardstick = Yardstick(problem, inputs)
    answers = []
    for verdict in verdicts:
        plan = verdict.plan_name
        rows = yardstick.judge(run_problem(problem, inputs, plan)) if verdict.accepts else []
        answers.append(Answer(plan, verdict.reasons, rows))
    taken = any(not answer.declined for answer in answers)
    within = all(row.ok for answer in answers for row in answer.rows)
    return Record(problem, answers, within and (taken or allow_declined))


def _here(verdict: Verdict) -> bool:
    """Whether the engine is for tensors where these are."""
    return not any(reason.startswith("tensors must be in ") for reason in verdict.reasons)


def _as_json(record: Record) -> dict:
    plans = [
        {
            "plan": answer.plan,
            "declined": answer.declined,
            "tensors": list(map(as_json, answer.rows)),
        }
        for answer in record.answers
    ]
    return {"problem": str(record.problem), "ok": record.ok, "plans": plans}


def _print(records: list[Record], ok: bool) -> None:
    lines = []
    for record in records:
        title = str(record.problem)
        for answer in record.answers or [Answer("", ("no engine but the reference",), [])]:
            if answer.declined:
                reasons = "declined: " + "; ".join(answer.declined)
                lines.append((title, answer.plan, "", "", "", "", reasons))
                title = ""
            for row in answer.rows:
                lines.append((title, answer.plan, *as_cells(row)))
                title = ""
    print_table(("problem", "plan", *COLUMNS), lines)
    failed = sum(not record.ok for record in records)
    summary = "all problems within their bounds" if ok else f"FAILED: {failed} of {len(records)}"
    console().print(summary)
