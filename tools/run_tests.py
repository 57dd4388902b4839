"""Every test, check and sanitizer build, in stages that go on after a failure; then the total.

    python -m tools.run_tests [--full]

The build dev-cpu must be there. Reports in JUnit form and logs lie under build/reports, build/logs.
"""

import argparse
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools import docs
from tools.build import ROOT, Failed, build, prefix, run
from tools.checks import CHECKS

REPORTS = ROOT / "build" / "reports"


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def read_report(report: Path) -> Count:
    """Counts of a JUnit file; no file, no test."""
    if not report.exists():
        return Count()
    root = ElementTree.parse(report).getroot()
    total = Count()
    for suite in root.iter("testsuite"):
        number = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
        failed = number["failures"] + number["errors"]
        skipped = number["skipped"] + int(suite.get("disabled", 0))
        total += Count(number["tests"] - failed - skipped, failed, skipped)
    return total


def run_pytest(name: str, *arguments: str) -> Count:
    report = REPORTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
    code = subprocess.run(command, cwd=ROOT).returncode
    count = read_report(report)
    if code != 0 and count.failed == 0:
        raise Failed(f"pytest ended with {code}")
    return count


def run_ctest(preset: str) -> Count:
    """The C++ tests of a build."""
    report = REPORTS / f"cpp-{preset}.xml"
    report.unlink(missing_ok=True)
    command = [*prefix(preset), "ctest", "--test-dir", f"build/{preset}", "--output-on-failure"]
    command += ["--no-tests=error", "--timeout", "300", "--output-junit", str(report)]
    try:
        run(command, ROOT / "build" / "logs" / f"cpp-{preset}.log", ROOT)
    except Failed as failure:
        print(failure)
        count = read_report(report)
        if count.failed == 0:
            raise
        return count
    return read_report(report)


def run_checks() -> Count:
    count = Count()
    for name, check in CHECKS.items():
        problems = check(ROOT)
        count += Count(passed=not problems, failed=bool(problems))
        for problem in problems:
            print(f"{name}: {problem}")
    return count


def run_docs() -> Count:
    docs.run()
    return Count(passed=1)


def build_and_test(preset: str) -> Count:
    build(preset)
    return run_ctest(preset)


def stages(full: bool) -> dict[str, Callable[[], Count]]:
    from tools import fuzz, install_tests, wheel_tests  # they count with this module

    chosen = {
        "C++ tests": lambda: run_ctest("dev-cpu"),
        "Python tests": lambda: run_pytest("python", "tests/python"),
        "tests of the tools": lambda: run_pytest("tools", "tools"),
        "checks": run_checks,
        "C++ tests, address sanitizer": lambda: build_and_test("asan"),
        "C++ tests, thread sanitizer": lambda: build_and_test("tsan"),
        "C++ tests, no reference engine": lambda: build_and_test("no-reference"),
        "CUDA engine, without a card": lambda: build_and_test("dev-cuda"),
        "documentation": run_docs,
        "fuzzing": fuzz.fuzz,
        "installed library": install_tests.install_tests,
        "wheel": wheel_tests.wheel_tests,
    }
    if full:
        chosen["Python tests, full"] = lambda: run_pytest("python-full", "tests/python", "-m=full")
    return chosen


def run_stages(chosen: dict[str, Callable[[], Count]]) -> bool:
    """True if every stage ran and nothing failed."""
    start = time.monotonic()
    total, broken, lines = Count(), [], []
    for name, stage in chosen.items():
        print(f"== {name}", flush=True)
        stage_start = time.monotonic()
        try:
            count = stage()
            total += count
            outcome = str(count)
        except (Failed, OSError) as failure:
            print(failure)
            broken.append(name)
            outcome = "BROKEN"
        seconds = time.monotonic() - stage_start
        lines.append(f"{name:32} {outcome:42} {seconds:6.1f} s")
        print(lines[-1], flush=True)
    print("\n== summary", *lines, sep="\n")
    ended_early = f"; stages that broke: {', '.join(broken)}" if broken else ""
    print(f"total: {total}{ended_early}; {time.monotonic() - start:.0f} s")
    return not broken and total.failed == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev test", description="Runs every test and check.")
    parser.add_argument("--full", action="store_true", help="add the wide products (-m full)")
    arguments = parser.parse_args()
    REPORTS.mkdir(parents=True, exist_ok=True)
    return 0 if run_stages(stages(arguments.full)) else 1


if __name__ == "__main__":
    sys.exit(main())
