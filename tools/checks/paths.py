"""No file holds an absolute path of somebody's machine."""

import re
from pathlib import Path

from tools.sources import files

_PATH = re.compile(r"(?<![\w.$}>-])/(home|root|work|Users|mnt|tmp)/[\w.-]+")


def machine_paths(root: Path) -> list[str]:
    problems = []
    for path in files(root):
        try:
            text = (root / path).read_text()
        except UnicodeDecodeError:
            continue  # not text
        for number, line in enumerate(text.splitlines(), 1):
            found = _PATH.search(line)
            if found:
                problems.append(f"{path}:{number}: {found.group()}")
    return problems
