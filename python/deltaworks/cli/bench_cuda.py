"""deltaworks bench cuda: kernel and call times of Gated DeltaNet's forward on a card.

Beside flash-linear-attention where it can be imported, and beside what the card could do at best:
both ceilings are measured in the same process.
"""

from __future__ import annotations

import csv
import importlib.util
import subprocess
from pathlib import Path

from deltaworks.cli import _plots
from deltaworks.cli._cpu_timing import count
from deltaworks.cli._cuda_cases import (
    CASES,
    GATES,
    SWEEPS,
    Case,
    Ceilings,
    failures,
    parse_case,
    summary,
)
from deltaworks.cli._cuda_forward import ROUNDS, Setup, measure
from deltaworks.cli._cuda_timing import ceilings, flusher
from deltaworks.cli._errors import UserError, user_errors
from deltaworks.cli._first_call import first_call_seconds
from deltaworks.cli._machine import machine
from deltaworks.cli._output import add_json, console, print_json, print_table, progress
from deltaworks.problem import Problem

_SWEEP_GATES = "slow"


def add_to(benchmarks) -> None:
    parser = benchmarks.add_parser("cuda", help="kernels and calls on a card, and a peer's")
    parser.add_argument(
        "--case",
        action="append",
        type=parse_case,
        metavar="N,LEN,H,HV",
        dest="cases",
        help="sequences, tokens of each, heads of q and k, heads of v; default: a list of 8",
    )
    parser.add_argument(
        "--replays", type=count, default=10, help=f"in each of {ROUNDS} rounds; default: 10"
    )
    parser.add_argument("--no-peer", action="store_true", help="without flash-linear-attention")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the rows there, too")
    parser.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="measure and draw over lengths and batches"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments) -> int:
    cases = arguments.cases or CASES
    points = [("cases", case, gates) for case in cases for gates in GATES]
    if arguments.plots:
        points += [(name, case, _SWEEP_GATES) for name in SWEEPS for case in SWEEPS[name]]
    _judge_outputs(arguments)
    device = find_card()
    _judge_problems([case for _, case, _ in points], device)
    peer, peer_version = (None, None) if arguments.no_peer else find_peer()
    first = first_call_seconds(device)
    setup = Setup(device, peer, arguments.replays, flusher(device), ceilings(device))
    measured: dict[str, list[dict]] = {name: [] for name, _, _ in points}
    for name, case, gates in progress(points, "bench cuda", quiet=arguments.json):
        measured[name].append(_measure(case, gates, setup))
    rows = measured.pop("cases")
    failed = failures([*rows, *(row for sweep in measured.values() for row in sweep)])
    record = {
        **machine(),
        **card(device),
        "peer": peer_version,
        "rounds": ROUNDS,
        "replays": arguments.replays,
        "ceilings": setup.ceilings._asdict(),
        "first_call_ms": 1e3 * first,
        "rows": rows,
        "sweeps": measured,
        "summary": summary(rows),
        "failures": failed,
    }
    if arguments.csv:
        with user_errors(arguments.csv):
            write_csv(arguments.csv, {"cases": rows, **measured})
    if arguments.plots:
        with user_errors(arguments.plots):
            _plots.draw(measured, f"{record['card']}, 16 / 32 heads, bf16", arguments.plots)
    if arguments.json:
        print_json(record)
    else:
        _print(record, setup.ceilings)
    return 1 if failed else 0


def find_card() -> str:
    """torch's current CUDA device, as in "cuda:0"."""
    try:
        import torch
    except ImportError as error:
        raise UserError(f"this benchmark needs torch: {error}") from None
    if not torch.cuda.is_available():
        raise UserError(f"this benchmark needs a CUDA device: torch {torch.__version__} sees none")
    return f"cuda:{torch.cuda.current_device()}"


def find_peer():
    """(chunk_gated_delta_rule, its version), or two None where it cannot be imported."""
    try:
        import fla
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError:
        return None, None
    return chunk_gated_delta_rule, getattr(fla, "__version__", "unknown")


def card(device: str) -> dict[str, str | None]:
    """Names and versions of what the kernels ran on."""
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True).stdout.split()
    except OSError:
        driver = []
    return {
        "card": torch.cuda.get_device_name(device),
        "driver": driver[0] if driver else None,
        "torch": torch.__version__,
    }


def write_csv(path: Path, tables: dict[str, list[dict]]) -> None:
    """All rows in one table; its first column says which of the tables a row is from."""
    rows = [{"table": name, **row} for name, table in tables.items() for row in table]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def _judge_outputs(arguments) -> None:
    """What would fail after minutes of measuring fails before."""
    if arguments.csv and not arguments.csv.parent.is_dir():
        raise UserError(f"{arguments.csv.parent} is not a folder")
    if not arguments.plots:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("--plots needs matplotlib, which cannot be imported")
    with user_errors(arguments.plots):
        arguments.plots.mkdir(parents=True, exist_ok=True)


def _judge_problems(cases: list[Case], device: str) -> None:
    """Every case has an engine, and the operators load."""
    for text in dict.fromkeys(case.problem(device.replace(":", "")) for case in cases):
        with user_errors(text):
            Problem(text).plan_name  # noqa: B018, raises every engine's reasons
    with user_errors():
        import deltaworks.ops  # noqa: F401


def _measure(case: Case, gates: str, setup: Setup) -> dict:
    import torch

    try:
        row = measure(case, gates, setup)
    except torch.OutOfMemoryError:
        raise UserError(f"--case {','.join(map(str, case))}: more than the card's memory") from None
    torch.cuda.empty_cache()
    return row


def _print(record: dict, reached: Ceilings) -> None:
    columns = ["case", "gates", ">ms", ">spread", ">cold ms", ">TFLOP/s"]
    columns += [">GB/s", ">of floor", ">call, us", ">plan, us"]
    if record["peer"]:
        columns += [">peer, ms", ">peer call, us", ">ratio", ">difference"]
    title = (
        f"{record['card']}, driver {record['driver']}, torch {record['torch']}, "
        f"peer: {record['peer'] or 'none'}\n"
        f"ceilings {1e-12 * reached.flops_per_second:,.0f} TFLOP/s and "
        f"{1e-9 * reached.bytes_per_second:,.0f} GB/s; "
        f"first call of a process {record['first_call_ms']:.1f} ms"
    )
    rows = [*record["rows"], *(row for sweep in record["sweeps"].values() for row in sweep)]
    print_table(columns, map(_cells, rows), title)
    said = record["summary"]
    if said["geometric_mean_ratio"] is not None:
        console().print(f"geometric mean of the ratios: {said['geometric_mean_ratio']:.3f}")
    difference = said["largest_gate_difference_percent"]
    console().print(f"strong and slow gates of a case differ by at most {difference:.1f} %")
    for line in record["failures"]:
        console().print(f"FAILED: {line}", soft_wrap=True)


def _cells(row: dict) -> tuple[str, ...]:
    cells = (
        str(Case(*(row[field] for field in Case._fields))),
        row["gates"],
        f"{row['ms']:.3f}",
        f"{row['spread_ms']:.3f}",
        f"{row['cold_ms']:.3f}",
        f"{row['tflops']:.1f}",
        f"{row['gb_per_second']:,.0f}",
        f"{row['floor_fraction']:.2f}",
        f"{row['call_us']:.1f}",
        f"{row['plan_us']:.1f}",
    )
    if "ratio" not in row:
        return cells
    return (
        *cells,
        f"{row['peer_ms']:.3f}",
        f"{row['peer_call_us']:.1f}",
        f"{row['ratio']:.2f}",
        f"{row['difference']:.1e}",
    )
