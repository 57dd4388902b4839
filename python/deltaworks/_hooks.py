"""What other parts of the package may listen to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deltaworks._library import Problem

# Called with the problem of every eager operator call on data, outputs described, and its input
# tensors by name, before it runs; an exception it raises ends the call. Not called where a graph is
# compiled or runs.
call_hook: Callable[[Problem, dict[str, Any]], None] | None = None
