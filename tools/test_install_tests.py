"""The checks of installed files and binaries find what they are for, on files made for it."""

import subprocess
from pathlib import Path

import pytest

from tools.build import Failed
from tools.install_tests import ROOT, Tally, check_exports, check_files, check_names, check_needed
from tools.run_tests import Count


def compile_library(folder: Path, text: str, *options: str) -> Path:
    source, library = folder / "source.cc", folder / "library.so"
    source.write_text(text)
    linked = ["-Wl,--no-as-needed", "-Wl,-soname,libdeltaworks.so.0", "-static-libgcc", "-lm"]
    command = ["c++", "-shared", "-fPIC", source, *linked, *options, "-o", library]
    subprocess.run(command, check=True)
    return library


def install_headers(folder: Path) -> Path:
    """What check_files asks for, made of the source's own headers."""
    prefix = folder / "moved"
    for path in (ROOT / "include").rglob("*.h"):
        header = prefix / path.relative_to(ROOT)
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_bytes(path.read_bytes())
    package = prefix / "lib" / "cmake" / "deltaworks"
    package.mkdir(parents=True)
    (package / "deltaworksTargets.cmake").write_text("")
    (prefix / "lib" / "pkgconfig").mkdir()
    (prefix / "lib" / "libdeltaworks.a").write_text("")
    return prefix


def test_a_failed_test_is_counted_and_later_ones_run(capsys):
    def fails():
        raise Failed("too long")

    tests = Tally()
    assert not tests.run("first", fails)
    assert tests.run("second", lambda: None)
    assert tests.count == Count(passed=1, failed=1)
    assert "too long" in capsys.readouterr().out


def test_a_complete_installation_passes(tmp_path):
    check_files(install_headers(tmp_path), "libdeltaworks.a")


def test_a_missing_header_is_found(tmp_path):
    prefix = install_headers(tmp_path)
    (prefix / "include" / "deltaworks" / "ops.h").unlink()
    with pytest.raises(Failed, match="headers: .*ops.h"):
        check_files(prefix, "libdeltaworks.a")


def test_a_path_of_the_source_is_found(tmp_path):
    prefix = install_headers(tmp_path)
    (prefix / "lib" / "pkgconfig" / "deltaworks.pc").write_text(f"includedir={ROOT}/include")
    with pytest.raises(Failed, match="files with a path of this machine: .*deltaworks.pc"):
        check_files(prefix, "libdeltaworks.a")


def test_needed_libraries(tmp_path):
    check_needed(compile_library(tmp_path, "int f() { return 1; }"))
    with pytest.raises(Failed, match="NEEDED: .*libgcc_s"):
        check_needed(compile_library(tmp_path, "int f() { return 1; }", "-lgcc_s"))
    with pytest.raises(Failed, match="SONAME: .*libdeltaworks.so.1"):
        check_needed(compile_library(tmp_path, "", "-Wl,-soname,libdeltaworks.so.1"))


def test_static_thread_locals(tmp_path):
    source = "thread_local int x; int f() { return ++x; }"
    library = compile_library(tmp_path, source, "-ftls-model=initial-exec")
    with pytest.raises(Failed, match="thread-locals: "):
        check_needed(library)
    check_needed(compile_library(tmp_path, source, "-mtls-dialect=gnu2"))


def test_exported_symbols(tmp_path):
    library = compile_library(tmp_path, "void visible() {}")
    with pytest.raises(Failed, match="exported symbols: .*'_Z7visiblev'"):
        check_exports(library)


def test_a_name_in_headers_and_library(tmp_path):
    """A hundred inline functions in the program, one of them another function in the archive."""
    inline = "".join(f"inline int f{i}() {{ return {i}; }}\n" for i in range(101))
    calls = "int program() { return " + " + ".join(f"f{i}()" for i in range(101)) + "; }\n"
    (tmp_path / "cpp").mkdir()
    compile_object(tmp_path / "cpp" / "main.cc.o", inline + calls)
    compile_object(
        tmp_path / "library.o", 'extern "C" void dw_plan_find() {}\nint f7() { return 0; }'
    )
    (tmp_path / "moved" / "lib").mkdir(parents=True)
    archive = tmp_path / "moved" / "lib" / "libdeltaworks.a"
    subprocess.run(["ar", "rc", archive, tmp_path / "library.o"], check=True)
    with pytest.raises(Failed, match="names defined twice: expected none, got _Z2f7v"):
        check_names(tmp_path)


def compile_object(path: Path, text: str) -> None:
    subprocess.run(["c++", "-c", "-x", "c++", "-", "-o", path], input=text, text=True, check=True)
