"""Kernel time of the Gated DeltaNet forward on a card, against flash-linear-attention where it can
be imported, in one process.

    python gated_delta_net.py OUT.json [--rows N]

bf16, K = V = 128, keys normalised before. Each call is captured in a CUDA graph; a time is the
median of replays, with the spread of the middle half. Strong gates (-2.5 a token) and slow ones
(-0.01). The timed output is compared with the peer's.
"""

import argparse
import datetime
import json
import statistics
import subprocess

import torch

from deltaworks.ops import gated_delta_net, last_plan, workspace_bytes

try:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
except ImportError:
    chunk_gated_delta_rule = None

# Sequences, tokens each, heads of q and k, heads of v.
ROWS = [
    (4, 8192, 16, 32),
    (1, 32768, 16, 16),
    (1, 32768, 16, 32),
    (1, 8192, 16, 16),
    (1, 8192, 64, 64),
    (1, 2048, 16, 32),
    (8, 4096, 16, 32),
    (1, 131072, 16, 16),
]
GATES = {"strong": -2.5, "slow": -0.01}
REPLAYS = 30


def inputs(N, length, H, HV, gate):
    T = N * length
    q, k = (torch.randn(T, H, 128, device="cuda") for _ in range(2))
    k = torch.nn.functional.normalize(k, dim=-1)
    return dict(
        q=q.bfloat16(),
        k=k.bfloat16(),
        v=torch.randn(T, HV, 128, device="cuda").bfloat16(),
        g=gate * torch.rand(T, HV, device="cuda") * 2,
        beta=torch.rand(T, HV, device="cuda"),
        cu_seqlens=torch.arange(0, T + 1, length, device="cuda"),
    )


def milliseconds(call):
    """(median, spread of the middle half) of a captured call's replays; and its output."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, high - low, output


def ours(x):
    with torch.no_grad():
        return milliseconds(lambda: gated_delta_net(**x)[0])


def peer(x, N, length, H, HV):
    """The peer takes [B, T, H, D] and repeats q and k for grouped heads, which is not timed."""
    if chunk_gated_delta_rule is None:
        return None

    def dense(t):
        return t.unflatten(0, (N, length))

    q, k = (dense(x[n]).repeat_interleave(HV // H, 2).contiguous() for n in ("q", "k"))
    v, g, beta = (dense(x[n]).contiguous() for n in ("v", "g", "beta"))
    with torch.no_grad():
        time, spread, o = milliseconds(
            lambda: chunk_gated_delta_rule(q, k, v, g, beta, scale=128**-0.5)[0]
        )
    return time, spread, o.flatten(0, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--rows", type=int, default=len(ROWS))
    arguments = parser.parse_args()
    rows = []
    for N, length, H, HV in ROWS[: arguments.rows]:
        for gate, mean in GATES.items():
            x = inputs(N, length, H, HV, mean)
            time, spread, o = ours(x)
            assert last_plan() == "gdn_sm80"
            row = dict(sequences=N, length=length, heads=[H, H, HV], gate=gate, ms=time)
            row |= dict(spread_ms=spread, workspace_bytes=workspace_bytes())
            other = peer(x, N, length, H, HV)
            if other is not None:
                error = ((o.float() - other[2].float()).norm() / other[2].float().norm()).item()
                row |= dict(fla_ms=other[0], fla_spread_ms=other[1], ratio=other[0] / time)
                row |= dict(difference=error)
            rows.append(row)
            print(json.dumps(row), flush=True)
            del x, o, other
            torch.cuda.empty_cache()
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    record = dict(
        date=datetime.date.today().isoformat(),
        gpu=subprocess.run(query, capture_output=True, text=True).stdout.strip(),
        torch=torch.__version__,
        rows=rows,
    )
    with open(arguments.out, "w") as file:
        json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
