"""Plots of deltaworks bench cuda: time of a token and head over one size, ours and the peer's."""

from __future__ import annotations

from pathlib import Path

# Of each sweep: the row's field on the axis, the axis, the title.
_AXES = {
    "length": ("tokens", "tokens of one sequence", "1 sequence"),
    "batch": ("sequences", "sequences", "4096 tokens a sequence"),
}


def draw(sweeps: dict[str, list[dict]], title: str, folder: Path) -> list[Path]:
    """One time-by-NAME.png a sweep, of rows of _cuda_forward.measure; returns the files."""
    from matplotlib.figure import Figure

    files = []
    for name, rows in sweeps.items():
        field, label, what = _AXES[name]
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot()
        sizes = [row[field] for row in rows]
        for legend, time in (("deltaworks", "ms"), ("flash-linear-attention", "peer_ms")):
            if all(time in row for row in rows):
                axes.plot(sizes, [_ns(row, row[time]) for row in rows], marker="o", label=legend)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(title=f"{title}\n{what}", xlabel=label, ylabel="ns a token and head")
        axes.grid(alpha=0.3, which="both")
        axes.legend()
        files.append(folder / f"time-by-{name}.png")
        figure.savefig(files[-1], dpi=110)
    return files


def _ns(row: dict, milliseconds: float) -> float:
    return 1e6 * milliseconds / (row["sequences"] * row["tokens"] * row["v_heads"])
