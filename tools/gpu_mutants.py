"""Builds deltaworks_gpu_test once with each seeded defect of tests/gpu/mutants.toml.

    python -m tools.gpu_mutants FOLDER     FOLDER gets the programs and mutants.json

A machine with a card runs them (tests/gpu/run.py --mutants FOLDER): in each the test that is named
for it must fail. `ctest` of a row is a test of that program; the other fields are those of
tools/mutants.toml. Kernels are compiled for compute capability 9.0 alone.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tools.build import ROOT, Failed, run
from tools.mutants import apply, copy_tree, read_table

SCRATCH = ROOT / "build" / "gpu_mutants"
BUILD = "build/dev-cuda"
PROGRAM = "deltaworks_gpu_test"


def build_program(target: Path) -> None:
    log = SCRATCH / "build" / "log"
    run(["cmake", "--build", BUILD, "--target", PROGRAM, "-j", "2"], log, SCRATCH)
    shutil.copy(SCRATCH / BUILD / "tests" / "gpu" / PROGRAM, target)
    subprocess.run(["strip", "-s", target], check=True)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m tools.gpu_mutants FOLDER", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    copy_tree(ROOT, SCRATCH)
    configure = ["cmake", "--preset", "dev-cuda", "-DDELTAWORKS_CUDA_ARCHITECTURES=90a-real"]
    run([*configure, "-DDELTAWORKS_TORCH=OFF"], SCRATCH / "build" / "log", SCRATCH)
    rows = []
    for number, mutant in enumerate(read_table(ROOT / "tests" / "gpu" / "mutants.toml")):
        program = f"mutant_{number}"
        print(f"{program}: {mutant.name}", flush=True)
        try:
            original = apply(mutant, SCRATCH)
            try:
                build_program(folder / program)
            finally:
                (SCRATCH / mutant.file).write_text(original)
        except Failed as failure:
            print(failure, file=sys.stderr)
            return 1
        rows.append({"program": program, "name": mutant.name, "test": mutant.ctest})
    (folder / "mutants.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
