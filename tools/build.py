"""Configures and builds a CMake preset, quietly: the output goes to a log, shown on failure.

    python -m tools.build PRESET [ROOT]

A preset is configured anew when CMakePresets.json or the place of the tree has changed since (CMake
sees every other change itself); with nothing to do it costs one call of ninja.
"""

import hashlib
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """A command failed; the text holds the end of its output."""


def run(command: list[str], log: Path, cwd: Path, timeout: float | None = None) -> None:
    """Runs a command with its output in `log`. Raises Failed if it does not exit with 0."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        code = subprocess.run(
            command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT, timeout=timeout
        ).returncode
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-60:])
        raise Failed(f"{tail}\nfailed ({code}): {' '.join(command)} (whole log: {log})")


def prefix(preset: str) -> list[str]:
    """What commands that run binaries of a build start with, the build included: it lists tests.

    The thread sanitizer of GCC 12 cannot map its memory under the address randomisation of newer
    kernels, so its binaries run without, where the system allows to choose.
    """
    without = ["setarch", platform.machine(), "-R"]
    if preset != "tsan":
        return []
    try:
        tried = subprocess.run([*without, "true"], stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        return []
    return without if tried.returncode == 0 else []


def configure(preset: str, root: Path = ROOT) -> None:
    stamp = root / "build" / preset / "configured"
    presets = (root / "CMakePresets.json").read_bytes()
    key = hashlib.sha256(presets + str(root).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == key:
        return
    log = root / "build" / "logs" / f"configure-{preset}.log"
    run(["cmake", "--fresh", "--preset", preset], log, root)
    stamp.write_text(key)


def build(preset: str, root: Path = ROOT) -> None:
    """Raises Failed with the compiler's messages."""
    configure(preset, root)
    log = root / "build" / "logs" / f"build-{preset}.log"
    jobs = str(len(os.sched_getaffinity(0)))
    run([*prefix(preset), "cmake", "--build", f"build/{preset}", "-j", jobs], log, root)


def main() -> int:
    preset = sys.argv[1]
    root = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else ROOT
    print(f"building {preset} (log: build/logs/build-{preset}.log)", flush=True)
    start = time.monotonic()
    try:
        build(preset, root)
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    print(f"built {preset} in {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
