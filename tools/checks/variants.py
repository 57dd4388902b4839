"""Engine sources are written for every variant: none names one.

The names come from src/variants (types, plan prefixes) and the table of operations. Comments may
give examples.
The lists of instances, in files or folders called `instances`, are what names are for.
"""

import re
from pathlib import Path

from tools.checks.text import strip_cpp
from tools.sources import CPP, files

_FACTS = (
    re.compile(r"^struct (\w+) \{", re.MULTILINE),
    re.compile(r"\bop = Op::(\w+);"),
    re.compile(r'\bname = "(\w+)";'),
)


_OPERATOR = re.compile(r'^ +\{"(\w+)", options\(', re.MULTILINE)  # a row of the operations' table


def variant_words(root: Path) -> set[str]:
    words = set()
    table = root / "src" / "problem" / "ports.cc"
    if table.exists():
        words.update(_OPERATOR.findall(table.read_text()))
    for path in (root / "src" / "variants").glob("*.h"):
        text = path.read_text()
        if "static_assert(Recurrence<" in text:
            words.update(word for fact in _FACTS for word in fact.findall(text))
    return words


def variant_names(root: Path) -> list[str]:
    words = variant_words(root)
    if not words:
        return ["src/variants: no variant found"]
    name = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(sorted(words))})(?![A-Za-z0-9])")
    problems = []
    for path in files(root, CPP):
        is_engine = path.parts[:2] in (("src", "engines"), ("src", "reference"))
        if not is_engine or "instances" in (path.stem, *path.parts):
            continue
        for number, line in enumerate(strip_cpp((root / path).read_text()).splitlines(), 1):
            found = name.search(line)
            if found:
                problems.append(f"{path}:{number}: names the variant {found.group()}")
    return problems
