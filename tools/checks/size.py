"""A source file has at most 700 lines."""

from pathlib import Path

from tools.sources import CPP, PYTHON, files

LIMIT = 700


def file_size(root: Path) -> list[str]:
    problems = []
    for path in files(root, CPP | PYTHON):
        lines = len((root / path).read_text().splitlines())
        if lines > LIMIT:
            problems.append(f"{path}: {lines} lines, at most {LIMIT} are allowed")
    return problems
