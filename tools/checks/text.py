"""Source text without its comments."""

import io
import re
import tokenize

# String literals are matched first, so that a comment sign inside one is no comment.
_CPP = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def strip_cpp(text: str) -> str:
    """Keeps the line structure."""

    def blank(match: re.Match) -> str:
        found = match.group()
        return found if found.startswith('"') else "\n" * found.count("\n")

    return _CPP.sub(blank, text)


def strip_python(text: str) -> str:
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return "\n".join(lines)
