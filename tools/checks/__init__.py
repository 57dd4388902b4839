"""Checks of the source text. Each takes the root of a tree and returns one line a problem."""

from tools.checks.formatting import clang_format, ruff_check, ruff_format
from tools.checks.layers import layers
from tools.checks.paths import machine_paths
from tools.checks.placeholders import placeholders
from tools.checks.size import file_size
from tools.checks.twins import twins
from tools.checks.variants import variant_names

CHECKS = {
    "include order": layers,
    "variant names in engines": variant_names,
    "file size": file_size,
    "twin files": twins,
    "machine paths": machine_paths,
    "placeholders": placeholders,
    "clang-format": clang_format,
    "ruff format": ruff_format,
    "ruff check": ruff_check,
}
