"""The files that were built: the wheel holds the package and two libraries, and nothing else."""

import configparser
import email
import io
import platform
import re
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

CORE = "deltaworks/lib/libdeltaworks.so.0"
OPERATORS = "deltaworks/lib/libdeltaworks_torch.so"
FATBIN = 0xBA55ED50
OF_THE_SYSTEM = r"lib(c|m|stdc\+\+|gcc_s|pthread)\.so\.\d+|ld-linux-.*\.so\.\d+"


@pytest.fixture
def wheel(given):
    with zipfile.ZipFile(given("wheel")) as archive:
        yield archive


def project_version(source: Path) -> str:
    text = (source / "CMakeLists.txt").read_text()
    return re.search(r"project\(deltaworks VERSION (\S+)", text).group(1)


def packed(given) -> set[Path]:
    """The files of the source distribution."""
    with tarfile.open(given("sdist")) as archive:
        members = [Path(member.name) for member in archive.getmembers() if member.isfile()]
    return {path.relative_to(path.parts[0]) for path in members}


def dynamic(wheel, library: str) -> dict[str, list[str]]:
    """Values of a library's dynamic section by tag: DT_NEEDED, DT_RUNPATH, ..."""
    section = ELFFile(io.BytesIO(wheel.read(library))).get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    found = {}
    for tag in section.iter_tags():
        for name in ("needed", "soname", "rpath", "runpath"):
            if hasattr(tag, name):
                found.setdefault(name, []).append(getattr(tag, name))
    return found


def device_code(wheel, library: str) -> set[tuple[str, int]]:
    """The kinds of code for CUDA devices, "PTX" or "machine", each with its compute capability.

    The section holds fatbins, each a header and entries; an entry is a header and compressed code.
    """
    data = ELFFile(io.BytesIO(wheel.read(library))).get_section_by_name(".nv_fatbin").data()
    found = set()
    start = 0
    while start < len(data):
        magic, _, header, size = struct.unpack_from("<IHHQ", data, start)
        if magic != FATBIN:  # padding
            start += 8
            continue
        entry = start + header
        start = entry + size
        while entry < start:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, entry)
            (capability,) = struct.unpack_from("<I", data, entry + 28)
            found.add(({1: "PTX", 2: "machine"}[kind], capability))
            entry += header + size
    return found


def read_metadata(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def test_name(given):
    version = re.escape(project_version(given("source")))
    name = rf"deltaworks-{version}-py3-none-manylinux_2_\d+_{platform.machine()}\.whl"
    assert re.fullmatch(name, given("wheel").name)


def test_contents(given, wheel):
    package = {
        str(path.relative_to("python")) for path in packed(given) if path.parts[0] == "python"
    }
    assert "deltaworks/py.typed" in package
    information = f"deltaworks-{project_version(given('source'))}.dist-info"
    rest = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    expected = package | {CORE, OPERATORS} | {f"{information}/{name}" for name in rest}
    names = [name for name in wheel.namelist() if not name.endswith("/")]
    assert sorted(names) == sorted(expected)


def test_nothing_was_written_into_the_source(given):
    source = given("source")
    there = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert there == packed(given)


def test_library_needs_the_system_alone(wheel):
    found = dynamic(wheel, CORE)
    assert found["soname"] == ["libdeltaworks.so.0"]
    assert [name for name in found["needed"] if not re.fullmatch(OF_THE_SYSTEM, name)] == []
    assert not {"rpath", "runpath"} & found.keys()


def test_cuda_engine(wheel):
    """Machine code for two generations, and PTX that the driver compiles for any other since."""
    assert device_code(wheel, CORE) == {("machine", 80), ("machine", 90), ("PTX", 80)}


def test_operators_need_torch_and_the_library_beside_them(wheel):
    found = dynamic(wheel, OPERATORS)
    others = {name for name in found["needed"] if not re.fullmatch(OF_THE_SYSTEM, name)}
    assert {"libdeltaworks.so.0", "libtorch_cpu.so"} <= others
    assert others <= {"libdeltaworks.so.0", "libtorch_cpu.so", "libtorch.so", "libc10.so"}
    assert found["runpath"] == ["$ORIGIN"] and "rpath" not in found


def test_no_path_of_the_build_machine(given, wheel):
    paths = {given("source"), given("source").parents[1], Path(sys.prefix), Path.home()}
    for name in wheel.namelist():
        content = wheel.read(name)
        assert [path for path in paths if f"{path}/".encode() in content] == [], name


def test_metadata(given, wheel):
    metadata = read_metadata(wheel)
    assert metadata["Version"] == project_version(given("source"))
    required = metadata.get_all("Requires-Dist")
    names = {re.match(r"[\w.-]+", requirement)[0] for requirement in required}
    assert names == {"ml_dtypes", "numpy", "rich", "safetensors"}
    assert metadata["License-Expression"] == "MIT"
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(name).decode())
    assert dict(scripts["console_scripts"]) == {"deltaworks": "deltaworks.cli:main"}
