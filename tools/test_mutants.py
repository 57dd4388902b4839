"""The mutant runner on a small tree, and the table on this one."""

import pytest

from tools.build import Failed
from tools.mutants import Mutant, Runner, apply, copy_tree, read_table, try_mutant
from tools.sources import ROOT


def mutant(**changes) -> Mutant:
    values = {
        "name": "twice",
        "file": "python/total.py",
        "text": "a + b",
        "replacement": "a - b",
        "pytest": "tests/test_total.py",
    }
    return Mutant(**(values | changes))


@pytest.fixture
def runner(tmp_path):
    """A copy of a tree with one function, a test that sees its sign, and one that sees nothing."""
    (tmp_path / "tree/python").mkdir(parents=True)
    (tmp_path / "tree/tests").mkdir()
    (tmp_path / "tree/python/total.py").write_text("def add(a, b):\n    return a + b\n")
    sees = "from total import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
    (tmp_path / "tree/tests/test_total.py").write_text(sees)
    blind = "from total import add\n\n\ndef test_add():\n    assert add(2, 0) == 2\n"
    (tmp_path / "tree/tests/test_blind.py").write_text(blind)
    copy_tree(tmp_path / "tree", tmp_path / "copy")
    return Runner(tmp_path / "copy")


def test_killed_and_restored(runner):
    assert try_mutant(mutant(), runner) == "killed"
    assert "a + b" in (runner.scratch / "python/total.py").read_text()


def test_survived(runner):
    assert try_mutant(mutant(pytest="tests/test_blind.py"), runner) == "SURVIVED"


def test_a_ctest_that_is_not_there_kills_nothing(runner):
    folder = runner.scratch / "build/dev-cpu"
    folder.mkdir(parents=True)
    (folder / "CTestTestfile.cmake").write_text("")
    outcome = try_mutant(mutant(pytest="", ctest="Gone"), runner)
    assert outcome.startswith("ERROR") and "No tests were found" in outcome


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"text": "a * b"}, "occurs 0 times"),
        ({"text": "a"}, "times in"),
        ({"file": "python/gone.py"}, "occurs 0 times"),
        ({"pytest": "tests/test_gone.py"}, "pytest ended with 4"),
        ({"pytest": "tests/test_total.py::gone"}, "pytest ended with 4"),
        ({"replacement": "a +* b"}, "pytest ended with 2"),
    ],
)
def test_errors_are_not_kills(runner, changes, reason):
    outcome = try_mutant(mutant(**changes), runner)
    assert outcome.startswith("ERROR") and reason in outcome
    assert "a + b" in (runner.scratch / "python/total.py").read_text()


def test_passing_tests_do_not_fail(runner):
    assert runner.failure(["tests/test_total.py", "tests/test_blind.py"], []) is None


def test_package_outside_of_the_copy_is_refused(runner):
    with pytest.raises(Failed, match="outside the copy"):
        runner.check_package()


def test_mutant_names_one_test():
    for wrong in ({"ctest": "Sum.Add"}, {"pytest": ""}):
        with pytest.raises(ValueError, match="name one test"):
            mutant(**wrong)


def test_copy_follows_the_tree_and_keeps_equal_files(tmp_path):
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    (tree / "src").mkdir(parents=True)
    for name in ("same", "changed", "removed"):
        (tree / "src" / name).write_text(name)
    copy_tree(tree, copy)
    before = (copy / "src/same").stat().st_mtime_ns
    (copy / "build").mkdir()
    (tree / "src/changed").write_text("new")
    (tree / "src/removed").unlink()
    copy_tree(tree, copy)
    assert (copy / "src/same").stat().st_mtime_ns == before
    assert (copy / "src/changed").read_text() == "new"
    assert not (copy / "src/removed").exists()
    assert (copy / "build").is_dir()


@pytest.mark.parametrize("row", read_table(ROOT / "tools/mutants.toml"), ids=lambda row: row.name)
def test_table_applies(row, tmp_path):
    copy = tmp_path / row.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / row.file).read_text())
    apply(row, tmp_path)
    assert copy.read_text() != (ROOT / row.file).read_text()
    if row.pytest:
        assert (ROOT / row.pytest.split("::")[0]).is_file()


def test_table_names_are_unique():
    names = [row.name for row in read_table(ROOT / "tools/mutants.toml")]
    assert len(set(names)) == len(names)
