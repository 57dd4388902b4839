"""No two files of more than 100 lines share more than 60 % of the shorter one's lines.

Comments, includes and imports, and lines of brackets alone do not count, nor does indentation; a
line that occurs twice in both files counts twice.
"""

import itertools
import re
from collections import Counter
from pathlib import Path

from tools.checks.text import strip_cpp, strip_python
from tools.sources import CPP, PYTHON, files

LONGER_THAN = 100
SHARE = 0.6
_IDLE = re.compile(r"#\s*(include|pragma)\b.*|(import|from)\s.*|[\s{}()\[\];,]*")


def counted_lines(path: Path, text: str) -> Counter[str]:
    stripped = strip_cpp(text) if path.suffix in CPP else strip_python(text)
    lines = (line.strip() for line in stripped.splitlines())
    return Counter(line for line in lines if not _IDLE.fullmatch(line))


def twins(root: Path) -> list[str]:
    bodies = {}
    for path in files(root, CPP | PYTHON):
        text = (root / path).read_text()
        if len(text.splitlines()) > LONGER_THAN:
            bodies[path] = counted_lines(path, text)
    problems = []
    for (a, lines_a), (b, lines_b) in itertools.combinations(bodies.items(), 2):
        shorter = max(1, min(lines_a.total(), lines_b.total()))
        share = (lines_a & lines_b).total() / shorter
        if share > SHARE:
            problems.append(f"{a} and {b} share {share:.0%} of their lines")
    return problems
