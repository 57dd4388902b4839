"""The library's failures as Python exceptions.

Every failure has a status (c_api.h: dw_status) and a text; both are the same in every language.
"""

import sys

VALUE, TYPE, NOT_SUPPORTED, INTERNAL = 1, 2, 3, 4  # dw_status

# bindings/torch throws "deltaworks[<status>]: <text>", and "deltaworks[memory]: <text>".
_PREFIX = "deltaworks["


class NotSupportedError(NotImplementedError):
    """A valid problem that no engine takes; the text holds every engine's reasons."""


_TYPES = {VALUE: ValueError, TYPE: TypeError, NOT_SUPPORTED: NotSupportedError}


def from_status(status: int, text: str) -> Exception:
    """The exception of a status: ValueError, TypeError, NotSupportedError, else RuntimeError."""
    return _TYPES.get(status, RuntimeError)(text)


def translated(error: RuntimeError) -> Exception:
    """The exception that the PyTorch binding meant; `error` itself if it is not the binding's."""
    text = str(error)
    if not text.startswith(_PREFIX):
        return error
    status, _, rest = text[len(_PREFIX) :].partition("]: ")
    if status == "memory":
        return sys.modules["torch"].OutOfMemoryError(rest)
    return from_status(int(status), rest)
