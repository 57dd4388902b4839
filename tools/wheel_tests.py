"""Builds the wheel from a copy of the source and uses it as its users will.

    python -m tools.wheel_tests

tests/wheel holds the tests. They run from a folder outside of the source tree: on the files that
were built; in a new environment with what pip installs for the wheel, which is no torch; and in one
that sees the torch of this Python. A typed program is judged by mypy against the installed package.
They ask for the CUDA engine, so nvcc must be there; a card or its driver need not.
"""

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tools.build import ROOT, Failed, run
from tools.mutants import copy_tree
from tools.run_tests import REPORTS, Count, read_report
from tools.wheel import LOGS, Built, build_wheel

TESTS = ROOT / "tests" / "wheel"
# Nothing of the caller's environment: not the source tree, not packages of the user.
CLEAN = ["env", "-u", "PYTHONPATH", "PYTHONNOUSERSITE=1", "PYTHONDONTWRITEBYTECODE=1"]


def make_environment(folder: Path, *arguments: str) -> Path:
    """A new virtual environment with what pip makes of `arguments`; returns its Python."""
    log = LOGS / f"wheel-{folder.name}.log"
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], log, ROOT)
    python = folder / "bin" / "python"
    pip = [*CLEAN, sys.executable, "-m", "pip", "--python", str(python), "install"]
    run([*pip, "--quiet", "--disable-pip-version-check", *arguments], log, folder)
    return python


def without_torch(built: Built, folder: Path) -> Path:
    """The wheel and its requirements, in the versions of requirements.txt where that names them."""
    constraint = ["--constraint", str(ROOT / "requirements.txt")]
    return make_environment(folder, str(built.wheel), "pytest", *constraint)


def with_torch(built: Built, folder: Path) -> Path:
    """The wheel, and behind it the packages of this Python, but not the source tree: the .pth file
    that leads there counts only in its own environment."""
    python = make_environment(folder, "--no-deps", str(built.wheel))
    (packages,) = folder.glob("lib/python3.*/site-packages")
    (packages / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run_pytest(python: str | Path, place: Path, name: str, *arguments: str) -> Count:
    """Runs test_NAME.py of a copy of tests/wheel with that Python."""
    report = REPORTS / f"wheel-{name}.xml"
    report.unlink(missing_ok=True)
    command = [*CLEAN, str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", *arguments, f"test_{name}.py"]
    code = subprocess.run(command, cwd=place).returncode
    count = read_report(report)
    if code != 0 and count.failed == 0:
        raise Failed(f"pytest ended with {code}")
    return count


def run_mypy(python: Path, place: Path) -> Count:
    command = [*CLEAN, sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    code = subprocess.run([*command, "consumer.py"], cwd=place).returncode
    return Count(passed=int(code == 0), failed=int(code != 0))


def wheel_tests() -> Count:
    """Raises Failed where no wheel or no environment comes about."""
    with tempfile.TemporaryDirectory(prefix="deltaworks-") as name:
        scratch = Path(name)
        copy_tree(ROOT, scratch / "copy")
        (scratch / "built").mkdir()
        built = build_wheel(scratch / "copy", scratch / "built")
        bare = without_torch(built, scratch / "without-torch")
        full = with_torch(built, scratch / "with-torch")
        place = scratch / "tests"
        shutil.copytree(TESTS, place, ignore=shutil.ignore_patterns("__pycache__"))
        files = [f"--sdist={built.sdist}", f"--source={built.source}", f"--wheel={built.wheel}"]
        torch = [f"--source={built.source}", f"--without-torch={bare}"]
        return (
            run_pytest(sys.executable, place, "files", *files)
            + run_pytest(sys.executable, place, "find_torch", *torch)
            + run_pytest(bare, place, "without_torch")
            + run_pytest(full, place, "with_torch")
            + run_mypy(full, place)
        )


def main() -> int:
    REPORTS.mkdir(parents=True, exist_ok=True)
    try:
        count = wheel_tests()
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    print(count)
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
