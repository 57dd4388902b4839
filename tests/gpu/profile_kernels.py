"""Profiler figures of the kernels of two calls, a full card and one long sequence, as JSON.

    python profile_kernels.py     (runs itself under ncu)

The profiler fixes the card's clock and runs kernels one at a time, so that its times are no
benchmark; they and the fractions of peak rates say what limits a kernel.
"""

import csv
import io
import json
import re
import subprocess
import sys

CASES = {
    "4 x 8192, 16 / 32 heads": (4, 8192, 16, 32),
    "1 x 32768, 16 / 16 heads": (1, 32768, 16, 16),
}
WARM_UP = 2  # calls that are not profiled
SECTIONS = ("SpeedOfLight", "Occupancy", "WarpStateStats", "ComputeWorkloadAnalysis", "LaunchStats")
COLUMNS = {
    "gpu__time_duration.sum": "ns",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute_percent",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "l1_percent",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2_percent",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "sm__warps_active.avg.per_cycle_active": "warps_a_multiprocessor",
    "smsp__issue_active.avg.per_cycle_active": "issued_a_cycle",
    "launch__registers_per_thread": "registers",
    "launch__occupancy_limit_registers": "blocks_by_registers",
    "launch__occupancy_limit_shared_mem": "blocks_by_shared_memory",
    "launch__grid_size": "blocks",
}


def call(name):
    """The profiled process: calls of one case."""
    import torch

    from deltaworks.cli._cuda_cases import Case
    from deltaworks.cli._cuda_forward import make_inputs
    from deltaworks.ops import gated_delta_net

    inputs = make_inputs(Case(*CASES[name]), -0.01, "cuda:0")
    with torch.no_grad():
        for _ in range(WARM_UP + 1):
            gated_delta_net(**inputs)
    torch.cuda.synchronize()


def number(text):
    return float(text.replace(",", ""))


def profile(name):
    """[{kernel, figures}] of the last call."""
    command = ["ncu", "--csv", "--page", "raw", "-k", "regex:find_off|prepare|walk|fix_up"]
    for section in SECTIONS:
        command += ["--section", section]
    output = subprocess.run(
        [*command, sys.executable, __file__, "--call", name], capture_output=True, text=True
    )
    lines = [line for line in output.stdout.splitlines() if line.startswith('"')]
    if output.returncode != 0 or len(lines) < 3:
        raise SystemExit(output.stdout[-2000:] + output.stderr[-2000:])
    head, _, *rows = csv.reader(io.StringIO("\n".join(lines)))  # the second row holds units
    rows = rows[-(len(rows) // (WARM_UP + 1)) :]
    return [
        {"kernel": re.search(r"\w+(?=[<(])", row[head.index("Kernel Name")])[0]}
        | {short: number(row[head.index(name)]) for name, short in COLUMNS.items() if name in head}
        for row in rows
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--call"]:
        call(sys.argv[2])
    else:
        print(json.dumps({name: profile(name) for name in CASES}, indent=1))
