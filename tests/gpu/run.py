"""Runs the tests on a machine with a card and writes their record.

    python run.py BUILD PACKAGES OUT [--commit HASH] [--sanitize] [--mutants FOLDER] [--profile]
                  [--benchmark]

BUILD holds the programs of tests/gpu of the preset dev-cuda, PACKAGES the wheel's installation (pip
install --target). OUT becomes a record: when, on which card and driver, of which commit and
binaries, what ran, its output. --sanitize adds compute-sanitizer's four tools, --mutants the
programs of tools/gpu_mutants.py, --profile the figures of profile_kernels.py, --benchmark the
record of `deltaworks bench cuda`, with its plots beside OUT.
"""

import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]  # its place is not of the record
BENCHMARK = [sys.executable, "-m", "deltaworks.cli", "bench", "cuda", "--json", "--plots"]
PROGRAMS = ("deltaworks_device_test", "deltaworks_gpu_test", "deltaworks_gpu_overhead")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Under a sanitizer: every kernel and padded dimension once, ragged and hostile offsets.
SMALL = (
    "CudaForward.Lengths:CudaForward.HostileOffsets:CudaForward.States:CudaForward.SmallSegments:"
    "CudaStages.*"
)


class Record:
    """What ran so far; the file holds it at any time."""

    def __init__(self, arguments):
        self.out = arguments.out
        library = arguments.packages / "deltaworks" / "lib" / "libdeltaworks.so.0"
        binaries = [library, *(arguments.build / name for name in PROGRAMS)]
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        self.entries = {
            "date": datetime.date.today().isoformat(),
            "commit": arguments.commit,
            "card": subprocess.run(query, capture_output=True, text=True).stdout.strip(),
            "binaries": {x.name: hashlib.sha256(x.read_bytes()).hexdigest() for x in binaries},
            "ran": [],
        }
        path = [str(arguments.packages), os.environ.get("PYTHONPATH", "")]
        self.environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        self.failed = False

    def add(self, name, value, ok=True):
        self.entries[name] = value
        self.failed |= not ok
        self.out.write_text(json.dumps(self.entries, indent=1) + "\n")

    def run(self, name, command, **environment):
        """Runs a program, with its output in the record; returns its stdout."""
        start = time.monotonic()
        result = subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            env=self.environment | environment,
        )
        passed = result.returncode == 0
        seconds = round(time.monotonic() - start, 2)
        output = (result.stdout + result.stderr).replace(f"{ROOT}/", "").splitlines()[-150:]
        print(f"{name:32} {'passed' if passed else 'FAILED'} {seconds} s", flush=True)
        if not passed:
            print("\n".join(output[-60:]), flush=True)
        entry = {"name": name, "passed": passed, "seconds": seconds, "output": output}
        self.add("ran", [*self.entries["ran"], entry], passed)
        return result.stdout

    def run_json(self, name, command):
        """Runs a program that prints JSON, which becomes an entry of its own."""
        text = self.run(name, command)
        self.entries["ran"][-1]["output"] = []
        if text:  # none if it failed before it measured
            self.add(name, json.loads(text))


def run_mutant(folder, row):
    """Whether the test named for a seeded defect fails in the program that has it."""
    command = [folder / row["program"], f"--gtest_filter={row['test']}"]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    killed = result.returncode != 0 and "[  FAILED  ]" in result.stdout
    print(f"{'killed' if killed else 'SURVIVED'}: {row['name']} ({row['test']})", flush=True)
    return row | {"killed": killed}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("packages", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--mutants", type=Path, metavar="FOLDER")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--benchmark", action="store_true")
    arguments = parser.parse_args()
    device, forward, overhead = (arguments.build / name for name in PROGRAMS)
    record = Record(arguments)

    record.run("device vocabulary", [device])
    # The portable way of what newer cards have instructions for.
    record.run("device vocabulary, PTX of 8.0", [device], CUDA_FORCE_PTX_JIT="1")
    record.run("forward", [forward])
    record.run("overhead", [overhead])
    for name in ("torch", "regimes", "bitwise"):
        record.run(f"PyTorch, {name}", [sys.executable, HERE / f"{name}_test.py"])
    for tool in TOOLS if arguments.sanitize else ():
        sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
        record.run(f"{tool}, device vocabulary", [*sanitizer, device])
        record.run(f"{tool}, forward", [*sanitizer, forward, f"--gtest_filter={SMALL}"])
    if arguments.mutants:
        rows = json.loads((arguments.mutants / "mutants.json").read_text())
        rows = [run_mutant(arguments.mutants, row) for row in rows]
        record.add("mutants", rows, all(row["killed"] for row in rows))
    if arguments.profile:
        record.run_json("profile", [sys.executable, HERE / "profile_kernels.py"])
    if arguments.benchmark:
        record.run_json("benchmark", [*BENCHMARK, arguments.out.parent])
    return int(record.failed)


if __name__ == "__main__":
    sys.exit(main())
