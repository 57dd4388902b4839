"""deltaworks bench overhead: what a call costs besides its kernels, on one token and one head.

Each way of calling runs many times in turn with the bare kernels; its overhead is the median of
the differences, and holds the handing of work to a second thread where the plan uses one
(OMP_NUM_THREADS). PyTorch's rows are there if torch can be imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import statistics
from collections.abc import Callable
from typing import NamedTuple

import deltaworks.numpy
from deltaworks.cli._cpu_timing import count, seconds_a_call, spread
from deltaworks.cli._errors import user_errors
from deltaworks.cli._machine import machine
from deltaworks.cli._output import add_json, print_json, print_table, progress
from deltaworks.problem import Problem
from deltaworks.testing import make_inputs
from deltaworks.testing.execute import Run

FORWARD = "gdn:fwd:fp32:N1T1H1K128V128"
BACKWARD = "gdn:bwd:fp32:N1T1H1K128V128"
_ARGUMENTS = ("q", "k", "v", "g", "beta", "cu_seqlens")
_CALLS = 100  # in a round


class Way(NamedTuple):
    """A way of calling: its name, a call, whether the backward is in it, the target in seconds."""

    name: str
    call: Callable[[], object]
    backward: bool
    target: float | None


def add_to(benchmarks) -> None:
    parser = benchmarks.add_parser("overhead", help="time of a call besides its kernels")
    parser.add_argument("--rounds", type=count, default=50, help="default: 50")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments) -> int:
    with user_errors():
        inputs = make_inputs(Problem(BACKWARD))
        forward_inputs = {name: inputs[name] for name in _ARGUMENTS}
        forward, backward = Run(Problem(FORWARD), forward_inputs), Run(Problem(BACKWARD), inputs)
        ways = [_numpy_way(forward_inputs), *_torch_ways(inputs)]
        for way in ways:
            seconds_a_call(way.call, _CALLS)  # warms up
    planned, kernels = [], {False: [], True: []}
    measured = {way.name: [] for way in ways}
    for _ in progress(range(arguments.rounds), "bench overhead", quiet=arguments.json):
        execute, kernel = forward.time(_CALLS)
        _, backward_kernel = backward.time(_CALLS)
        planned.append(execute - kernel)
        kernels[False].append(kernel)
        kernels[True].append(kernel + backward_kernel)
        for way in ways:
            bare = kernels[way.backward][-1]
            measured[way.name].append(seconds_a_call(way.call, _CALLS) - bare)
    bare = {backward: statistics.median(kernels[backward]) for backward in kernels}
    rows = [_row("built plan", planned, bare[False], 2e-6)]
    rows += [_row(way.name, measured[way.name], bare[way.backward], way.target) for way in ways]
    kernel_us = {
        "forward": 1e6 * bare[False],
        "forward_and_backward": 1e6 * bare[True],
    }
    if arguments.json:
        record = {"torch": _torch_version(), "problem": FORWARD, "plan": forward.plan.name}
        record["configuration"] = forward.plan.configuration
        print_json(machine() | record | {"kernel_us": kernel_us, "overhead": rows})
        return 0
    print_table(
        ("call", ">overhead, us", ">spread, us", ">target, us", "", ">call / kernels"),
        map(_cells, rows),
        f"{FORWARD}, {forward.plan.name}: {forward.plan.configuration}\n"
        f"kernels alone: forward {kernel_us['forward']:.2f} us, "
        f"with backward {kernel_us['forward_and_backward']:.2f} us",
    )
    return 0


def _numpy_way(inputs) -> Way:
    return Way("NumPy operator", lambda: deltaworks.numpy.gated_delta_net(**inputs), False, None)


def _torch_ways(inputs) -> list[Way]:
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    from deltaworks.ops import gated_delta_net

    plain = {name: torch.from_numpy(inputs[name]) for name in _ARGUMENTS}
    d_o = torch.from_numpy(inputs["dO"])
    leaves = {
        name: tensor.clone().requires_grad_(tensor.is_floating_point())
        for name, tensor in plain.items()
    }
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]

    def both():
        return torch.autograd.grad(gated_delta_net(**leaves)[0], wanted, d_o)

    return [
        Way("PyTorch operator, no gradients", lambda: gated_delta_net(**plain), False, 10e-6),
        Way("PyTorch operator, with gradients", lambda: gated_delta_net(**leaves), False, 20e-6),
        Way("PyTorch operator, forward and backward", both, True, None),
    ]


def _torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _row(name: str, seconds: list[float], kernels: float, target: float | None) -> dict:
    median = statistics.median(seconds)
    return {
        "call": name,
        "overhead_us": 1e6 * median,
        "spread_us": 1e6 * abs(spread(seconds) * median),
        "target_us": None if target is None else 1e6 * target,
        "met": None if target is None else median <= target,
        "ratio_to_kernels": (kernels + median) / kernels,
    }


def _cells(row: dict) -> tuple[str, ...]:
    return (
        row["call"],
        f"{row['overhead_us']:.2f}",
        f"{row['spread_us']:.2f}",
        "" if row["target_us"] is None else f"{row['target_us']:.0f}",
        {None: "for information", True: "met", False: "missed"}[row["met"]],
        f"{row['ratio_to_kernels']:.2f}",
    )
