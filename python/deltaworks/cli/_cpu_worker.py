"""A process that measures with one instruction set and one number of threads.

Both are chosen once a process. Cases come as lines of JSON on stdin, results go as lines of JSON to
stdout: {"rows": ..., "failures": ...} or {"error": text}.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import deltaworks
from deltaworks.cli._errors import UserError, user_errors

_PROGRAM = "from deltaworks.cli._cpu_worker import main; main()"


def where(about: dict) -> str:
    """ "AVX2, 1 thread": of what a Worker answers, or of a row."""
    return f"{about['isa']}, {about['threads']} thread{'s' if about['threads'] > 1 else ''}"


class Worker:
    """The process, seen from its parent. `settings` are the fields of _cpu_measure.Settings."""

    def __init__(self, isa: str, settings: dict):
        self.about = {"isa": isa, "threads": settings["threads"]}
        package = str(Path(deltaworks.__file__).parents[1])
        paths = [package, os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "DELTAWORKS_ISA": isa,
            "OMP_NUM_THREADS": str(settings["threads"]),
            # glibc: freed memory is used again. New pages for each output would be timed as well.
            "MALLOC_MMAP_MAX_": "0",
            "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.about |= self._ask(settings)
        except BaseException:
            self.__exit__()
            raise

    def measure(self, case: tuple) -> dict:
        """Rows and failures of a case; UserError where it cannot run."""
        return self._ask(case)

    def _ask(self, question) -> dict:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(question), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise UserError(f"{where(self.about)}: the process that measures ended with {code}")
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(*f"{where(self.about)}: {answer['error']}".split("\n"))
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError), answers:
        settings = None
        for line in sys.stdin:
            try:
                with user_errors():
                    if settings is None:
                        settings, answer = _start(json.loads(line))
                    else:
                        answer = _measure(json.loads(line), settings)
            except UserError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), file=answers, flush=True)


def _start(fields: dict):
    import torch

    from deltaworks import _library
    from deltaworks.cli._cpu_measure import Settings

    torch.set_num_threads(fields["threads"])
    _, lanes = _library.cpu_isa()
    torch_isa = torch.backends.cpu.get_cpu_capability()
    return Settings(**fields), {"lanes": lanes, "torch": torch.__version__, "torch_isa": torch_isa}


def _measure(fields: list, settings) -> dict:
    from deltaworks.cli._cpu_measure import measure
    from deltaworks.cli._cpu_operators import Case

    return measure(Case(*fields), settings)
