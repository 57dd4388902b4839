"""The command line: `deltaworks COMMAND`, also `python -m deltaworks.cli` (docs/command-line.md).

Results go to stdout, as a table or with --json as one JSON object; everything else to stderr. Exit
codes: 0, 1 for a "no" (nothing runs the problem, an error is out of bounds), 2 for bad usage.
"""

from __future__ import annotations

import argparse
import os
import sys

import deltaworks
from deltaworks.cli import bench, explain, info, run, verify
from deltaworks.cli._errors import UserError


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said what there is to say
        return stop.code
    try:
        code = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"deltaworks {arguments.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has seen enough; keep the interpreter from flushing again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"deltaworks {arguments.command}: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deltaworks", description="Chunked linear attention: what is there, and does it work."
    )
    parser.add_argument("--version", action="version", version=deltaworks.__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (info, explain, run, verify, bench):
        module.add_to(commands)
    return parser
