"""What a measurement was made with and on, for its record."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path

from deltaworks.testing.files import provenance


def machine() -> dict[str, str | int]:
    """Date, library, processor and Python."""
    return {
        "date": datetime.date.today().isoformat(),
        **provenance(),
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """The model's name where the system tells it, else the architecture's."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
