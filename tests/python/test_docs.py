"""The pages tell the truth: their programs compile and print what they say, their snippets run, and
tables, links and names are those of the source.

The output of a block of code is the text block that comes next on its page. There, "..." stands for
anything, and a number such as 1.2e-07 for an error: of its size, but not digit for digit.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bounds

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools import support_table  # noqa: E402

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md")) + [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ERROR = re.compile(r"\d\.\de-\d\d")
LIBRARY = ROOT / "python" / "deltaworks" / "lib" / "libdeltaworks.so.0"
SEPARATOR = "---- next block ----"


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page, language):
    """(code, output or None) of every block in a language."""
    found = FENCE.findall(page.read_text())
    following = [*found[1:], ("", "")]
    for (kind, code), (next_kind, text) in zip(found, following, strict=True):
        if kind == language:
            yield code, text if next_kind == "text" else None


def assert_prints(expected, got):
    """Line by line; an error may be four times as large or small."""
    expected, got = expected.splitlines(), got.splitlines()
    assert len(got) == len(expected), f"expected {expected}, got {got}"
    for want, line in zip(expected, got, strict=True):
        pattern = re.escape(ERROR.sub("ERROR", want)).replace(r"\.\.\.", ".*")
        assert re.fullmatch(pattern, ERROR.sub("ERROR", line)), f"expected {want!r}, got {line!r}"
        for a, b in zip(ERROR.findall(want), ERROR.findall(line), strict=True):
            assert float(a) / 4 <= float(b) <= 4 * float(a), f"expected {want!r}, got {line!r}"


def run(command, **environment):
    names = ("DELTAWORKS_ENGINE", "DELTAWORKS_LOG", "DELTAWORKS_ISA")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    result = subprocess.run(command, capture_output=True, text=True, env=clean | environment)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.parametrize(
    "page, language, compiler",
    [
        ("cpp.md", "cpp", ["g++", "-std=c++20"]),
        ("c.md", "c", ["gcc", "-std=c11"]),
    ],
    ids=["cpp", "c"],
)
def test_a_program_prints_what_its_page_says(page, language, compiler, tmp_path):
    ((code, output),) = blocks(DOCS / page, language)
    source, program = tmp_path / f"main.{language}", tmp_path / "program"
    source.write_text(code)
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    link = [LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}", "-lm"]
    run([*compiler, *flags, source, *link, "-o", program])
    assert_prints(output, run([program]))


@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/python.md", "docs/numpy.md", "docs/numerics.md", "docs/migration.md"],
)
def test_snippets_run_and_print_what_their_page_says(page):
    """In order, in one process: a snippet may use what an earlier one made."""
    snippets = list(blocks(ROOT / page, "python"))
    assert snippets
    script = f"\nprint({SEPARATOR!r})\n".join(code for code, _ in snippets)
    path = os.pathsep.join(filter(None, sys.path))
    printed = run([sys.executable, "-c", script], PYTHONPATH=path)
    for (_, expected), got in zip(snippets, printed.split(f"{SEPARATOR}\n"), strict=True):
        if expected is not None:
            assert_prints(expected, got)


@pytest.mark.parametrize("variant", support_table.PAGES)
def test_the_support_matrix_is_what_the_engines_say(variant):
    text = support_table.PAGES[variant].read_text()
    assert support_table.with_table(text, variant) == text


def test_the_bounds_are_those_of_the_tests():
    page = (DOCS / "numerics.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    for name, values in {
        "o, final_state": [bounds.FORWARD[dtype] for dtype in dtypes],
        "gradients": [bounds.BACKWARD[dtype] for dtype in dtypes],
        "gradients of a_log, dt_bias, and of a bfloat16 g": [None, *2 * [bounds.GATE_SUM]],
    }.items():
        assert [name, *("" if x is None else f"{x:.0e}" for x in values)] in rows
    assert f"more than {bounds.MAXIMUM:.0f} times the bound" in page
    assert f"the bound is {bounds.LOOP:.0f} times the error of a plain float32" in page


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page):
    text = FENCE.sub("", page.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in [title.lower().replace(" ", "-") for title in headings], link


def test_the_index_names_every_page():
    index = (DOCS / "README.md").read_text()
    for page in DOCS.rglob("*.md"):
        assert page == DOCS / "README.md" or f"]({page.relative_to(DOCS)})" in index, page


def sources(*patterns):
    return "\n".join(path.read_text() for pattern in patterns for path in ROOT.glob(pattern))


def test_environment_variables_are_those_that_are_read():
    cc = sources("src/**/*.cc")
    read = set(re.findall(r'(?:getenv|variable)\("(\w+)"\)', cc))
    (table,) = re.findall(r"^## Environment\n(.*)", (DOCS / "cpp.md").read_text(), re.M | re.S)
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == read

    known = read | set(
        re.findall(r"\bDELTAWORKS_\w+", sources("CMakeLists.txt") + sources("cmake/*.cmake"))
    )
    for page in PAGES:
        named = set(re.findall(r"\b(?:DELTAWORKS|OMP)_[A-Z_]+\b", page.read_text()))
        assert named <= known, name_of(page)


def test_the_cuda_engines_conditions_are_listed():
    """From its source: a build without CUDA cannot ask it."""
    (engine,) = ROOT.glob("src/engines/cuda/engine.cc")
    source = re.sub(r'"\s*"', "", engine.read_text())
    _, _, rest = (
        (DOCS / "reference/gated-delta-net.md").read_text().partition("On a card `gdn_sm80`")
    )
    listed = re.findall(r"^\* (.*)$", rest, re.MULTILINE)
    literal = [x for x in listed if f'"{x}"' in source]
    assert len(literal) == source.count(".need(") - 1  # the bytes of shared memory are a number
    assert [x for x in listed if x not in literal] == [x for x in listed if "shared memory" in x]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_the_c_interface_are_in_its_header(page):
    header = (ROOT / "include/deltaworks/c_api.h").read_text()
    for name in re.findall(r"\b(?:dw|DW)_\w+", page.read_text()):
        assert name in header, name


def test_rules_that_are_named_exist():
    rules = re.findall(r'"(\w+)",', sources("src/problem/rules.cc"))
    named = re.findall(r'`"(\w+)"`', (DOCS / "c.md").read_text())
    assert named and set(named) <= set(rules)
