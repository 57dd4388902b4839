"""Formats C++ with clang-format 14, formats and lints Python with ruff, in place."""

import subprocess
import sys

from tools.sources import CPP, PYTHON, ROOT, files


def main() -> int:
    cpp = [str(path) for path in files(ROOT, CPP)]
    python = [str(path) for path in files(ROOT, PYTHON)]
    ruff = [sys.executable, "-m", "ruff"]
    commands = [
        ["clang-format-14", "-i", *cpp],
        [*ruff, "format", *python],
        [*ruff, "check", "--fix", *python],
    ]
    return max(subprocess.run(command, cwd=ROOT).returncode for command in commands)


if __name__ == "__main__":
    sys.exit(main())
