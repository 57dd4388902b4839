"""Gated DeltaNet on one CPU thread: the engine's forward and backward beside a plain PyTorch loop.

    PYTHONPATH=python .venv/bin/python benchmarks/cpu/gated_delta_net.py [--json FILE]

Only ratios within one run mean anything on a shared machine: everything runs in one process, in
turns, and the medians of the turns are compared. The outputs that are timed are checked against
each other first. Sizes: fp32, K = V = 128, l2 norm, beta logits and the safe gate fused.
"""

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import deltaworks
from deltaworks.demo import torch_backend
from deltaworks.ops import gated_delta_net, last_plan

OPTIONS = dict(use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True, safe_gate=True)
KEY_DIM = VALUE_DIM = 128


def make_inputs(tokens: int, heads: int) -> list[torch.Tensor]:
    """q, k, v [T, H, 128]; g, beta [T, H]; cu_seqlens of one sequence."""
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(tokens, heads, KEY_DIM, generator=random) for _ in range(3))
    g, beta = (torch.randn(tokens, heads, generator=random) for _ in range(2))
    return [q, k, v, g - 2, beta, torch.tensor([0, tokens])]


def seconds(f) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def measure(tokens: int, heads: int, turns: int) -> dict:
    inputs = make_inputs(tokens, heads)
    leaves = [x.requires_grad_() for x in (y.clone() for y in inputs[:5])] + inputs[5:]
    d_o = torch.randn(tokens, heads, VALUE_DIM, generator=torch.Generator().manual_seed(1))

    def loop():
        with torch.no_grad():
            return torch_backend.gated_delta_net(*inputs, **OPTIONS)[0]

    def forward():
        with torch.no_grad():
            return gated_delta_net(*inputs, **OPTIONS, plan_name="gdn_cpu")[0]

    o = gated_delta_net(*leaves, **OPTIONS, plan_name="gdn_cpu")[0]

    def backward():
        torch.autograd.grad(o, leaves[:5], d_o, retain_graph=True)

    error = ((forward() - loop()).square().mean() / loop().square().mean()).sqrt().item()
    if error > 1e-5 or last_plan() != "gdn_cpu":
        raise SystemExit(f"the outputs differ by {error:.1e}, engine {last_plan()}")
    backward()
    times = {"loop": [], "forward": [], "backward": []}
    for _ in track(range(turns), f"T={tokens} H={heads}"):
        times["loop"].append(seconds(loop))
        for _ in range(3):
            times["forward"].append(seconds(forward))
            times["backward"].append(seconds(backward))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "tokens": tokens,
        "heads": heads,
        "error": error,
        "seconds": times,
        "forward_over_loop": medians["loop"] / medians["forward"],
        "backward_over_forward": medians["backward"] / medians["forward"],
        "us_per_token_head": {
            name: 1e6 * median / (tokens * heads) for name, median in medians.items()
        },
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the record there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(512, 4, arguments.turns), measure(2048, 16, arguments.turns)]

    isa, lanes = deltaworks.cpu_isa()
    table = Table(title=f"GDN fp32 128 x 128, one thread, {isa}; us a token and head (medians)")
    for column in ("T x H", "forward", "backward", "PyTorch loop", "loop / forward", "bwd / fwd"):
        table.add_column(column, justify="right")
    for row in rows:
        us = row["us_per_token_head"]
        table.add_row(
            f"{row['tokens']} x {row['heads']}",
            f"{us['forward']:.2f}",
            f"{us['backward']:.2f}",
            f"{us['loop']:.1f}",
            f"{row['forward_over_loop']:.1f}x",
            f"{row['backward_over_forward']:.2f}x",
        )
    Console().print(table)
    if arguments.json:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
        ).stdout.strip()
        record = {
            "date": datetime.date.today().isoformat(),
            "processor": processor(),
            "isa": isa,
            "lanes": lanes,
            "torch": torch.__version__,
            "commit": commit,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
