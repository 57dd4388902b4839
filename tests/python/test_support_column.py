"""One line of an engine's support column decides everything that is said of it.

The CPU engine is compiled with one condition changed and linked with the other objects of the
build; with that library in a copy of the package, the explanation, the choice of a plan, the
operators' errors and the documentation's table must all have changed.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "dev-cpu"
SOURCE = ROOT / "src" / "engines" / "cpu" / "engine.cc"
LIBRARY = Path("python/deltaworks/lib/libdeltaworks.so.0")

BEFORE = """.need(q.dtype != DType::kFloat64,
                  cat(io_names(problem.op), " must be float32, bfloat16 or float16"),"""
AFTER = """.need(q.dtype == DType::kFloat32,
                  cat(io_names(problem.op), " must be float32, only float32"),"""
REASON = "gdn_cpu: q k v must be float32, only float32, got bfloat16"
PROBLEM = "gdn:fwd:bf16:N2T64H4K64V64"


def build_library(folder):
    """libdeltaworks from the build's objects, with the changed engine among them."""
    text = SOURCE.read_text()
    assert text.count(BEFORE) == 1, "the support column has changed; change this test with it"
    source, changed = folder / "engine.cc", folder / "engine.o"
    source.write_text(text.replace(BEFORE, AFTER))
    listed = ["ninja", "-C", BUILD, "-t", "commands", ROOT / LIBRARY]
    commands = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    *_, link = commands.splitlines()
    (compile_,) = [line for line in commands.splitlines() if line.endswith(f"-c {SOURCE}")]
    words = shlex.split(compile_)
    original = words[words.index("-o") + 1]
    words[words.index("-o") + 1], words[-1] = str(changed), str(source)
    subprocess.run(words, cwd=BUILD, check=True)
    library = folder / LIBRARY.name
    assert original in link
    link = link.replace(original, str(changed)).replace(str(ROOT / LIBRARY), str(library))
    subprocess.run(link, shell=True, cwd=BUILD, check=True)
    return library


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Runs Python code with the changed package; returns its output."""
    folder = tmp_path_factory.mktemp("changed")
    package = folder / "python" / "deltaworks"
    shutil.copytree(ROOT / "python" / "deltaworks", package, symlinks=True)
    library = package / "lib" / LIBRARY.name
    library.unlink()
    shutil.copy(build_library(folder), library)
    path = os.pathsep.join([str(package.parent), str(ROOT)])

    def run(*arguments, check=True):
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
            check=check,
            cwd=folder,
        )

    code = "import deltaworks; print(deltaworks.__file__)"
    assert Path(run("-c", code).stdout.strip()).is_relative_to(package)
    return run


CALL = """
import ml_dtypes, numpy as np, torch
from deltaworks.{module} import gated_delta_net
x = {make}
gated_delta_net(x, x, x, x[..., 0], x[..., 0], {offsets})
"""
CALLS = {
    "numpy": CALL.format(
        module="numpy",
        make="np.zeros((4, 2, 8), ml_dtypes.bfloat16)",
        offsets="np.array([0, 4])",
    ),
    "ops": CALL.format(
        module="ops",
        make="torch.zeros(4, 2, 8, dtype=torch.bfloat16)",
        offsets="torch.tensor([0, 4])",
    ),
}


def test_the_explanation_changes(changed):
    result = changed("-m", "deltaworks.cli", "explain", "--json", PROBLEM, check=False)
    assert result.returncode == 1
    told = json.loads(result.stdout)
    assert told["runs"] is None
    assert f"gdn_cpu: {told['engines'][0]['reasons'][0]}" == REASON


def test_the_choice_of_a_plan_changes(changed):
    code = "from deltaworks import Problem; print(Problem('{}').plan_name)"
    assert changed("-c", code.format(PROBLEM.replace("bf16", "fp32"))).stdout == "gdn_cpu\n"
    result = changed("-c", code.format(PROBLEM), check=False)
    assert "NotSupportedError" in result.stderr and REASON in result.stderr


@pytest.mark.parametrize("module", CALLS)
def test_the_operators_errors_change(changed, module):
    result = changed("-c", CALLS[module], check=False)
    assert "NotSupportedError: gated_delta_net: no engine takes this problem" in result.stderr
    assert REASON in result.stderr


def test_the_documentations_table_changes(changed):
    changed_rows = set(changed("-m", "tools.support_table").stdout.splitlines())
    code = [sys.executable, "-m", "tools.support_table"]
    rows = set(
        subprocess.run(
            code, capture_output=True, text=True, cwd=ROOT, check=True
        ).stdout.splitlines()
    )
    assert "| q k v in bfloat16 | no | pinned |" in changed_rows - rows
    assert "| q k v in float32 | yes | pinned |" in changed_rows & rows
    assert "* q k v must be float32, only float32" in changed_rows - rows
