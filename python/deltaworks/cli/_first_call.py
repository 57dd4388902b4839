"""Seconds of a process's first operator call on the card, from the call to its synchronised end.

torch has its context and the inputs are there, deltaworks is imported; kernels have yet to load.
"""

from __future__ import annotations

import subprocess
import sys
import time

from deltaworks.cli._cuda_cases import GATES, Case
from deltaworks.cli._cuda_forward import make_inputs
from deltaworks.cli._errors import UserError

CASE = Case(1, 1024, 4, 4)
_PROGRAM = "import sys; from deltaworks.cli._first_call import main; main(sys.argv[1])"


def first_call_seconds(device: str) -> float:
    """The time in a process of its own; UserError says why there is none."""
    command = [sys.executable, "-c", _PROGRAM, device]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        raise UserError(
            f"the first call in a new process fails: {lines[-1] if lines else 'killed'}"
        )
    return float(result.stdout)


def main(device: str) -> None:
    import torch

    from deltaworks.ops import gated_delta_net

    torch.zeros(1, device=device)
    inputs = make_inputs(CASE, GATES["slow"], device)
    torch.cuda.synchronize()
    with torch.no_grad():
        start = time.perf_counter()
        gated_delta_net(**inputs)
        torch.cuda.synchronize()
        print(time.perf_counter() - start)
