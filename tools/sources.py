"""The project's own files: what the checks read, what format writes, what mutants copy."""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FOLDERS = (
    ".ci",
    "benchmarks",
    "bindings",
    "cmake",
    "docs",
    "examples",
    "include",
    "python",
    "src",
    "tests",
    "tools",
)
CPP = {".h", ".cc", ".cuh", ".cu"}
PYTHON = {".py"}
BUILT = Path("python/deltaworks/lib")  # libraries that the build puts into the package


def files(root: Path, suffixes: set[str] | None = None) -> Iterator[Path]:
    """Paths relative to `root`, sorted, of the files at its top and in FOLDERS. Hidden folders
    below those, caches and built libraries are left out."""
    top = sorted(path.name for path in root.iterdir() if path.is_file())
    found = [Path(name) for name in top]
    for folder in FOLDERS:
        for place, folders, names in os.walk(root / folder):
            here = Path(place).relative_to(root)
            folders[:] = sorted(
                name
                for name in folders
                if not name.startswith(".") and name != "__pycache__" and here / name != BUILT
            )
            found += [here / name for name in sorted(names)]
    for path in found:
        if suffixes is None or path.suffix in suffixes:
            yield path
