"""No text holds a place that was to be filled in: a name in capitals between two @.

Templates that CMake fills (.in) are what such places are for.
"""

import re
from pathlib import Path

from tools.sources import files

_PLACE = re.compile(r"@[A-Z][A-Z_]*@")


def placeholders(root: Path) -> list[str]:
    problems = []
    for path in files(root, {".md", ".py", ".h", ".cc", ".toml", ".json"}):
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            found = _PLACE.search(line)
            if found:
                problems.append(f"{path}:{number}: {found.group()}")
    return problems
