"""What object files, archives and shared libraries say of themselves, by readelf and nm."""

import re
import subprocess
from pathlib import Path

_DYNAMIC = re.compile(r"\((NEEDED|SONAME)\)[^\[]*\[([^\]]+)\]")
_STRONG = "TDBRA"  # nm's letters for definitions of which a program may have one
_WEAK = "WVu"  # and for those of which the linker keeps any


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def dynamic(library: Path, tag: str) -> set[str]:
    """Values of a tag in the dynamic section: NEEDED or SONAME."""
    return {
        value for key, value in _DYNAMIC.findall(_output("readelf", "-dW", library)) if key == tag
    }


def symbols(file: Path, letters: str, *options: str) -> set[str]:
    """Mangled names of the symbols whose letter of nm is one of `letters`."""
    rows = (line.split() for line in _output("nm", *options, file).splitlines())
    return {row[-1].split("@")[0] for row in rows if len(row) > 1 and row[-2] in letters}


def exported(library: Path) -> set[str]:
    return symbols(library, _STRONG + _WEAK, "-D", "--defined-only")


def strong(archive: Path) -> set[str]:
    return symbols(archive, _STRONG)


def weak(file: Path) -> set[str]:
    return symbols(file, _WEAK, "--defined-only")


def wants_static_thread_locals(library: Path) -> bool:
    """Whether its thread-locals must lie in the reserve that all libraries share."""
    return "STATIC_TLS" in _output("readelf", "-dW", library)
