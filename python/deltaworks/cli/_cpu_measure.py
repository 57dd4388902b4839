"""Times one case of `deltaworks bench cpu`, ours and PyTorch's, after checking them.

Rounds take turns with the peak loop: a pass is timed between two runs of it, so that a disturbance
of the machine meets both alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch

from deltaworks._library import cpu_peak
from deltaworks.cli._cpu_operators import OPERATORS, Case, make_inputs
from deltaworks.cli._cpu_peers import chunked, loop
from deltaworks.cli._cpu_timing import calls_in, seconds_a_call, spread
from deltaworks.errors import NotSupportedError

PASSES = ("forward", "backward")
_PEERS = {"loop": loop, "chunked": chunked}
_ROUND_SECONDS = 0.05  # of one pass: shorter calls are repeated
# Relative RMS, of outputs and of gradients. What is compared sums in another order.
_BOUNDS = {"fp32": (2e-5, 2e-4), "bf16": (1e-2, 2e-2)}


class Settings(NamedTuple):
    """How to measure: the same for all cases."""

    threads: int
    rounds: int
    peer_rounds: int
    loop_tokens: int  # at most, of the token loop
    chunked_tokens: int  # at most, of the chunked form
    peak_seconds: float


class Pair(NamedTuple):
    """The two calls of an operator on its inputs, and what they give."""

    forward: Callable[[], torch.Tensor]
    backward: Callable[[], tuple[torch.Tensor, ...]]
    output: torch.Tensor
    gradients: dict[str, torch.Tensor]


def measure(case: Case, settings: Settings, operator: Callable | None = None) -> dict:
    """{"rows": [a row a pass], "failures": [why there are none]}.

    `operator` stands in for that of deltaworks.ops. Raises what the operator raises.
    """
    operator = operator or find(case.op)
    failures, peers, errors = [], {}, {}
    for name, peer in _PEERS.items():
        tokens = min(case.tokens, getattr(settings, f"{name}_tokens"))
        peers[name] = tokens, prepare(case, plain(peer, case), tokens)
        errors[name] = differences(prepare(case, operator, tokens), peers[name][1])
        failures += _judge(case, tokens, name, errors[name])
    ours = prepare(case, operator)
    plan = _last_plan()
    # The backward of all tokens in PyTorch may take more memory than there is: the output only.
    whole = {"o": relative_rms(ours.output, _output(case, plain(chunked, case)))}
    errors["chunked"]["o"] = max(errors["chunked"]["o"], whole["o"])
    failures += _judge(case, case.tokens, "chunked", whole)
    if failures:
        return {"rows": [], "failures": list(dict.fromkeys(failures))}
    return {"rows": _time(case, settings, plan, ours, peers, errors), "failures": []}


def find(op: str) -> Callable:
    """The operator of a row, on the CPU engine: (tensors, cu_seqlens) -> o."""
    from deltaworks import ops

    row = OPERATORS[op]
    if not hasattr(ops, row.name):
        raise NotSupportedError(f"deltaworks.ops has no {row.name}")
    function = getattr(ops, row.name)

    def call(tensors, cu_seqlens):
        plan = f"{op}_cpu"
        return function(**tensors, **row.options, cu_seqlens=cu_seqlens, plan_name=plan)[0]

    return call


def plain(peer: Callable, case: Case) -> Callable:
    rows = OPERATORS[case.op].rows
    narrow = {"fp32": torch.float32, "bf16": torch.bfloat16}[case.dtype]

    def call(tensors, cu_seqlens):
        return peer(rows(**{name: x.float() for name, x in tensors.items()})).to(narrow)

    return call


def _output(case: Case, operator: Callable) -> torch.Tensor:
    tensors, _ = make_inputs(case)
    with torch.no_grad():
        return operator(tensors, torch.tensor([0, case.tokens]))


def prepare(case: Case, operator: Callable, tokens: int | None = None) -> Pair:
    """Runs both passes once, on the first tokens of the case."""
    tensors, d_o = make_inputs(case, tokens)
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    cu_seqlens = torch.tensor([0, len(d_o)])

    def forward():
        with torch.no_grad():
            return operator(tensors, cu_seqlens)

    o = operator(leaves, cu_seqlens)

    def backward():
        return torch.autograd.grad(o, list(leaves.values()), d_o, retain_graph=True)

    gradients = {f"d{name}": x for name, x in zip(leaves, backward(), strict=True)}
    return Pair(forward, backward, forward(), gradients)


def relative_rms(ours: torch.Tensor, peer: torch.Tensor) -> float:
    ours, peer = ours.double(), peer.double()
    return ((ours - peer).square().mean() / peer.square().mean()).sqrt().item()


def differences(ours: Pair, peer: Pair) -> dict[str, float]:
    """Of the output and of every gradient, by name."""
    gradients = {
        name: relative_rms(ours.gradients[name], expected)
        for name, expected in peer.gradients.items()
    }
    return {"o": relative_rms(ours.output, peer.output), **gradients}


def _judge(case: Case, tokens: int, peer: str, errors: dict[str, float]) -> list[str]:
    output, gradient = _BOUNDS[case.dtype]
    bounds = {name: output if name == "o" else gradient for name in errors}
    return [
        f"{case}, {tokens} tokens: {name} differs from PyTorch's {peer} form by "
        f"{error:.1e}, more than {bounds[name]:.0e}"
        for name, error in errors.items()
        if not error <= bounds[name]  # NaN as well
    ]


def _last_plan() -> str:
    from deltaworks.ops import last_plan

    return last_plan()


def _time(case, settings: Settings, plan: str, ours: Pair, peers, errors) -> list[dict]:
    seconds = {pass_: [] for pass_ in PASSES}
    peaks = {pass_: [] for pass_ in PASSES}
    peer_seconds = {(name, pass_): [] for name in peers for pass_ in PASSES}
    calls = {pass_: calls_in(_ROUND_SECONDS, getattr(ours, pass_)) for pass_ in PASSES}
    for turn in range(settings.rounds):
        before = cpu_peak(settings.threads, settings.peak_seconds)
        for pass_ in PASSES:
            seconds[pass_].append(seconds_a_call(getattr(ours, pass_), calls[pass_]))
            after = cpu_peak(settings.threads, settings.peak_seconds)
            peaks[pass_].append(statistics.median((before, after)))
            before = after
        if turn < settings.peer_rounds:
            for name, pass_ in peer_seconds:
                call = getattr(peers[name][1], pass_)
                peer_seconds[name, pass_].append(seconds_a_call(call, 1))
    return [
        row_of(
            case,
            pass_,
            seconds[pass_],
            peaks[pass_],
            {name: (peers[name][0], peer_seconds[name, pass_]) for name in peers},
        )
        | {"plan": plan, "errors": {name: max(errors[name].values()) for name in errors}}
        for pass_ in PASSES
    ]


def row_of(case: Case, pass_: str, seconds: list[float], peaks: list[float], peers: dict) -> dict:
    """A row: times a token and head, and fractions of the bound.

    `seconds` and `peaks` are those of each round; `peers` are (tokens, seconds) by name. `fraction`
    is the median over the rounds, each with its own peak; `best_fraction` is that of the best time
    and the largest peak, `ceiling_fraction` the same of the operations that cannot be spared.
    """
    token_heads, lane_ops = case.tokens * case.heads, case.lane_ops(pass_)
    best, median = min(seconds), statistics.median(seconds)
    fractions = [
        lane_ops * token_heads / (rate * time) for rate, time in zip(peaks, seconds, strict=True)
    ]
    row = {
        **case._asdict(),
        "sub_steps": case.sub_steps,
        "pass": pass_,
        "lane_ops_per_token_head": lane_ops,
        "peak_lane_ops_per_second": statistics.median(peaks),
        "bound_us": 1e6 * lane_ops / statistics.median(peaks),
        "best_us": 1e6 * best / token_heads,
        "median_us": 1e6 * median / token_heads,
        "spread": spread(seconds),
        "fraction": statistics.median(fractions),
        "best_fraction": lane_ops * token_heads / (max(peaks) * best),
        "ceiling_fraction": case.least_lane_ops(pass_) * token_heads / (max(peaks) * best),
        "seconds": seconds,
        "peaks": peaks,
    }
    for name, (tokens, times) in peers.items():
        us = 1e6 / (tokens * case.heads)
        row |= {
            f"{name}_tokens": tokens,
            f"{name}_best_us": us * min(times),
            f"{name}_us": us * statistics.median(times),
            f"{name}_ratio": us * statistics.median(times) / row["median_us"],
            f"{name}_seconds": times,
        }
    return row
