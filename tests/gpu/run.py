"""Runs the tests on a machine with a card and writes their record.

    python run.py BUILD PACKAGES OUT [--commit HASH] [--sanitize] [--profile] [--benchmark]
                  [--mutants FOLDER]

BUILD holds the programs of tests/gpu of the preset dev-cuda, PACKAGES the wheel's installation (pip
install --target). OUT becomes a record: when, on which card and driver, of which commit and
binaries, what ran, its output. --sanitize adds compute-sanitizer's four tools, --profile the
figures of profile_kernels.py, --benchmark the record of `deltaworks bench cuda`, with its plots
beside OUT.
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
BENCHMARK = [sys.executable, "-m", "deltaworks.cli", "bench", "cuda", "--json", "--plots"]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Under a sanitizer: every kernel and padded dimension once, ragged and hostile offsets.
SMALL = ":".join(
    f"CudaForward.{name}" for name in ("Lengths", "HostileOffsets", "States", "SmallSegments")
)
SMALL += ":CudaStages.*"


def run(name, command, environment, stdout=subprocess.PIPE):
    """The record's entry of a program; with a file for its stdout, the output is stderr alone."""
    start = time.monotonic()
    result = subprocess.run(
        list(map(str, command)),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    output = ((result.stdout or "") + result.stderr).splitlines()
    entry = {
        "name": name,
        "passed": result.returncode == 0,
        "seconds": round(time.monotonic() - start, 2),
        "output": output[-150:],
    }
    print(f"{name:32} {'passed' if entry['passed'] else 'FAILED'} {entry['seconds']} s", flush=True)
    if not entry["passed"]:
        print("\n".join(output[-60:]), flush=True)
    return entry


def mutants(arguments):
    return json.loads((arguments.mutants / "mutants.json").read_text())


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
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--benchmark", action="store_true")
    parser.add_argument("--mutants", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    names = ("device_test", "gpu_test", "gpu_overhead")
    device, forward, overhead = (arguments.build / f"deltaworks_{name}" for name in names)
    library = arguments.packages / "deltaworks" / "lib" / "libdeltaworks.so.0"
    path = os.pathsep.join(filter(None, [str(arguments.packages), os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": path}

    ran = [
        run("device vocabulary", [device], {}),
        # The portable way of what newer cards have instructions for.
        run("device vocabulary, PTX of 8.0", [device], {"CUDA_FORCE_PTX_JIT": "1"}),
        run("forward", [forward], {}),
        run("overhead", [overhead], {}),
        *(
            run(f"PyTorch, {name}", [sys.executable, HERE / f"{name}_test.py"], environment)
            for name in ("torch", "regimes", "bitwise")
        ),
    ]
    if arguments.sanitize:
        for tool in TOOLS:
            sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
            ran.append(run(f"{tool}, device vocabulary", [*sanitizer, device], {}))
            ran.append(
                run(f"{tool}, forward", [*sanitizer, forward, f"--gtest_filter={SMALL}"], {})
            )
    record = {
        "date": datetime.date.today().isoformat(),
        "commit": arguments.commit,
        "binaries": {
            x.name: hashlib.sha256(x.read_bytes()).hexdigest()
            for x in (device, forward, overhead, library)
        },
        "ran": ran,
    }
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    record["card"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    if arguments.mutants:
        record["mutants"] = [run_mutant(arguments.mutants, row) for row in mutants(arguments)]
    if arguments.profile:
        figures = arguments.out.with_suffix(".profile")
        ran.append(
            run("profile", [sys.executable, HERE / "profile_kernels.py", figures], environment)
        )
        if figures.exists():
            record["profile"] = json.loads(figures.read_text())
            figures.unlink()
    if arguments.benchmark:
        times = arguments.out.with_suffix(".times")
        with times.open("w") as file:
            ran.append(run("benchmark", [*BENCHMARK, arguments.out.parent], environment, file))
        if text := times.read_text():  # none if it failed before it measured
            record["times"] = json.loads(text)
        times.unlink()
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    killed = all(row["killed"] for row in record.get("mutants", []))
    return 0 if killed and all(entry["passed"] for entry in ran) else 1


if __name__ == "__main__":
    sys.exit(main())
