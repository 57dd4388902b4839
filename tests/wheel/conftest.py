"""What tools/wheel_tests.py hands to the tests of the files that were built."""

from pathlib import Path

import pytest

GIVEN = {
    "sdist": "the source distribution",
    "source": "the folder that it was unpacked into, and the wheel built in",
    "wheel": "the wheel",
    "without_torch": "a Python that has no torch",
}


def pytest_addoption(parser):
    for name, text in GIVEN.items():
        parser.addoption(f"--{name.replace('_', '-')}", type=Path, help=text)


@pytest.fixture
def given(request):
    """The path that was given under a name."""

    def path(name: str) -> Path:
        value = request.config.getoption(name)
        assert value is not None and value.exists(), f"--{name} must be {GIVEN[name]}, got {value}"
        return value

    return path
