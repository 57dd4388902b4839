"""The total of ./dev test: what is counted, and that a stage that breaks is not forgotten."""

from tools.build import Failed
from tools.run_tests import Count, read_report, run_stages


def test_reports_of_pytest_and_ctest_are_read(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="9" failures="2" errors="1" skipped="1"/></testsuites>'
    )
    assert read_report(report) == Count(passed=5, failed=3, skipped=1)
    report.write_text('<testsuite tests="4" failures="1" disabled="1" skipped="0"/>')
    assert read_report(report) == Count(passed=2, failed=1, skipped=1)


def test_a_missing_report_counts_nothing(tmp_path):
    assert read_report(tmp_path / "none.xml") == Count()


def test_total_is_the_sum(capsys):
    assert run_stages({"a": lambda: Count(3), "b": lambda: Count(4, 0, 1)})
    assert "total: 7 passed, 0 failed, 1 skipped;" in capsys.readouterr().out


def test_a_failure_fails_the_run_and_later_stages_run(capsys):
    assert not run_stages({"a": lambda: Count(3, 1), "b": lambda: Count(4)})
    assert "total: 7 passed, 1 failed, 0 skipped;" in capsys.readouterr().out


def test_a_stage_that_breaks_fails_the_run_and_later_stages_run(capsys):
    def breaks():
        raise Failed("no compiler")

    assert not run_stages({"a": breaks, "b": lambda: Count(4)})
    out = capsys.readouterr().out
    assert "no compiler" in out
    assert "total: 4 passed, 0 failed, 0 skipped; stages that broke: a;" in out
