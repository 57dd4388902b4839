"""deltaworks bench cpu: the operators beside plain PyTorch and beside what the processor could do.

With PROBLEMs, the time of a call of each instead, without PyTorch (_cpu_calls.py).
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

from deltaworks import _library
from deltaworks.cli import _cpu_calls, _cpu_report, _plots
from deltaworks.cli._cpu_operators import OPERATORS, Case
from deltaworks.cli._cpu_timing import count
from deltaworks.cli._cpu_worker import Worker
from deltaworks.cli._errors import UserError, user_errors
from deltaworks.cli._output import add_json, print_json, progress

_ISAS = ("SSE4", "AVX2", "AVX512", "NEON")
_DTYPES = ("fp32", "bf16")
# (by default, with --quick)
_DEFAULTS = {
    "tokens": (8192, 512),
    "heads": (16, 2),
    "rounds": (10, 3),
    "peer_rounds": (3, 1),
    "loop_tokens": (256, 64),
    "chunked_tokens": (2048, 512),
}
_PEAK_SECONDS = (0.02, 0.005)
_ROUNDS_OF_PROBLEMS = 9
# What has no meaning with problems.
_OF_OPERATORS = (
    *("ops", "isa", "dtypes", "dims", "tokens", "heads", "peer_rounds", "loop_tokens"),
    *("chunked_tokens", "quick", "csv", "plot", "record"),
)


def add_to(benchmarks) -> None:
    parser = benchmarks.add_parser("cpu", help="operators beside PyTorch and the processor's peak")
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help="time these calls instead")
    for option, allowed, text in (
        ("--ops", tuple(OPERATORS), "default: all of them"),
        ("--isa", _ISAS, "default: AVX2 and AVX512, if they run here"),
        ("--dtypes", _DTYPES, "default: both"),
    ):
        metavar = ",".join(allowed)
        parser.add_argument(option, type=_words(allowed), metavar=metavar, help=text)
    parser.add_argument("--threads", type=_counts, metavar="COUNTS", help="default: 1,2")
    parser.add_argument(
        "--dims", type=_dims, metavar="KxV", help="default: 128x128, and 128x64 for mamba2"
    )
    for name, text in (
        ("tokens", "of the sequence"),
        ("heads", "of every tensor"),
        ("rounds", "best and median are of these; with PROBLEMs 9"),
        ("peer_rounds", "in which PyTorch takes part"),
        ("loop_tokens", "at most, of PyTorch's token loop"),
        ("chunked_tokens", "at most, of PyTorch's chunked form"),
    ):
        full, quick = _DEFAULTS[name]
        text = f"{text}; default: {full}, quick: {quick}"
        parser.add_argument(f"--{name.replace('_', '-')}", type=count, metavar="N", help=text)
    parser.add_argument("--quick", action="store_true", help="small sizes, a few rounds")
    for option, text in (("--csv", "write the rows there, too"), ("--plot", "draw them as a PNG")):
        parser.add_argument(option, type=Path, metavar="FILE", help=text)
    parser.add_argument(
        "--record", type=Path, metavar="FOLDER", help="write DATE-cpu-operators.{json,csv,png}"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments) -> int:
    if arguments.problems:
        return _run_problems(arguments)
    with user_errors():
        isa, _ = _library.cpu_isa()
    _judge_outputs(arguments)
    arguments.isa = arguments.isa or ([isa] if isa != "AVX512" else ["AVX2", "AVX512"])
    for name, defaults in _DEFAULTS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, defaults[arguments.quick])
    chosen = {name: getattr(arguments, name) for name in _DEFAULTS}
    cases = _cases(arguments)
    points = [
        (isa, threads, case)
        for isa in arguments.isa
        for threads in arguments.threads or [1, 2]
        for case in cases
    ]
    answers = list(progress(_measure(points, arguments), "bench cpu", arguments.json, len(points)))
    record = _cpu_report.record(chosen, answers)
    with user_errors():
        _write(arguments, record)
    if arguments.json:
        print_json(record)
    else:
        _cpu_report.show(record)
    return 1 if record["failures"] else 0


def _run_problems(arguments) -> int:
    for name in _OF_OPERATORS:
        if getattr(arguments, name):
            raise UserError(f"--{name.replace('_', '-')} is of no use with a PROBLEM")
    threads = arguments.threads or [None]
    if len(threads) > 1:
        raise UserError("--threads must be one number with a PROBLEM")
    rounds = arguments.rounds or _ROUNDS_OF_PROBLEMS
    return _cpu_calls.run(arguments.problems, threads[0], rounds, arguments.json)


def _cases(arguments) -> list[Case]:
    return [
        Case(op, dtype, arguments.tokens, arguments.heads, *dims)
        for op in arguments.ops or OPERATORS
        for dims in ([arguments.dims] if arguments.dims else OPERATORS[op].dims)
        for dtype in arguments.dtypes or _DTYPES
    ]


def _measure(points: list[tuple[str, int, Case]], arguments) -> Iterator[dict]:
    """What the worker of each point answers; there is one at a time."""
    settings = {
        "rounds": arguments.rounds,
        "peer_rounds": arguments.peer_rounds,
        "loop_tokens": arguments.loop_tokens,
        "chunked_tokens": arguments.chunked_tokens,
        "peak_seconds": _PEAK_SECONDS[arguments.quick],
    }
    for isa, threads in dict.fromkeys(point[:2] for point in points):
        with Worker(isa, {"threads": threads, **settings}) as worker:
            for case in (case for *own, case in points if own == [isa, threads]):
                yield worker.about | worker.measure(case)


def _judge_outputs(arguments) -> None:
    """What would fail after minutes of measuring fails before."""
    for file in filter(None, (arguments.csv, arguments.plot)):
        if not file.parent.is_dir():
            raise UserError(f"{file.parent} is not a folder")
    if arguments.record and not arguments.record.is_dir():
        raise UserError(f"{arguments.record} is not a folder")
    drawing = arguments.plot or arguments.record
    for package in ("torch", *(("matplotlib",) if drawing else ())):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"this benchmark needs {package}, which cannot be imported")


def _write(arguments, record: dict) -> None:
    csv, plot, rows = arguments.csv, arguments.plot, record["rows"]
    if arguments.record:
        stem = arguments.record / f"{record['date']}-cpu-operators"
        _cpu_report.write_json(stem.with_suffix(".json"), record)
        csv, plot = csv or stem.with_suffix(".csv"), plot or stem.with_suffix(".png")
    if csv:
        _cpu_report.write_csv(csv, rows)
    if plot:
        _plots.draw_operators(rows, _cpu_report.title(record), plot)


def _words(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Of a list with commas, for argparse."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        for word in words:
            if word not in allowed:
                raise argparse.ArgumentTypeError(
                    f"must be some of {', '.join(allowed)}, got {text!r}"
                )
        return list(dict.fromkeys(words))

    return parse


def _counts(text: str) -> list[int]:
    return list(dict.fromkeys(map(count, text.split(","))))


def _dims(text: str) -> tuple[int, int]:
    key, x, value = text.partition("x")
    if not x:
        raise argparse.ArgumentTypeError(f"must be KxV, got {text!r}")
    return count(key), count(value)
