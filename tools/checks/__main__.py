"""Runs every check on the tree: python -m tools.checks. Exits with 1 if one finds anything."""

import sys

from tools.checks import CHECKS
from tools.sources import ROOT


def main() -> int:
    failed = 0
    for name, check in CHECKS.items():
        problems = check(ROOT)
        print(f"{name}: {'ok' if not problems else f'{len(problems)} problems'}")
        for problem in problems:
            print(f"  {problem}")
        failed += bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
