"""What the demo says at the end, as a table and as a JSON record."""

from rich.console import Console
from rich.table import Table

from deltaworks.demo.layers import LAYERS

NOTES = (
    "bits per byte: mean over the validation pieces, each model on the same bytes (files held out "
    "by name). Order 0 and 2 are adaptive byte counts, started on the training text; gzip -9 "
    "compresses all the pieces as one file. While training, the first few pieces alone are read.",
    "induction: a random string of 32 bytes, 8 to 64 random bytes, the string again; counted are "
    "its bytes after the first 4. Training reads fresh documents of that kind ({share:.0%} of its "
    "tokens, scored on the repetition alone), the test others. The blocks start as an associative "
    "memory that holds nothing (see layers.py).",
)
ABLATION_NOTE = (
    "With the operator's output zeroed nothing passes from one byte to the next (the short "
    "convolutions feed the operator): what is left is an order-1 model."
)


def show(console: Console, result: dict) -> None:
    """Prints the final table of a result (see __main__)."""
    table = Table(title="Python source text, held-out files")
    table.add_column("model")
    table.add_column("bits per byte", justify="right")
    table.add_column("induction", justify="right")
    label = LAYERS[result["layer"]].title + (
        ", operator's output zeroed" if result["ablate"] else ""
    )
    table.add_row(
        f"{label} ({result['parameters']:,} parameters)",
        f"{result['validation_bits_per_byte']:.3f}",
        f"{result['induction_accuracy']:.1%}",
        style="bold",
    )
    table.add_row("gzip -9", f"{result['gzip_bits_per_byte']:.3f}", "")
    table.add_row("order-2 bytes", f"{result['order2_bits_per_byte']:.3f}", "")
    table.add_row("order-0 bytes", f"{result['order0_bits_per_byte']:.3f}", "")
    table.add_row("chance", f"{8:.3f}", f"{1 / 256:.1%}")
    console.print(table)
    for note in NOTES:
        console.print(note.format(share=result["training"]["induction_share"]), style="dim")
    if result["ablate"]:
        console.print(ABLATION_NOTE, style="dim")
    console.print(
        f"{result['tokens']:,} tokens in {result['steps']} steps, "
        f"{result['training_seconds']:.0f} s of training, {result['total_seconds']:.0f} s in all; "
        f"backend {result['backend']}"
    )
