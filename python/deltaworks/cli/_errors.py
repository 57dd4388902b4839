"""Mistakes of the user: said in one line and without a traceback, exit code 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from deltaworks.errors import NotSupportedError
from deltaworks.problem import Problem


class UserError(Exception):
    """What is wrong with the user's input."""


@contextlib.contextmanager
def user_errors(what: str = "") -> Iterator[None]:
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
        raise UserError(f"{what}: {error}" if what else str(error)) from error


def parse_problem(text: str) -> Problem:
    """The valid problem of a problem string."""
    with user_errors(text):
        problem = Problem(text)
        problem.dims  # noqa: B018, judges the problem
        return problem
