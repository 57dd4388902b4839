"""Mistakes of the user: said without a traceback, exit code 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from deltaworks.errors import NotSupportedError
from deltaworks.problem import Problem


class UserError(Exception):
    """What is wrong with the user's input, a line each; what they echo is made printable."""

    def __init__(self, *lines: str):
        super().__init__("\n".join(map(printable, lines)))


def printable(text: str) -> str:
    """The text with control characters, line ends and lone surrogates as escapes.

    They are those of the library's errors, so that a text which one of them quotes is found in it.
    """
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else repr(character)[1:-1]


@contextlib.contextmanager
def user_errors(what: object = "") -> Iterator[None]:
    """Whatever the library says inside is about the user's input, named by `what`."""
    try:
        yield
    except (
        ValueError,
        TypeError,
        NotSupportedError,
        OSError,
        MemoryError,
        ImportError,  # the library is not built, or a package is missing
    ) as error:
        # Only the reasons of the engines are lines of their own.
        text = str(error) or type(error).__name__
        lines = text.split("\n") if isinstance(error, NotSupportedError) else [text]
        named = str(what)
        if named and printable(named) not in printable(text):
            lines[0] = f"{named}: {lines[0]}"
        raise UserError(*lines) from error


def parse_problem(text: str) -> Problem:
    """The valid problem of a problem string."""
    with user_errors(text):
        problem = Problem(text)
        problem.dims  # noqa: B018, judges the problem
        return problem
