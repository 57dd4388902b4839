"""Times of calls on a card: by events on the device, or by the host's clock without waiting.

Every function takes a callable. torch is imported where it is used: other commands do without.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from deltaworks.cli._cuda_cases import Ceilings

Call = Callable[[], object]
Key = TypeVar("Key")

_CALLS = 50  # of one host_seconds: their launches fit into the card's queue
_HEAD_START = 4  # flushes: the card is busy until the host has queued some replays
_COPY_BYTES = 2 << 30  # read, and as many written
_MATRIX = 8192


def device_seconds(call: Call, count: int, before: Call = lambda: None) -> list[float]:
    """Seconds on the device of each of `count` calls, queued without waiting; `before` runs ahead
    of each and is not in them."""
    import torch

    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for start, end in pairs:
        before()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [1e-3 * start.elapsed_time(end) for start, end in pairs]


def warm_seconds(replay: Call, count: int, flush: Call) -> list[float]:
    """Of replays back to back, after one that is not timed. An idle card would wait for the host
    between the events of short ones, so it is kept busy first."""
    for _ in range(_HEAD_START):
        flush()
    replay()
    return device_seconds(replay, count)


def cold_seconds(replay: Call, count: int, flush: Call) -> list[float]:
    """Of replays that find nothing of theirs in the L2 cache."""
    return device_seconds(replay, count, before=flush)


def host_seconds(call: Call) -> float:
    """Seconds that a call keeps the host, the card idle at first: the median of a few in a row."""
    import torch

    seconds = []
    torch.cuda.synchronize()
    for _ in range(_CALLS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(seconds)


def in_turns(takes: Mapping[Key, Callable[[], list[float]]], rounds: int) -> dict[Key, list[float]]:
    """The seconds that each take gives, over all rounds. They alternate, so that a change of the
    card's clock meets all alike."""
    seconds: dict[Key, list[float]] = {key: [] for key in takes}
    for _ in range(rounds):
        for key, take in takes.items():
            seconds[key] += take()
    return seconds


def middle(seconds: list[float]) -> tuple[float, float]:
    """The median, and the distance between the quartiles."""
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return median, high - low


def capture(call):
    """(replay, output): the call as a CUDA graph, and the tensor that a replay writes.

    The calls before it, on another stream as a capture asks for, compile and tune what there is.
    """
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    return graph.replay, output


def flusher(device: str) -> Call:
    """A call that overwrites what the L2 cache holds."""
    import torch

    size = 4 * torch.cuda.get_device_properties(device).L2_cache_size
    return torch.empty(size, dtype=torch.uint8, device=device).zero_


def ceilings(device: str) -> Ceilings:
    """What the card reaches in a large copy and a large bf16 product of random numbers."""
    import torch

    def rate(work: int, call: Call) -> float:
        device_seconds(call, 3)
        return work / statistics.median(device_seconds(call, 20))

    source = torch.randint(256, (_COPY_BYTES,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = rate(2 * _COPY_BYTES, lambda: target.copy_(source))
    a, b = (torch.randn(_MATRIX, _MATRIX, device=device).bfloat16() for _ in range(2))
    product = torch.empty_like(a)
    return Ceilings(rate(2 * _MATRIX**3, lambda: torch.matmul(a, b, out=product)), copied)
