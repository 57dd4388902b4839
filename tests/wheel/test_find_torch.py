"""How a wheel build finds torch, and what it says where it finds none (cmake/wheel_torch.cmake)."""

import subprocess
import sys

import pytest


@pytest.fixture
def configure(given):
    """Runs the script with these definitions; returns its exit status and what it said."""

    def run(**definitions):
        command = ["cmake", *[f"-D{name}={value}" for name, value in definitions.items()]]
        script = given("source") / "cmake" / "wheel_torch.cmake"
        result = subprocess.run([*command, "-P", script], capture_output=True, text=True)
        return result.returncode, " ".join(result.stderr.split())

    return run


WAYS_OUT = (
    "pip install scikit-build-core torch",
    "--no-build-isolation",
    "-C cmake.define.DELTAWORKS_TORCH_ROOT=",
    "-C cmake.define.DELTAWORKS_TORCH=OFF",
)


def test_torch_of_the_building_python(configure):
    assert configure(DELTAWORKS_TORCH="ON", Python_EXECUTABLE=sys.executable) == (0, "")


def test_no_torch(configure, given):
    python = given("without_torch")
    code, text = configure(DELTAWORKS_TORCH="ON", Python_EXECUTABLE=python)
    assert code != 0 and f"{python} has none" in text
    assert [way for way in WAYS_OUT if way not in text] == []


def test_old_torch(configure, monkeypatch, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, text = configure(DELTAWORKS_TORCH="ON", Python_EXECUTABLE=sys.executable)
    assert code != 0 and f"the one in {tmp_path / 'torch'} is older" in text
    assert [way for way in WAYS_OUT if way not in text] == []


def test_without_the_operators_none_is_looked_for(configure):
    assert configure(DELTAWORKS_TORCH="OFF", Python_EXECUTABLE="no-such-python") == (0, "")


def test_a_folder_that_is_given_is_taken(configure):
    given = {"DELTAWORKS_TORCH_ROOT": "somewhere", "Python_EXECUTABLE": "no-such-python"}
    assert configure(DELTAWORKS_TORCH="ON", **given) == (0, "")


def test_without_the_operators_the_build_configures(given, tmp_path):
    options = ["-DSKBUILD=2", "-DDELTAWORKS_TESTS=OFF", "-DDELTAWORKS_TORCH=OFF"]
    command = ["cmake", "-G", "Ninja", "-S", given("source"), "-B", tmp_path, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rules = (tmp_path / "build.ninja").read_text()
    assert "libdeltaworks.so.0" in rules and "libdeltaworks_torch" not in rules
