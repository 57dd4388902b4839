"""deltaworks run FILE: runs a captured call again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from deltaworks.cli import _error_rows
from deltaworks.cli._errors import UserError, printable, user_errors
from deltaworks.cli._output import add_json, console, print_json, print_table
from deltaworks.testing import compare, files, read_capture
from deltaworks.testing.execute import Run

RESULTS_FORMAT = "deltaworks results 1"


def add_to(commands) -> None:
    parser = commands.add_parser("run", help="run a captured call")
    parser.add_argument("file", type=Path, help="safetensors file of deltaworks.testing.capture")
    parser.add_argument("--plan", help="pin an engine")
    parser.add_argument(
        "--output", type=Path, help="where the results go; default: FILE with .results.safetensors"
    )
    parser.add_argument("--force", action="store_true", help="overwrite existing results")
    parser.add_argument(
        "--check", action="store_true", help="compare with the reference engine; exit 1 if not ok"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments) -> int:
    output = _output(arguments)
    with user_errors(arguments.file):
        problem, inputs = read_capture(arguments.file)
        if arguments.plan is not None:
            problem = problem.pinned(arguments.plan)
        call = Run(problem, inputs)
        call.execute()
        checks = compare(problem, inputs, call.outputs) if arguments.check else []
    metadata = {
        "format": RESULTS_FORMAT,
        "problem": str(problem),
        "plan": call.plan.name,
        **files.provenance(),
    }
    with user_errors(output):
        files.save(output, call.outputs, metadata)
    results = [_summary(name, array) for name, array in call.outputs.items()]
    if arguments.json:
        record = {"problem": str(problem), "plan": call.plan.name, "output": str(output)}
        record["tensors"] = results
        if arguments.check:
            record["check"] = [_error_rows.as_json(row) for row in checks]
        print_json(record)
    else:
        where = printable(str(output))
        console().print(f"{problem}\nran on {call.plan.name}, results in {where}", soft_wrap=True)
        print_table(
            ("tensor", "dtype", "shape", ">min", ">max", ">rms", ">not finite"),
            map(_cells, results),
        )
        if arguments.check:
            print_table(
                _error_rows.COLUMNS,
                map(_error_rows.as_cells, checks),
                "against the reference engine",
            )
    return 0 if all(row.ok for row in checks) else 1


def _output(arguments) -> Path:
    """Where the results go; judged before anything runs."""
    source = arguments.file
    if not source.name:
        raise UserError(f"{source} is not a file")
    output = arguments.output or source.with_name(
        source.name.removesuffix(".safetensors") + ".results.safetensors"
    )
    with user_errors():
        exists = output.exists()
        if exists and source.exists() and output.samefile(source):
            raise UserError(f"{output} is the input")
        is_folder = output.parent.is_dir()
    if exists and not arguments.force:
        raise UserError(f"{output} exists; --force overwrites it")
    if not is_folder:
        raise UserError(f"{output.parent} is not a folder")
    return output


def _summary(name: str, array: np.ndarray) -> dict:
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    return {
        "tensor": name,
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "rms": float(np.sqrt(np.square(finite).mean())) if finite.size else None,
        "not_finite": int(wide.size - finite.size),
    }


def _cells(summary: dict) -> tuple[str, ...]:
    numbers = (summary[name] for name in ("min", "max", "rms"))
    return (
        summary["tensor"],
        summary["dtype"],
        " x ".join(map(str, summary["shape"])),
        *("" if number is None else f"{number:.4g}" for number in numbers),
        str(summary["not_finite"]),
    )
