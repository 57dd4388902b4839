"""What commands print: tables for people, JSON for programs, progress on stderr."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

_WIDTH = 160  # where there is no terminal to ask


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """main() knows what to do; rich would end the process."""
        raise BrokenPipeError


def console(stderr: bool = False) -> Console:
    """Texts hold brackets of shapes: nothing in them is markup."""
    plain = _Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not plain.is_terminal and "COLUMNS" not in os.environ:
        plain.width = _WIDTH
    return plain


def print_json(value) -> None:
    print(json.dumps(finite(value), indent=1, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Columns whose name begins with ">" are aligned to the right."""
    table = Table(
        title=title or None, title_justify="left", box=box.SIMPLE_HEAD, show_header=any(columns)
    )
    for column in columns:
        justify = "right" if column.startswith(">") else "left"
        table.add_column(column.lstrip(">"), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def progress(items: Iterable, text: str, quiet: bool, total: int | None = None) -> Iterable:
    """The items, with a bar on a terminal; `total` is their number where they have no length."""
    screen = console(stderr=True)
    return track(
        items,
        text,
        total,
        console=screen,
        transient=True,
        disable=quiet or not screen.is_terminal,
    )


def finite(value):
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
