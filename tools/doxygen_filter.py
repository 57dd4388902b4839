"""Input filter of docs/Doxyfile: the headers' plain comments as Doxygen's, line by line.

    python tools/doxygen_filter.py HEADER

The comment that opens a file becomes that of the file, one behind code that of what precedes it,
and every other that of what follows; a line of C comment before an empty line is a heading and
stays. Text that is set in by two more columns than its paragraph is code. The number of lines
stays, so that warnings name the right ones.
"""

import re
import sys
from pathlib import Path

LINE = re.compile(r"^(\s*)//(?!/)(.*)$")
BEHIND_CODE = re.compile(r"^(.*\S.*?)  ?//(?!/)(.*)$")
C_OPENING = re.compile(r"/\*(?!\*)")
C_HEADING = re.compile(r"^/\* .* \*/$")


def indented(text: str) -> str:
    """Four more columns make a block of code of what is set in."""
    return "    " + text if text.startswith("   ") else text


def filtered_cpp(text: str) -> str:
    lines = []
    for number, line in enumerate(text.splitlines()):
        if found := LINE.match(line):
            mark = "/// @opening" if number == 0 else "///"
            lines.append(f"{found[1]}{mark}{indented(found[2])}")
        elif found := BEHIND_CODE.match(line):
            lines.append(f"{found[1]}  ///<{found[2]}")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def filtered_c(text: str) -> str:
    lines, inside = [], False
    given = [*text.splitlines(), ""]
    for number, line in enumerate(given[:-1]):
        opening = C_OPENING.search(line)
        if C_HEADING.match(line) and given[number + 1] == "":
            pass
        elif opening:
            behind = line[: opening.start()].strip() != ""
            mark = "/** @opening" if number == 0 else "/**<" if behind else "/**"
            line = line[: opening.start()] + mark + line[opening.end() :]
        elif inside and (found := re.match(r"^ \*(.*)$", line)) and found[1] != "/":
            line = f" *{indented(found[1])}"
        inside = "*/" not in line and (inside or opening is not None)
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    text = Path(sys.argv[1]).read_text()
    sys.stdout.write((filtered_c if text.startswith("/*") else filtered_cpp)(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
