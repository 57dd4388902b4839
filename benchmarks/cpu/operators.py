"""All operators on the CPU, both passes, beside plain PyTorch and the processor's peak.

    PYTHONPATH=python .venv/bin/python benchmarks/cpu/operators.py [OPTIONS of deltaworks bench cpu]

`deltaworks bench cpu`, with its record, table and plot written to benchmarks/results.
"""

import sys
from pathlib import Path

from deltaworks.cli import main

RESULTS = Path(__file__).parents[1] / "results"

if __name__ == "__main__":
    sys.exit(main(["bench", "cpu", "--record", str(RESULTS), *sys.argv[1:]]))
