"""Plots of deltaworks bench cuda, the time of a token and head over one size, ours and the peer's;
and of bench cpu, fractions of the bound and ratios to PyTorch.
"""

from __future__ import annotations

from pathlib import Path

from deltaworks.cli._cpu_worker import where

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


def draw_operators(rows: list[dict], title: str, file: Path) -> None:
    """Rows of bench cpu: a group of bars an operator, a bar an instruction set, threads, dtype."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(2, 2, sharey="row")
    measures = (("fraction", "of the bound"), ("chunked_ratio", "PyTorch's chunked form / ours"))
    for line, (field, label) in zip(panels, measures, strict=True):
        for axes, pass_ in zip(line, ("forward", "backward"), strict=True):
            _bars(axes, [row for row in rows if row["pass"] == pass_], field)
            axes.set(title=pass_, ylabel=label)
            axes.grid(alpha=0.3, axis="y")
    for axes in panels[1]:
        axes.axhline(1, color="black", linewidth=0.8)
    handles, labels = panels[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.savefig(file, format="png", dpi=110)


def _bars(axes, rows: list[dict], field: str) -> None:
    groups = list(dict.fromkeys(map(_operator, rows)))
    kinds = list(dict.fromkeys(map(_kind, rows)))
    width = 0.8 / max(1, len(kinds))
    for number, kind in enumerate(kinds):
        own = [row for row in rows if _kind(row) == kind]
        places = [groups.index(_operator(row)) + (number + 0.5) * width - 0.4 for row in own]
        axes.bar(places, [row[field] for row in own], width, label=kind)
    axes.set_xticks(range(len(groups)), groups)


def _operator(row: dict) -> str:
    return f"{row['op']}\n{row['key_dim']} x {row['value_dim']}"


def _kind(row: dict) -> str:
    return f"{where(row)}, {row['dtype']}"


def _ns(row: dict, milliseconds: float) -> float:
    return 1e6 * milliseconds / (row["sequences"] * row["tokens"] * row["v_heads"])
