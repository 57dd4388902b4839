"""Draws the loss curves of several runs.

    python -m deltaworks.demo.plot RUN.jsonl ... -o FILE.png

Left the training loss (bits a scored byte, a running mean), right the validation bits per byte.
"""

import argparse
import json
from pathlib import Path


def read_curve(path: Path) -> list[dict]:
    """The records of one run, as `deltaworks.demo.train.train` wrote them."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def smoothed(values: list[float], window: int = 15) -> list[float]:
    """Mean of each value and up to window - 1 values before it."""
    return [
        sum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window) for i in range(len(values))
    ]


def draw(curves: dict[str, list[dict]], output: Path) -> None:
    """Draws curves by label into an image file; its suffix picks the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for label, records in curves.items():
        tokens = [record["tokens"] / 1e6 for record in records]
        left.plot(tokens, smoothed([record["loss"] for record in records]), label=label)
        measured = [record for record in records if "validation_bits_per_byte" in record]
        right.plot(
            [record["tokens"] / 1e6 for record in measured],
            [record["validation_bits_per_byte"] for record in measured],
            marker="o",
            markersize=3,
            label=label,
        )
    left.set(title="training loss", xlabel="million tokens", ylabel="bits a scored byte")
    right.set(title="validation", xlabel="million tokens", ylabel="bits per byte")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m deltaworks.demo.plot", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.jsonl")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.png")
    options = parser.parse_args(arguments)
    draw({path.stem: read_curve(path) for path in options.runs}, options.output)


if __name__ == "__main__":
    main()
