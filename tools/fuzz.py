"""The fuzzers of tests/fuzz, each for a while: a stage of ./dev test, and by hand for longer.

    python -m tools.fuzz [SECONDS]      60 seconds each of the coverage-guided ones without

Random problems run 20,000 times whatever SECONDS is. Builds the preset `fuzz` (clang). What the
guided ones find new stays in build/fuzz/corpus and is where the next run begins; an input that
breaks something is left in build/logs.
"""

import os
import re
import subprocess
import sys
import time

from tools.build import ROOT, Failed, build
from tools.run_tests import Count

BINARIES = ROOT / "build" / "fuzz" / "tests" / "fuzz"
CORPUS = ROOT / "build" / "fuzz" / "corpus"
LOGS = ROOT / "build" / "logs"
SEEDS = ROOT / "tests" / "fuzz" / "corpus"
RANDOM_PROBLEMS = 20_000
# A guided run that has executed fewer inputs has not really run.
LEAST_PER_SECOND = 20


def run(name: str, command: list, environment: dict[str, str] | None = None) -> str:
    """The output of a fuzzer. Raises Failed if it ends otherwise than well."""
    LOGS.mkdir(parents=True, exist_ok=True)
    result = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | (environment or {}),
    )
    log = LOGS / f"fuzz-{name}.log"
    log.write_text(result.stdout)
    if result.returncode != 0:
        tail = "\n".join(result.stdout.splitlines()[-60:])
        raise Failed(f"{tail}\n{name}: ended with {result.returncode} (whole log: {log})")
    return result.stdout


def run_problems() -> str:
    """Counts by rule, as the program prints them."""
    return run("problems", [BINARIES / "deltaworks_fuzz_problems", str(RANDOM_PROBLEMS)])


def run_guided(name: str, seconds: int, command: list, environment=None) -> str:
    """How much was executed. `command` takes libFuzzer's options and folders of inputs."""
    found = CORPUS / name
    found.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", "-print_final_stats=1", f"-artifact_prefix={LOGS}/"]
    output = run(name, [*command, *options, found], environment)
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", output)
    count = int(executed[1]) if executed else 0
    if count < LEAST_PER_SECOND * seconds:
        raise Failed(f"{name}: executed {count} inputs in {seconds} s")
    return f"{count} inputs in {seconds} s"


def run_problem_strings(seconds: int) -> str:
    dictionary = ROOT / "tests" / "fuzz" / "problem_string.dict"
    program = BINARIES / "deltaworks_fuzz_problem_string"
    # Seeds follow the folder that new inputs go to.
    found = CORPUS / "problem_string"
    found.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS.iterdir():
        (found / seed.name).write_bytes(seed.read_bytes())
    return run_guided("problem_string", seconds, [program, f"-dict={dictionary}"])


def run_capture_files(seconds: int) -> str:
    program = [sys.executable, ROOT / "tests" / "fuzz" / "capture_file.py"]
    path = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    return run_guided("capture_file", seconds, program, {"PYTHONPATH": path})


def fuzz(seconds: int = 60) -> Count:
    build("fuzz")
    count = Count()
    for name, fuzzer in {
        "random problems": run_problems,
        "problem strings": lambda: run_problem_strings(seconds),
        "captured calls": lambda: run_capture_files(seconds),
    }.items():
        start = time.monotonic()
        try:
            outcome, passed = fuzzer(), True
        except Failed as failure:
            outcome, passed = str(failure), False
        print(f"{name} ({time.monotonic() - start:.0f} s):\n{outcome}", flush=True)
        count += Count(passed=int(passed), failed=int(not passed))
    return count


def main() -> int:
    count = fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
    print(count)
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
