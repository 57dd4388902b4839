"""Includes follow the dependency order of the layers, and torch and Python stay in bindings/.

    include <- core <- problem <- variants <- reference;  registry <- problem, variants
    engines <- registry, variants;  graph <- registry;  c_api <- all;  bindings <- the C header

The reference is an engine as well, so it sees the registry. An engine folder does not see another.
"""

import re
from pathlib import Path

from tools.sources import CPP, files

BELOW = {
    "include": {"include"},
    "core": {"include", "core"},
    "problem": {"include", "core", "problem"},
    "variants": {"include", "core", "problem", "variants"},
    "registry": {"include", "core", "problem", "variants", "registry"},
    "reference": {"include", "core", "problem", "variants", "registry", "reference"},
    "engines": {"include", "core", "problem", "variants", "registry", "engines"},
    "graph": {"include", "core", "problem", "registry", "graph"},
}
BELOW["c_api"] = {*BELOW, "c_api"}  # sees all
C_HEADER = "deltaworks/c_api.h"
FOREIGN = re.compile(r"(torch|ATen|c10|pybind11|nanobind)/|Python\.h$")
CUDA = re.compile(r"cuda/|(cuda\w*|cooperative_groups|mma|nvrtc)\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def find_project_file(root: Path, includer: Path, name: str) -> Path | None:
    """Where an include leads inside the tree, relative to `root`; None if out of it."""
    for base in (includer.parent, Path("include"), Path("src")):
        if (root / base / name).is_file():
            return base / name
    return None


def layer_of(path: Path) -> str | None:
    """None for files that may include anything: tests, tools, benchmarks."""
    if path.parts[0] in ("include", "bindings"):
        return path.parts[0]
    return path.parts[1] if path.parts[0] == "src" else None


def judge(root: Path, path: Path, quote: str, name: str) -> str | None:
    """What is wrong with one include, if anything."""
    layer = layer_of(path)
    target = find_project_file(root, path, name)
    if layer == "bindings":
        if target is None or target.parts[0] == "bindings" or name == C_HEADER:
            return None
        return f"bindings see {C_HEADER} alone"
    if FOREIGN.match(name):
        return "torch and Python headers belong into bindings/"
    on_cards = path.parts[:3] == ("src", "engines", "cuda") or path.parts[:2] == ("tests", "gpu")
    if CUDA.match(name) and not on_cards:
        return "CUDA headers belong into src/engines/cuda"
    if layer is None:
        return None
    if target is None:
        return f"no such file: {name}" if quote == '"' else None
    if layer not in BELOW:
        return f"src/{layer} has no place in the order of layers"
    if layer_of(target) not in BELOW[layer]:
        return f"{layer} may not see {layer_of(target)}"
    if layer_of(target) == layer == "engines" and path.parts[2] != target.parts[2]:
        return "an engine may not see another"
    return None


def layers(root: Path) -> list[str]:
    problems = []
    for path in files(root, CPP):
        text = (root / path).read_text()
        for match in INCLUDE.finditer(text):
            problem = judge(root, path, *match.groups())
            if problem:
                line = text.count("\n", 0, match.start(1)) + 1
                problems.append(f"{path}:{line}: {match.group(2)}: {problem}")
    return problems
