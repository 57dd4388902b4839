"""Puts seeded defects into a copy of the source; each must make the test named for it fail.

    python -m tools.mutants [NAME...]      mutants whose name contains one of NAME; all without

tools/mutants.toml lists them. The copy lies in build/mutants with a build of its own, kept between
runs. First the tests named must pass without any defect. A mutant is killed if its test then fails
(or dies by a signal); one that survives, does not apply, does not build, or runs out of time is an
error of the table or a hole in the tests.
"""

import fcntl
import os
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.build import ROOT, Failed, build
from tools.sources import files

SCRATCH = ROOT / "build" / "mutants"
TIMEOUT = 300  # seconds a test


@dataclass(frozen=True)
class Mutant:
    """`text` occurs once in `file` and becomes `replacement`; one of `pytest`, `ctest` names the
    test that must fail then."""

    name: str
    file: str
    text: str
    replacement: str
    pytest: str = ""
    ctest: str = ""

    def __post_init__(self):
        if bool(self.pytest) == bool(self.ctest):
            raise ValueError(f"{self.name}: name one test, pytest or ctest")


def read_table(path: Path) -> list[Mutant]:
    return [Mutant(**row) for row in tomllib.loads(path.read_text())["mutant"]]


def copy_tree(root: Path, scratch: Path) -> None:
    """Makes `scratch` hold the sources of `root`; equal files keep their time of change, so that
    the build there stays incremental."""
    wanted = set(files(root))
    if scratch.is_dir():
        for path in set(files(scratch)) - wanted:
            (scratch / path).unlink()
    for path in wanted:
        content = (root / path).read_bytes()
        target = scratch / path
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod((root / path).stat().st_mode)


def apply(mutant: Mutant, scratch: Path) -> str:
    """Writes the defect and returns the text before it. Raises Failed if it does not apply."""
    path = scratch / mutant.file
    original = path.read_text() if path.exists() else ""
    found = original.count(mutant.text)
    if found != 1:
        raise Failed(f"does not apply: its text occurs {found} times in {mutant.file}")
    path.write_text(original.replace(mutant.text, mutant.replacement))
    return original


class Runner:
    """Runs tests inside the scratch tree, with its own package and library."""

    def __init__(self, scratch: Path):
        self.scratch = scratch
        # Bytecode is recognised by its second, which is too coarse for edits in quick succession.
        path = {"PYTHONPATH": str(scratch / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment = os.environ | path

    def _run(self, command: list[str]) -> tuple[int, str]:
        result = subprocess.run(
            command,
            cwd=self.scratch,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
        return result.returncode, result.stdout

    def check_package(self) -> None:
        """The tests must see the copy's package, not the one that the environment points at."""
        code, text = self._run([sys.executable, "-c", "import deltaworks as d; print(d.__file__)"])
        if code != 0 or not Path(text.strip()).is_relative_to(self.scratch):
            raise Failed(f"deltaworks comes from outside the copy: {text}")

    def failure(self, pytest: list[str], ctest: list[str]) -> str | None:
        """The output of tests that fail, None if all pass. Raises Failed if they cannot be run."""
        if pytest:
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
            code, text = self._run([*command, *pytest])
            if code > 1:  # 1: tests failed; above: collection or usage; below 0: a signal
                raise Failed(f"pytest ended with {code}:\n{text[-2000:]}")
            if code != 0:
                return text
        if ctest:
            pattern = "|".join(f"^{name}$" for name in ctest)
            command = ["ctest", "--test-dir", "build/dev-cpu", "--no-tests=error", "-R", pattern]
            code, text = self._run(command)
            # 8: tests failed, or there are none of that name
            if code not in (0, 8) or "No tests were found" in text:
                raise Failed(f"ctest ended with {code}:\n{text[-2000:]}")
            if code != 0:
                return text
        return None


def try_mutant(mutant: Mutant, runner: Runner) -> str:
    """Says killed, or what went wrong; leaves the copy as it was."""
    original = None
    path = runner.scratch / mutant.file
    try:
        original = apply(mutant, runner.scratch)
        if path.suffix != ".py":
            build("dev-cpu", runner.scratch)
        output = runner.failure(
            [mutant.pytest] if mutant.pytest else [], [mutant.ctest] if mutant.ctest else []
        )
        return "SURVIVED" if output is None else "killed"
    except Failed as failure:
        return f"ERROR: {failure}"
    except subprocess.TimeoutExpired:
        return f"ERROR: out of time ({TIMEOUT} s)"
    finally:
        if original is not None:
            path.write_text(original)


def check_unmutated(mutants: list[Mutant], runner: Runner) -> None:
    """Raises Failed if the tests do not pass on the unchanged copy."""
    build("dev-cpu", runner.scratch)
    runner.check_package()
    pytest = sorted({mutant.pytest for mutant in mutants if mutant.pytest})
    ctest = sorted({mutant.ctest for mutant in mutants if mutant.ctest})
    output = runner.failure(pytest, ctest)
    if output is not None:
        raise Failed(f"{output[-4000:]}\nthe tests named fail without any defect")


def main() -> int:
    table = read_table(ROOT / "tools" / "mutants.toml")
    names = sys.argv[1:]
    chosen = [m for m in table if not names or any(name in m.name for name in names)]
    if not chosen:
        print(f"no mutant is called {' or '.join(names)}", file=sys.stderr)
        return 2
    SCRATCH.parent.mkdir(exist_ok=True)
    lock = SCRATCH.with_suffix(".lock").open("w")  # held until the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"another run uses {SCRATCH}", file=sys.stderr)
        return 2
    copy_tree(ROOT, SCRATCH)
    environment = SCRATCH / ".venv"
    if not environment.is_symlink():
        environment.symlink_to(ROOT / ".venv")
    runner = Runner(SCRATCH)
    print("building the copy and running the tests without a defect", flush=True)
    try:
        check_unmutated(chosen, runner)
    except (Failed, subprocess.TimeoutExpired) as failure:
        print(failure, file=sys.stderr)
        return 1
    outcomes = []
    for mutant in chosen:
        start = time.monotonic()
        outcome = try_mutant(mutant, runner)
        outcomes.append(outcome)
        print(f"{mutant.name:48} {outcome} ({time.monotonic() - start:.0f} s)", flush=True)
    killed = outcomes.count("killed")
    print(f"total: {killed} of {len(chosen)} mutants killed")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
