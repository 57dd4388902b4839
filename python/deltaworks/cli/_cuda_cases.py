"""What deltaworks bench cuda runs: its cases, their work, and the floor under their times.

Gated DeltaNet's forward in bf16 with K = V = 128. In a chunk of C = 64 rows and a head, three
products are with the state, 2 C K V operations each, and four among the rows, 2 C C K each; the
small inverse is not counted (docs/design/gated-delta-rule.md).
"""

from __future__ import annotations

import argparse
import statistics
from typing import NamedTuple

from deltaworks.cli.bench_cpu import count

HEAD_DIM = 128  # K and V
CHUNK = 64
GATES = {"strong": -2.5, "slow": -0.01}  # the mean of g, a token
LARGEST_DIFFERENCE = 2e-2  # from the peer's output, relative RMS
LARGEST_FRACTION = 1.02  # of the floor: the ceilings are measured, and scatter


class Case(NamedTuple):
    """Sequences of one length; the heads of q and k are repeated to those of v."""

    sequences: int
    tokens: int  # of each sequence
    q_heads: int  # and of k
    v_heads: int  # a multiple of them

    def __str__(self) -> str:
        return f"{self.sequences} x {self.tokens}, {self.q_heads} / {self.v_heads}"

    def problem(self, device: str) -> str:
        """The problem string of its forward; `device` as in "cuda0"."""
        dims = f"N{self.sequences}T{self.sequences * self.tokens}H{self.q_heads}HV{self.v_heads}"
        return f"gdn:fwd:bf16:{dims}K{HEAD_DIM}V{HEAD_DIM}:cu_seqlens=i64:device={device}"


CASES = (
    Case(4, 8192, 16, 32),
    Case(1, 32768, 16, 16),
    Case(1, 32768, 16, 32),
    Case(1, 8192, 16, 16),
    Case(1, 8192, 64, 64),
    Case(1, 2048, 16, 32),
    Case(8, 4096, 16, 32),
    Case(1, 131072, 16, 16),
)
# The points of the plots.
SWEEPS = {
    "length": tuple(Case(1, 1 << power, 16, 32) for power in range(10, 18)),
    "batch": tuple(Case(1 << power, 4096, 16, 32) for power in range(5)),
}


def parse_case(text: str) -> Case:
    """A case, for argparse."""
    fields = text.split(",")
    if len(fields) != len(Case._fields):
        raise argparse.ArgumentTypeError(
            f"must be N,LEN,H,HV (sequences, tokens of each, heads of q and k, heads of v), "
            f"got {text!r}"
        )
    case = Case(*map(count, fields))
    if case.v_heads % case.q_heads:
        raise argparse.ArgumentTypeError(f"HV must be a multiple of H, got {text!r}")
    return case


def flops(case: Case) -> int:
    """Operations of the forward."""
    chunks = case.sequences * -(-case.tokens // CHUNK)
    with_state = 2 * CHUNK * HEAD_DIM * HEAD_DIM
    among_rows = 2 * CHUNK * CHUNK * HEAD_DIM
    return chunks * case.v_heads * (3 * with_state + 4 * among_rows)


def bytes_moved(case: Case) -> int:
    """q, k, v, o in 2 bytes and g, beta in 4, each once."""
    wide = 2 * HEAD_DIM * (2 * case.q_heads + 2 * case.v_heads)
    return case.sequences * case.tokens * (wide + 4 * 2 * case.v_heads)


class Ceilings(NamedTuple):
    """What the card reaches: in a bf16 matrix product, and in a copy, read and written."""

    flops_per_second: float
    bytes_per_second: float


def floor_seconds(case: Case, ceilings: Ceilings) -> float:
    """No forward can take less."""
    arithmetic = flops(case) / ceilings.flops_per_second
    return max(arithmetic, bytes_moved(case) / ceilings.bytes_per_second)


def summary(rows: list[dict]) -> dict:
    """Over rows of _cuda_forward.measure: the geometric mean of the ratios to the peer, and by how
    many percent the times of one case differ between gates, at most. None where nothing tells."""
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    by_case: dict[tuple, list[float]] = {}
    for row in rows:
        key = tuple(row[field] for field in Case._fields)
        by_case.setdefault(key, []).append(row["ms"])
    gates = [100 * (max(times) / min(times) - 1) for times in by_case.values() if len(times) > 1]
    return {
        "geometric_mean_ratio": statistics.geometric_mean(ratios) if ratios else None,
        "largest_gate_difference_percent": max(gates, default=None),
    }


def failures(rows: list[dict]) -> list[str]:
    """What makes the benchmark worthless, a line each; a NaN is never within a bound."""
    lines = []
    for row in rows:
        name = f"{Case(*(row[field] for field in Case._fields))}, {row['gates']} gates"
        fraction, difference = row["floor_fraction"], row.get("difference", 0.0)
        if not fraction <= LARGEST_FRACTION:
            lines.append(
                f"{name}: {fraction:.2f} of the floor; more than {LARGEST_FRACTION} cannot be: "
                "the time, the work or a ceiling is wrong"
            )
        if not difference <= LARGEST_DIFFERENCE:
            lines.append(
                f"{name}: the outputs differ by {difference:.1e} (relative RMS), "
                f"at most {LARGEST_DIFFERENCE:.0e} is allowed"
            )
    return lines
