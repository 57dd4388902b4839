"""Errors beside their bounds, as JSON and as rows of a table: for run --check and verify."""

from __future__ import annotations

from deltaworks.testing.bounds import Row

COLUMNS = ("tensor", ">error", ">bound", ">worst part", "")


def as_json(row: Row) -> dict:
    return row._asdict() | {"ok": row.ok}


def as_cells(row: Row) -> tuple[str, ...]:
    """`worst part`: the largest of the RMS, (sequence, head) and maximum errors / its bound."""
    verdict = "ok" if row.ok else "OUT OF BOUNDS"
    if row.tiny:
        verdict += ", about zero"
    return row.tensor, f"{row.error:.1e}", f"{row.bound:.1e}", f"{row.worst:.2f}", verdict
