"""deltaworks info: which library this is, and what it runs on here."""

from __future__ import annotations

import importlib.metadata
import os

from deltaworks import _library
from deltaworks.cli._errors import printable, user_errors
from deltaworks.cli._output import add_json, print_json, print_table
from deltaworks.problem import Problem

VARIABLES = (
    "DELTAWORKS_CHECK",
    "DELTAWORKS_ISA",
    "DELTAWORKS_ENGINE",
    "DELTAWORKS_LOG",
    "OMP_NUM_THREADS",
)
_ANY_PROBLEMS = (  # one an operation
    *(f"{op}:fwd:fp32:N1T1H1K1V1" for op in ("gdn", "kda", "gdn2")),
    "gdp:fwd:fp32:N1T1H1K1V1:n=1",
    "mamba2:fwd:fp32:N1T1H1G1P1S1",
)
_TORCH_OPERATORS = "libdeltaworks_torch.so"


def add_to(commands) -> None:
    parser = commands.add_parser("info", help="version, instruction set, engines, environment")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments) -> int:
    facts = gather()
    if arguments.json:
        print_json(facts)
    else:
        print_table(("", ""), _rows(facts))
    return 0


def gather() -> dict:
    with user_errors():
        lib = _library.library()
    operators = _library.folder() / _TORCH_OPERATORS
    return {
        "version": lib.dw_version().decode(),
        "build": lib.dw_build().decode(),
        "library": str(_library.shared_object(_library.SONAME)),
        "isa": _or_error(lambda: dict(zip(("name", "lanes"), _library.cpu_isa(), strict=True))),
        "engines": _or_error(
            lambda: [v.plan_name for any_ in _ANY_PROBLEMS for v in Problem(any_).explain()]
        ),
        "default_threads": lib.dw_default_threads(),
        "torch": {
            "operators": str(operators) if operators.exists() else None,
            "version": _installed("torch"),
        },
        "environment": {name: os.environ.get(name) for name in VARIABLES},
    }


def _or_error(find):
    """What `find` finds, or what is wrong with the environment variable that decides it."""
    try:
        return find()
    except ValueError as error:
        return {"error": printable(str(error))}


def _installed(package: str) -> str | None:
    """The version of a package, which is not imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _rows(facts):
    isa, engines, torch = facts["isa"], facts["engines"], facts["torch"]
    yield "version", facts["version"]
    yield "build", facts["build"]
    yield "library", facts["library"]
    yield "instruction set", isa.get("error") or "{name}, {lanes} fp32 lanes".format(**isa)
    yield "engines", engines["error"] if "error" in engines else ", ".join(engines)
    yield "default threads", str(facts["default_threads"])
    yield "PyTorch operators", torch["operators"] or "not built"
    yield "torch", torch["version"] or "not installed"
    for name, value in facts["environment"].items():
        yield name, "not set" if value is None else repr(value)
