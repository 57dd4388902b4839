"""`python -m deltaworks.demo`: trains a small language model on this machine's CPU and tests it.

Reads the Python standard library's own source, trains, saves and reloads a checkpoint, continues a
held-out function token by token, and compares with byte counts and gzip. A second run with --ablate
shows what the same model learns without the operator; --layer takes another kind of layer.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from deltaworks.demo import baselines, checkpoint, generate, plot, report
from deltaworks.demo.corpus import Corpus, load_corpus, validation_pieces
from deltaworks.demo.induction import induction_test
from deltaworks.demo.layers import LAYERS
from deltaworks.demo.model import ByteModel, ModelConfig, zeroed
from deltaworks.demo.train import (
    BatchStream,
    TrainConfig,
    bits_per_byte,
    induction_accuracy,
    train,
)

VALIDATION_PIECE, VALIDATION_BYTES = 2048, 262144


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__.partition(":")[2])
    parser.add_argument(
        "--layer", choices=LAYERS, default="gdn", help="of the model (default %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=800, help="updates (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches, at least 0")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder of the results")
    parser.add_argument("--json", type=Path, help="also write the final numbers to this file")
    parser.add_argument(
        "--record", type=Path, help="folder that gets them as OPERATOR.json, and loss.png redrawn"
    )
    parser.add_argument(
        "--ablate", action="store_true", help="zero the operator's output, all else equal"
    )
    parser.add_argument(
        "--backend",
        choices=("deltaworks", "torch"),
        default="deltaworks",
        help="torch: a plain PyTorch token loop, slow",
    )
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    if not 0 <= options.seed < 2**32:
        parser.error("--seed must be in 0..2^32-1")
    try:  # before anything is trained
        options.out.mkdir(parents=True, exist_ok=True)
        if options.record is not None:
            options.record.mkdir(parents=True, exist_ok=True)
        if options.json is not None:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.touch()
    except OSError as error:
        parser.error(f"cannot write there: {error}")
    return options


def find_operator(layer: str, backend: str, ablate: bool) -> Callable:
    """A layer's operator of a backend, zeroed for the ablation."""
    if backend == "torch":
        from deltaworks.demo import torch_backend as module
    else:
        from deltaworks import ops as module
    operator = getattr(module, LAYERS[layer].operator)
    return zeroed(operator) if ablate else operator


def label_of(layer: str, backend: str, ablate: bool) -> str:
    """The name of a run's files: the operator, and what is unusual about the run."""
    if ablate:
        label = "ablated" if layer == "gdn" else f"{LAYERS[layer].operator}_ablated"
    else:
        label = LAYERS[layer].operator
    return label if backend == "deltaworks" else f"{label}_{backend}"


def train_with_progress(
    console: Console, model: ByteModel, corpus: Corpus, config: TrainConfig, seed: int, curve: Path
) -> float:
    """Trains under a progress bar, or with one line an evaluation where there is no terminal."""
    pieces = validation_pieces(corpus.validation, VALIDATION_PIECE, VALIDATION_BYTES)
    columns = (
        BarColumn(),
        TextColumn("step {task.completed}/{task.total}"),
        TextColumn("{task.fields[rate]:,.0f} tokens/s"),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("validation {task.fields[validation]} bits per byte"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("train", total=config.steps, rate=0.0, loss="-", validation="-")

        def on_step(record: dict) -> None:
            rate = record["tokens"] / record["seconds"]
            loss = f"{record['loss']:.3f}"
            progress.update(task, completed=record["step"], rate=rate, loss=loss)
            if "validation_bits_per_byte" in record:
                measured = f"{record['validation_bits_per_byte']:.3f}"
                progress.update(task, validation=measured)
                if not console.is_terminal:
                    console.print(
                        f"step {record['step']}/{config.steps}  {rate:,.0f} tokens/s  "
                        f"loss {loss}  validation {measured} bits per byte"
                    )

        return train(model, BatchStream(corpus, config, seed), config, pieces, curve, on_step)


def show_continuation(console: Console, model: ByteModel, corpus: Corpus) -> float:
    """Continues a held-out function; returns decoding's distance from the parallel forward."""
    name, prompt, rest = generate.find_function(corpus.validation)
    made = generate.continue_text(model, prompt, 300, temperature=0.8)
    shown = prompt[-200:].decode("utf-8", "replace")
    console.rule(f"{name}: the prompt ends in, and the model goes on with (bold)")
    console.print(
        f"{escape(shown)}[bold]{escape(made.text.decode('utf-8', 'replace'))}[/bold]",
        highlight=False,
    )
    console.rule("the file itself goes on with")
    console.print(escape(rest.decode("utf-8", "replace")), highlight=False)
    console.rule(f"decoding = parallel forward within {made.mismatch:.1e}")
    return made.mismatch


def main(arguments: list[str] | None = None) -> dict:
    """Runs the demo; returns the final numbers."""
    options = parse(arguments)
    began = time.perf_counter()
    console = Console()
    torch.manual_seed(options.seed)
    label = label_of(options.layer, options.backend, options.ablate)

    corpus = load_corpus()
    operator = find_operator(options.layer, options.backend, options.ablate)
    config = TrainConfig(options.steps)
    model = ByteModel(ModelConfig(layer=options.layer), operator)
    parameters = sum(p.numel() for p in model.parameters())
    console.print(
        f"{len(corpus.train)} files ({sum(len(t) for _, t in corpus.train):,} bytes) to train on, "
        f"{len(corpus.validation)} held out; {parameters:,} parameters, "
        f"{config.steps} steps of {config.tokens:,} tokens, {torch.get_num_threads()} threads"
    )
    curve = options.out / f"{label}.jsonl"
    seconds = train_with_progress(console, model, corpus, config, options.seed, curve)

    saved = options.out / f"{label}.safetensors"
    checkpoint.save(model, saved)
    model = checkpoint.load(saved, operator)
    mismatch = show_continuation(console, model, corpus)

    pieces = validation_pieces(corpus.validation, VALIDATION_PIECE, VALIDATION_BYTES)
    training_text = [text for _, text in corpus.train]
    result = {
        "layer": options.layer,
        "operator": LAYERS[options.layer].operator,
        "backend": options.backend,
        "ablate": options.ablate,
        "seed": options.seed,
        "steps": config.steps,
        "tokens": config.steps * config.tokens,
        "parameters": parameters,
        "model": model.config.as_dict(),
        "training": config.as_dict(),
        "validation_bytes": sum(map(len, pieces)),
        "validation_bits_per_byte": bits_per_byte(model, pieces),
        "induction_accuracy": induction_accuracy(model, induction_test(options.seed)),
        "order0_bits_per_byte": baselines.order_bits_per_byte(0, training_text, pieces),
        "order2_bits_per_byte": baselines.order_bits_per_byte(2, training_text, pieces),
        "gzip_bits_per_byte": baselines.gzip_bits_per_byte(pieces),
        "decoding_mismatch": mismatch,
        "training_seconds": seconds,
        "total_seconds": time.perf_counter() - began,
        "threads": torch.get_num_threads(),
        "curve": plot.thinned(plot.read_curve(curve)),
    }
    report.show(console, result)
    console.print(f"loss curve: {curve}   checkpoint: {saved}")
    text = json.dumps(result, indent=2) + "\n"
    if options.json is not None:
        options.json.write_text(text)
    if options.record is not None:
        (options.record / f"{label}.json").write_text(text)
        plot.draw(plot.find_curves([options.record]), options.record / "loss.png")
    return result


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing is saved but the loss curve so far")
