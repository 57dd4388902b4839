"""Runs the tests on a machine with a card and writes their record.

    python run.py BUILD PACKAGES OUT [--commit HASH] [--sanitize] [--benchmark]

BUILD holds the programs of tests/gpu of the preset dev-cuda, PACKAGES the wheel's installation (pip
install --target). OUT becomes a record: when, on which card and driver, of which commit and
binaries, what ran, its output. --sanitize adds compute-sanitizer's four tools; --benchmark adds the
record of `deltaworks bench cuda`.
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
BENCHMARK = [sys.executable, "-m", "deltaworks.cli", "bench", "cuda", "--json"]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Under a sanitizer: every kernel and head dimension once, ragged and hostile offsets.
SMALL = (
    "CudaForward.Lengths:CudaForward.HostileOffsets:CudaForward.States:CudaForward.SmallSegments"
)


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
        "output": output[-60:],
    }
    print(f"{name:32} {'passed' if entry['passed'] else 'FAILED'} {entry['seconds']} s", flush=True)
    if not entry["passed"]:
        print("\n".join(output[-60:]), flush=True)
    return entry


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("packages", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--benchmark", action="store_true")
    arguments = parser.parse_args()
    names = ("device_test", "gpu_test", "gpu_overhead")
    device, forward, overhead = (arguments.build / f"deltaworks_{name}" for name in names)
    library = arguments.packages / "deltaworks" / "lib" / "libdeltaworks.so.0"
    path = os.pathsep.join(filter(None, [str(arguments.packages), os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": path}

    ran = [
        run("device vocabulary", [device], {}),
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
    if arguments.benchmark:
        times = arguments.out.with_suffix(".times")
        with times.open("w") as file:
            ran.append(run("benchmark", BENCHMARK, environment, file))
        if text := times.read_text():  # none if it failed before it measured
            record["times"] = json.loads(text)
        times.unlink()
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(entry["passed"] for entry in ran) else 1


if __name__ == "__main__":
    sys.exit(main())
