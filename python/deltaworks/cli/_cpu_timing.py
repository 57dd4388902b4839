"""Timing of calls on the CPU, and the rate of multiply-adds that the times are compared with."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

_LARGEST_COUNT = 2**31 - 1  # of threads, in the C interface


def count(text: str) -> int:
    """A count, for argparse."""
    if not text.isdecimal() or len(text) > 10 or not 1 <= int(text) <= _LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"must be a number in 1..{_LARGEST_COUNT}, got {text!r}")
    return int(text)


def seconds_a_call(call: Callable[[], object], calls: int) -> float:
    """The median of `calls` calls, each timed alone: who is put aside loses one of them."""
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def calls_in(seconds: float, call: Callable[[], object]) -> int:
    """How many calls fill the time, at least one; makes one to find out."""
    return max(1, round(seconds / max(seconds_a_call(call, 1), 1e-6)))


def spread(seconds: list[float]) -> float:
    """Distance of the quartiles, relative to the median."""
    if len(seconds) < 2:
        return 0.0
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / median
