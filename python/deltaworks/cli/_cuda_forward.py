"""One row of deltaworks bench cuda: the forward of a case, and the peer's on the same inputs.

The peer is flash-linear-attention's chunk_gated_delta_rule. It takes [N, tokens, heads, D]; q and k
are repeated to the heads of v for it, which is not timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from deltaworks import _library
from deltaworks.cli._cuda_cases import (
    GATES,
    HEAD_DIM,
    Case,
    Ceilings,
    bytes_moved,
    floor_seconds,
    flops,
)
from deltaworks.cli._cuda_timing import (
    Call,
    capture,
    cold_seconds,
    host_seconds,
    in_turns,
    middle,
    warm_seconds,
)
from deltaworks.problem import Problem

ROUNDS = 5
_PLANNED_CALLS = 25


class Setup(NamedTuple):
    """What all cases share."""

    device: str  # "cuda:0"
    peer: Callable | None
    replays: int  # in a round
    flush: Call
    ceilings: Ceilings


def make_inputs(case: Case, gate: float, device: str) -> dict:
    """The operator's tensors: q, k, v [T, heads, 128] in bf16, the keys normalised; g and beta
    [T, HV] in fp32; cu_seqlens. The mean of g is `gate`."""
    import torch

    T = case.sequences * case.tokens
    random = torch.Generator(device).manual_seed(0)
    normal = partial(torch.randn, generator=random, device=device)
    uniform = partial(torch.rand, generator=random, device=device)
    k = torch.nn.functional.normalize(normal(T, case.q_heads, HEAD_DIM), dim=-1)
    return {
        "q": normal(T, case.q_heads, HEAD_DIM).bfloat16(),
        "k": k.bfloat16(),
        "v": normal(T, case.v_heads, HEAD_DIM).bfloat16(),
        "g": 2 * gate * uniform(T, case.v_heads),
        "beta": uniform(T, case.v_heads),
        "cu_seqlens": torch.arange(0, T + 1, case.tokens, device=device),
    }


def measure(case: Case, gates: str, setup: Setup) -> dict:
    """Times, rates and the comparison with the peer, as one flat row."""
    import torch

    from deltaworks.ops import gated_delta_net, last_plan, workspace_bytes

    inputs = make_inputs(case, GATES[gates], setup.device)
    plan = _library.Plan(Problem(case.problem(setup.device.replace(":", ""))).struct())
    calls: dict[str, Call] = {"ours": lambda: gated_delta_net(**inputs)[0]}
    if setup.peer is not None:
        calls["peer"] = _peer_call(setup.peer, case, inputs)
    with torch.no_grad():
        graphs = {"ours": capture(calls["ours"])}
        if last_plan() != plan.name:
            raise RuntimeError(f"{plan.name} takes {case}, but {last_plan()} ran")
        workspace = workspace_bytes()
        if "peer" in calls:
            graphs["peer"] = capture(calls["peer"])
        seconds = in_turns(
            {
                (name, kind): partial(take, replay, setup.replays, setup.flush)
                for kind, take in (("warm", warm_seconds), ("cold", cold_seconds))
                for name, (replay, _) in graphs.items()
            },
            ROUNDS,
        )
        host = in_turns({name: partial(_host, call) for name, call in calls.items()}, ROUNDS)
        planned = in_turns({"plan": _planned(plan, inputs)}, ROUNDS)
    cold, _ = middle(seconds["ours", "cold"])
    row: dict = {
        **case._asdict(),
        "gates": gates,
        "plan": plan.name,
        "workspace_bytes": workspace,
        **_times("", seconds, "ours"),
        "tflops": 1e-12 * flops(case) / cold,
        "gb_per_second": 1e-9 * bytes_moved(case) / cold,
        "floor_fraction": floor_seconds(case, setup.ceilings) / cold,
        "call_us": 1e6 * middle(host["ours"])[0],
        "plan_us": 1e6 * middle(planned["plan"])[0],
    }
    if "peer" in calls:
        row |= _times("peer_", seconds, "peer")
        row["peer_call_us"] = 1e6 * middle(host["peer"])[0]
        row["ratio"] = row["peer_ms"] / row["ms"]
        row["difference"] = _difference(graphs)
    return row


def _peer_call(peer: Callable, case: Case, inputs: dict) -> Call:
    def dense(name: str):
        return inputs[name].unflatten(0, (case.sequences, case.tokens))

    q, k = (dense(x).repeat_interleave(case.v_heads // case.q_heads, 2) for x in ("q", "k"))
    v, g, beta = map(dense, ("v", "g", "beta"))
    return lambda: peer(q, k, v, g, beta, scale=HEAD_DIM**-0.5)[0]


def _host(call: Call) -> list[float]:
    return [host_seconds(call)]


def _planned(plan: _library.Plan, inputs: dict) -> Callable[[], list[float]]:
    """Seconds that an execution of the plan keeps the host, taken in C, on torch's default stream
    (the one that a null pointer names)."""
    import torch

    o = torch.empty_like(inputs["v"])
    workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=o.device)
    tensors = inputs | {"o": o}

    def take() -> list[float]:  # holds the tensors as well as their addresses
        pointers = {_library.PORTS.index(name): x.data_ptr() for name, x in tensors.items()}
        torch.cuda.synchronize()
        seconds, _ = plan.time(pointers, workspace.data_ptr(), _PLANNED_CALLS)
        torch.cuda.synchronize()
        return [seconds]

    return take


def _times(prefix: str, seconds: dict, name: str) -> dict[str, float]:
    warm, cold = (middle(seconds[name, kind]) for kind in ("warm", "cold"))
    return {
        f"{prefix}ms": 1e3 * warm[0],
        f"{prefix}spread_ms": 1e3 * warm[1],
        f"{prefix}cold_ms": 1e3 * cold[0],
        f"{prefix}cold_spread_ms": 1e3 * cold[1],
    }


def _difference(graphs: dict) -> float:
    """Relative RMS difference of what the timed graphs write, over outputs that hold NaN before."""
    outputs = []
    for replay, output in graphs.values():
        output.fill_(float("nan"))
        replay()
        outputs.append(output.flatten().float())
    ours, peer = outputs
    return ((ours - peer).norm() / peer.norm()).item()
