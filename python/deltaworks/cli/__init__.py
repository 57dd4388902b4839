"""The command line: `deltaworks COMMAND`, also `python -m deltaworks.cli` (docs/command-line.md).

Results go to stdout, as a table or with --json as one JSON object; everything else to stderr. Exit
codes: 0, 1 for a "no" (nothing runs the problem, an error is out of bounds), 2 for bad usage and
for output that cannot be written.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import NoReturn, TextIO

import deltaworks
from deltaworks.cli import bench, explain, info, run, verify
from deltaworks.cli._errors import UserError, printable


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    name = "deltaworks"
    try:
        try:
            arguments = _parser().parse_args(argv)
            name += f" {arguments.command}"
            code = arguments.run(arguments)
        except SystemExit as stop:  # argparse has said what there is to say
            code = stop.code
        print(end="", flush=True)
        return code
    except UserError as error:
        _complain(f"{name}: {error}")
        return 2
    except BrokenPipeError:  # the reader has seen enough
        _discard_output()
        return 0
    except OSError as error:  # commands turn those of files into a UserError
        _discard_output()
        _complain(f"{name}: cannot write the output: {error.strerror or error}")
        return 2
    except KeyboardInterrupt:
        _complain(f"{name}: interrupted")
        return 130


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)


def _discard_output() -> None:
    """Keeps the interpreter from flushing once more what cannot be written."""
    with contextlib.suppress(OSError):  # stdout is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Subcommands inherit the class."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))

    def _print_message(self, message: str, file: TextIO | None = None) -> None:
        """argparse's own is silent where it cannot write, if stdout has no buffer."""
        print(message, end="", file=file or sys.stderr)


def _parser() -> _Parser:
    parser = _Parser(
        prog="deltaworks", description="Chunked linear attention: what is there, and does it work."
    )
    parser.add_argument("--version", action="version", version=deltaworks.__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (info, explain, run, verify, bench):
        module.add_to(commands)
    return parser
