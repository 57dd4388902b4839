"""Draws the loss curves of several runs.

    python -m deltaworks.demo.plot RUN ... -o FILE.png

A RUN is a curve as the training writes it (*.jsonl), a record of `./dev demo --json` (*.json), or a
folder of records: then every layer that has one there. Left the training loss (bits a scored byte,
means of some steps), right the validation bits per byte.
"""

import argparse
import json
from pathlib import Path

from deltaworks.demo.layers import LAYERS


def read_curve(path: Path) -> list[dict]:
    """The steps of one run, as `deltaworks.demo.train.train` wrote them."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def thinned(steps: list[dict], points: int = 40) -> dict[str, list[float]]:
    """What a plot and a record keep of a run: by name, columns of numbers.

    tokens and loss: the mean loss of each group of steps, about `points` groups, at its last step;
    validation_tokens and validation_bits_per_byte: the evaluations.
    """
    size = max(1, len(steps) // points)
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]
    measured = [step for step in steps if "validation_bits_per_byte" in step]
    return {
        "tokens": [group[-1]["tokens"] for group in groups],
        "loss": [round(sum(s["loss"] for s in group) / len(group), 4) for group in groups],
        "validation_tokens": [step["tokens"] for step in measured],
        "validation_bits_per_byte": [round(s["validation_bits_per_byte"], 4) for s in measured],
    }


def find_curves(paths: list[Path]) -> dict[str, dict[str, list[float]]]:
    """Curves by label of runs, records and folders; in a folder, records without one are left out.

    Raises:
        ValueError: a record that was named holds no curve.
    """
    curves = {}
    for path in paths:
        if path.suffix == ".jsonl":
            curves[path.stem] = thinned(read_curve(path))
        elif path.is_dir():
            for layer in LAYERS.values():
                record = path / f"{layer.operator}.json"
                curve = json.loads(record.read_text()).get("curve") if record.exists() else None
                if curve is not None:
                    curves[layer.title] = curve
        else:
            record = json.loads(path.read_text())
            if "curve" not in record:
                raise ValueError(f"demo: {path} holds no loss curve")
            curves[path.stem] = record["curve"]
    return curves


def draw(curves: dict[str, dict[str, list[float]]], output: Path) -> None:
    """Draws curves (see `thinned`) by label into an image file; its suffix picks the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    columns = (("tokens", "loss"), ("validation_tokens", "validation_bits_per_byte"))
    titles = (("training loss", "bits a scored byte"), ("validation", "bits per byte"))
    for axes, (x, y), (title, unit) in zip(panels, columns, titles, strict=True):
        for label, curve in curves.items():
            axes.plot([n / 1e6 for n in curve[x]], curve[y], label=label, marker=".", markersize=4)
        axes.set(title=title, xlabel="million tokens", ylabel=unit)
        axes.grid(alpha=0.3)
        axes.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m deltaworks.demo.plot", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.png")
    options = parser.parse_args(arguments)
    draw(find_curves(options.runs), options.output)


if __name__ == "__main__":
    main()
