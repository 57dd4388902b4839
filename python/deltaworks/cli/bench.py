"""deltaworks bench: the engines' benchmarks (bench_cpu.py, bench_overhead.py, bench_cuda.py)."""

from __future__ import annotations

from deltaworks.cli import bench_cpu, bench_cuda, bench_overhead


def add_to(commands) -> None:
    parser = commands.add_parser("bench", help="how fast it is here")
    benchmarks = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for module in (bench_cpu, bench_overhead, bench_cuda):
        module.add_to(benchmarks)
