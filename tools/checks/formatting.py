"""C++ is as clang-format 14 writes it, Python as ruff does, and ruff's lints are clean."""

import re
import subprocess
import sys
from pathlib import Path

from tools.sources import CPP, PYTHON, files

_LOCATED = re.compile(r"^[^\s:]+:\d+:\d+: .*|^Would reformat: .*", re.MULTILINE)


def run(root: Path, command: list[str], suffixes: set[str]) -> list[str]:
    paths = [str(path) for path in files(root, suffixes)]
    if not paths:
        return []
    result = subprocess.run([*command, *paths], cwd=root, capture_output=True, text=True)
    if result.returncode == 0:
        return []
    output = result.stdout + result.stderr
    return _LOCATED.findall(output) or output.splitlines()


def clang_format(root: Path) -> list[str]:
    return run(root, ["clang-format-14", "--dry-run", "-Werror"], CPP)


def ruff_format(root: Path) -> list[str]:
    return run(root, [sys.executable, "-m", "ruff", "format", "--check"], PYTHON)


def ruff_check(root: Path) -> list[str]:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise"]
    return run(root, command, PYTHON)
