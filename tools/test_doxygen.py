"""The reference of the public headers builds, and fails where a comment is wrong or missing."""

import shutil

import pytest

from tools import docs
from tools.build import ROOT, Failed

HEADER = "include/deltaworks/plan.h"
FUNCTION = "inline Plan find_plan(const Problem& problem) {"
COMMENT = """\
// The plan for a problem: validates it, asks the engines in order (or the pinned one), builds. Kept
// in a process-wide cache keyed by the whole problem. Throws Error; kNotSupported lists every
// engine's reasons.
"""


@pytest.fixture
def tree(tmp_path):
    shutil.copytree(ROOT / "include", tmp_path / "include")
    for name in ("docs/Doxyfile", "tools/doxygen_filter.py"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def change(tree, old, new):
    text = (tree / HEADER).read_text()
    assert text.count(old) == 1
    (tree / HEADER).write_text(text.replace(old, new))


def test_the_headers_are_clean(tree):
    docs.run(tree)
    assert "find_plan" in (tree / "build/docs/xml/plan_8h.xml").read_text()
    assert (tree / "build/docs/html/index.html").exists()


@pytest.mark.parametrize(
    "comment, warning",
    [
        (r"// \param workspace that find_plan has not", "argument 'workspace'"),
        (r"// See \ref no_such_function.", "no_such_function"),
    ],
)
def test_a_wrong_comment_fails(tree, comment, warning):
    change(tree, FUNCTION, f"{comment}\n{FUNCTION}")
    with pytest.raises(Failed, match=rf"{HEADER}:\d+: error: .*{warning}"):
        docs.run(tree)


def test_a_function_without_a_comment_fails(tree):
    change(tree, COMMENT, "")
    with pytest.raises(Failed, match="public names without a comment: deltaworks::find_plan$"):
        docs.run(tree)
