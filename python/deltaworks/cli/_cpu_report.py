"""What `deltaworks bench cpu` measured: its record, table and CSV, and what makes it a failure."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
from pathlib import Path

from deltaworks import _library
from deltaworks.cli._cpu_operators import SUB_STEPS
from deltaworks.cli._cpu_worker import where
from deltaworks.cli._machine import machine
from deltaworks.cli._output import console, finite, print_table

LARGEST_FRACTION = 1.02  # of the ceiling: more is a defect of the benchmark
_ABOUT = ("isa", "lanes", "threads")  # of an answer, in each of its rows
_PASSES = {"forward": "fwd", "backward": "bwd"}


def record(chosen: dict[str, int], answers: list[dict]) -> dict:
    """The machine, what was chosen, the rows and the failures of all answers of a Worker."""
    here = machine()
    del here["isa"]  # that of this process, which measures nothing
    rows = [
        {**{name: answer[name] for name in _ABOUT}, **row}
        for answer in answers
        for row in answer["rows"]
    ]
    differing = [f"{where(answer)}: {text}" for answer in answers for text in answer["failures"]]
    return {
        **here,
        "load_average": os.getloadavg()[0],  # with its own: much over the threads is a busy machine
        "commit": commit(),
        "library_sha256": sha256(_library.SONAME),
        "torch_library_sha256": sha256("libdeltaworks_torch.so"),
        "torch": answers[0]["torch"],
        "torch_isa": answers[0]["torch_isa"],
        **chosen,
        "rows": rows,
        "failures": differing + impossible(rows),
    }


def impossible(rows: list[dict]) -> list[str]:
    """Rows that are faster than the peak loop allows; a fraction that is no number is one, too."""
    return [
        f"{where(row)}: {row['op']} {row['dtype']} {row['pass']}: {row['ceiling_fraction']:.3f} of "
        f"the ceiling: the benchmark is wrong"
        for row in rows
        if not 0 < row["ceiling_fraction"] <= LARGEST_FRACTION
    ]


def commit() -> str | None:
    """Of the source tree that this file belongs to, with "+" if it was changed; None outside."""
    here = Path(__file__)

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(here.parent), *arguments]
        try:
            result = subprocess.run(command, capture_output=True, text=True)
        except OSError:
            return None
        return result.stdout.strip() if result.returncode == 0 else None

    if not git("ls-files", here.name):
        return None
    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{git('rev-parse', 'HEAD')}{'+' if changed else ''}"


def sha256(library: str) -> str | None:
    """Of a file in the package's lib folder; None where it was not built."""
    path = _library.folder() / library
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def write_json(path: Path, record: dict) -> None:
    path.write_text(json.dumps(finite(record), indent=1, allow_nan=False) + "\n")


def write_csv(path: Path, rows: list[dict]) -> None:
    """The rows without their lists; errors are columns of their own."""
    flat = [
        {
            **{name: value for name, value in row.items() if not isinstance(value, list | dict)},
            **{f"{name}_error": error for name, error in row["errors"].items()},
        }
        for row in rows
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, flat[0] if flat else [])
        writer.writeheader()
        writer.writerows(flat)


def title(record: dict) -> str:
    return (
        f"{record['processor']}, deltaworks {record['deltaworks']}, "
        f"T={record['tokens']} H={record['heads']}"
    )


def show(record: dict) -> None:
    """The table, and what failed below it."""
    columns = ("ISA", ">threads", "operator", "dtype", "pass", ">best, us", ">median, us")
    columns += (">spread", ">bound, us", ">of bound", ">at best", ">chunked / ours")
    columns += (">loop / ours", ">difference")
    about = (
        f"{title(record)}; us a token and head, {record['rounds']} rounds; "
        f"gdp has {SUB_STEPS} sub-steps\n"
        f"PyTorch {record['torch']} ({record['torch_isa']}) on the same threads: at most "
        f"{record['chunked_tokens']} tokens chunked, {record['loop_tokens']} in the loop"
    )
    print_table(columns, map(_cells, record["rows"]), about)
    for line in record["failures"]:
        console().print(f"FAILED: {line}", soft_wrap=True)


def _cells(row: dict) -> tuple[str, ...]:
    return (
        row["isa"],
        str(row["threads"]),
        f"{row['op']} {row['key_dim']}x{row['value_dim']}",
        row["dtype"],
        _PASSES[row["pass"]],
        f"{row['best_us']:.3f}",
        f"{row['median_us']:.3f}",
        f"{100 * row['spread']:.0f} %",
        f"{row['bound_us']:.3f}",
        f"{row['fraction']:.2f}",
        f"{row['best_fraction']:.2f}",
        f"{row['chunked_ratio']:.1f}",
        f"{row['loop_ratio']:.1f}",
        f"{max(row['errors'].values()):.1e}",
    )
