"""The installed library and programs that use it: python -m tools.install_tests.

The library is installed shared, static and cross-compiled for aarch64, each into a new folder that
is moved before anyone uses it, and built once as a part of another project. tests/install holds the
programs. Prints a line a test; logs lie under build/logs, everything else in a temporary folder.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tools import binaries
from tools.build import ROOT, Failed, run
from tools.run_tests import Count

PROGRAMS = ROOT / "tests" / "install"
LOGS = ROOT / "build" / "logs"
TOOLCHAIN = ROOT / "cmake" / "aarch64-linux-gnu.cmake"
NEEDED = {"libstdc++.so.6", "libm.so.6", "libc.so.6"}
STRICT = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
# Where else a library might be found.
FOUND_BY = ("CMAKE_PREFIX_PATH", "CPATH", "deltaworks_ROOT", "LD_LIBRARY_PATH", "PKG_CONFIG_PATH")
CLEAN = ["env", *(word for name in FOUND_BY for word in ("-u", name))]


class Tally:
    """Runs tests one by one and counts them."""

    def __init__(self):
        self.count = Count()

    def run(self, name: str, test: Callable[..., None], *arguments) -> bool:
        """A test fails by raising Failed."""
        start = time.monotonic()
        try:
            test(*arguments)
        except (Failed, OSError, subprocess.SubprocessError) as failure:
            print(failure)
            passed = False
        else:
            passed = True
        self.count += Count(passed=int(passed), failed=int(not passed))
        outcome = "passed" if passed else "FAILED"
        print(f"{name:56} {outcome} {time.monotonic() - start:6.1f} s", flush=True)
        return passed


def require_equal(what: str, got, expected) -> None:
    if got != expected:
        raise Failed(f"{what}: expected {expected!r}, got {got!r}")


def require_none(what: str, found) -> None:
    if found:
        raise Failed(f"{what}: expected none, got {', '.join(map(str, sorted(found)))}")


def logged(name: str, *command: str | Path, cwd: Path = ROOT) -> None:
    run([*CLEAN, *map(str, command)], LOGS / f"install-{name}.log", cwd)


def build_project(name: str, source: Path, build: Path, *options: str) -> None:
    logged(f"{name}-configure", "cmake", "-S", source, "-B", build, "-G", "Ninja", *options)
    jobs = len(os.sched_getaffinity(0))
    logged(f"{name}-build", "cmake", "--build", build, "-j", str(jobs))


def install_library(place: Path, *options: str) -> None:
    """Leaves the installation in place/moved, and neither its build nor its first place."""
    build = place / "build"
    fixed = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON"]
    # As on a machine that has what the library needs and no more.
    fixed += ["-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON", "-DCMAKE_INSTALL_LIBDIR=lib"]
    build_project(place.name, ROOT, build, *fixed, *options)
    logged(f"{place.name}-install", "cmake", "--install", build, "--prefix", place / "first")
    (place / "first").rename(place / "moved")
    shutil.rmtree(build)


def relative_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def check_files(prefix: Path, *libraries: str) -> None:
    """Every header, and no trace of where the library was built and first installed."""
    require_equal("headers", relative_files(prefix / "include"), relative_files(ROOT / "include"))
    names = {path.name for path in (prefix / "lib").iterdir()}
    require_equal("lib", names, {"cmake", "pkgconfig", *libraries})
    places = [os.fsencode(place) for place in (ROOT, prefix.parent)]
    files = [path for path in prefix.rglob("*") if path.is_file()]
    require_none(
        "files with a path of this machine",
        [path for path in files if any(place in path.read_bytes() for place in places)],
    )
    targets = (prefix / "lib/cmake/deltaworks/deltaworksTargets.cmake").read_text()
    if "INTERFACE_COMPILE_OPTIONS" in targets:
        raise Failed("the package hands its compiler options on")


def check_needed(library: Path) -> None:
    # The dynamic linker, a part of libc: the CUDA runtime asks it for thread-locals.
    needed = {name for name in binaries.dynamic(library, "NEEDED") if "ld-linux" not in name}
    require_equal("NEEDED", needed, NEEDED)
    require_equal("SONAME", binaries.dynamic(library, "SONAME"), {"libdeltaworks.so.0"})
    if binaries.wants_static_thread_locals(library):
        raise Failed("thread-locals: a program that has used up the reserve could not load them")


def check_exports(library: Path) -> None:
    header = (ROOT / "include/deltaworks/c_api.h").read_text()
    declared = set(re.findall(r"^DW_API [\w* ]*?\b(dw_\w+)\(", header, re.MULTILINE))
    require_equal("exported symbols", binaries.exported(library), declared)


def check_headers(prefix: Path, compiler: str, language: str, standard: str, header: str) -> None:
    include = prefix / "include"
    headers = sorted(include.rglob(header))
    require_equal(f"{header} found", bool(headers), True)
    for path in headers:
        name = str(path.relative_to(include))
        options = [f"-std={standard}", *STRICT, "-fsyntax-only", f"-I{include}", "-include", name]
        log = f"header-{standard}-{name.replace('/', '-')}"
        logged(log, compiler, *options, "-x", language, os.devnull)


def test_program(program: str, place: Path, *options: str) -> None:
    """Builds a CMake project of tests/install on the installation in place/moved, and runs it."""
    name = f"{place.name}-{program}"
    build = place / program
    root = f"-Ddeltaworks_ROOT={place / 'moved'}"
    build_project(name, PROGRAMS / program, build, root, *options)
    logged(f"{name}-run", "ctest", "--test-dir", build, "-V", "--no-tests=error")


def cuda_libraries() -> list[str]:
    """The options -L that nvcc gives to the linker."""
    command = ["nvcc", "--dryrun", "-x", "cu", os.devnull]
    steps = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True).stderr
    (libraries,) = re.findall("LIBRARIES=(.*)", steps)
    return re.findall('"(-L.+?)"', libraries)


def test_pkg_config(place: Path, *options: str) -> None:
    """A C program compiled as pkg-config says."""
    prefix = place / "moved"
    module = ["pkg-config", "--cflags", "--libs", *options, "deltaworks"]
    path = [f"PKG_CONFIG_LIBDIR={prefix / 'lib/pkgconfig'}"]
    flags = subprocess.run(
        [*CLEAN, *path, *module], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()
    program = place / "program"
    source = PROGRAMS / "c" / "main.c"
    if "--static" in options:
        flags += cuda_libraries()
    logged(f"{place.name}-cc", "cc", "-std=c11", *STRICT, source, *flags, "-lm", "-o", program)
    logged(f"{place.name}-c", "env", f"LD_LIBRARY_PATH={prefix / 'lib'}", program)


def check_names(place: Path) -> None:
    """The public headers define what the archive does not: of an inline function in a program and
    another of the same name in the library, the linker would keep one."""
    (program,) = (place / "cpp").rglob("main.cc.o")
    inline = binaries.weak(program)
    require_equal("inline functions in the program", len(inline) > 100, True)
    library = binaries.strong(place / "moved/lib/libdeltaworks.a")
    require_equal("the interface in the library", "dw_plan_find" in library, True)
    require_none("names defined twice", inline & library)


def test_subdirectory(place: Path) -> None:
    """Static, as CMake's default is; no tests, no install rules, and no flags handed on."""
    build = place / "build"
    options = [f"-DDELTAWORKS_SOURCE={ROOT}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    build_project("subdirectory", PROGRAMS / "subdirectory", build, *options)
    logged("subdirectory-run", "ctest", "--test-dir", build, "-V", "--no-tests=error")
    require_equal("type", (build / "type.txt").read_text(), "STATIC_LIBRARY")
    require_equal("tests", (build / "deltaworks" / "tests").exists(), False)
    logged("subdirectory-install", "cmake", "--install", build, "--prefix", place / "installed")
    require_equal("installed", relative_files(place / "installed"), {"bin/consumer"})

    commands = json.loads((build / "compile_commands.json").read_text())
    (program,) = (row["command"] for row in commands if row["file"].endswith("cpp/main.cc"))
    require_none("flags handed on", re.findall(r"-ffp-contract\S*|-fvisib\S*|-ftls\S*", program))
    require_equal("a system header to others", f"-isystem {ROOT / 'include'}" in program, True)
    library = " ".join(row["command"] for row in commands if row["command"] != program)
    require_none("warnings as errors in a subproject", set(re.findall("-Werror", library)))
    require_none("CUDA in a subproject that does not ask", set(re.findall("nvcc", library)))


def test_subdirectory_shared(place: Path) -> None:
    options = [f"-DDELTAWORKS_SOURCE={ROOT}", "-DBUILD_SHARED_LIBS=ON"]
    command = ["cmake", "-S", PROGRAMS / "subdirectory", "-B", place / "shared", *options]
    logged("subdirectory-shared", *command)
    require_equal("type", (place / "shared" / "type.txt").read_text(), "SHARED_LIBRARY")


def link_highway(folder: Path) -> Path:
    """A folder that holds Highway's headers alone: the host's, which fit every processor."""
    text = '#include "hwy/highway.h"\n'
    command = ["c++", "-M", "-x", "c++", "-"]
    rule = subprocess.run(command, input=text, check=True, stdout=subprocess.PIPE, text=True).stdout
    folder.mkdir()
    (folder / "hwy").symlink_to(re.search(r"(\S+/hwy)/highway\.h", rule)[1])
    return folder


def shared_tests(tests: Tally, place: Path) -> None:
    if not tests.run("shared: builds and installs", install_library, place):
        return
    prefix = place / "moved"
    library = prefix / "lib" / "libdeltaworks.so.0"
    tests.run("shared: the installed files", check_files, prefix, library.name, "libdeltaworks.so")
    tests.run("shared: needs libstdc++, libm and libc alone", check_needed, library)
    tests.run("shared: exports the C interface alone", check_exports, library)
    headers = (check_headers, prefix)
    tests.run("headers compile alone in C++20", *headers, "c++", "c++", "c++20", "*.h")
    tests.run("c_api.h compiles alone in C11", *headers, "cc", "c", "c11", "c_api.h")
    tests.run("c_api.h compiles alone in C99", *headers, "cc", "c", "c99", "c_api.h")
    tests.run("shared: C++ by find_package", test_program, "cpp", place)
    tests.run("shared: C by find_package", test_program, "c_cmake", place)
    tests.run("shared: C by pkg-config", test_pkg_config, place)
    tests.run("shared: kernels against the reference", test_program, "kernels", place)


def static_tests(tests: Tally, place: Path) -> None:
    options = ["-DBUILD_SHARED_LIBS=OFF"]
    if not tests.run("static: builds and installs", install_library, place, *options):
        return
    tests.run("static: the installed files", check_files, place / "moved", "libdeltaworks.a")
    tests.run("static: C++ by find_package", test_program, "cpp", place)
    tests.run("static: names of headers and library are apart", check_names, place)
    tests.run("static: C by find_package", test_program, "c_cmake", place)
    tests.run("static: C by pkg-config", test_pkg_config, place, "--static")


def aarch64_tests(tests: Tally, place: Path) -> None:
    """Under qemu-user, which the toolchain file names as the emulator."""
    cross = [f"-DCMAKE_TOOLCHAIN_FILE={TOOLCHAIN}", "-DBUILD_SHARED_LIBS=OFF"]
    highway = f"-DHIGHWAY_INCLUDE_DIR={link_highway(place / 'highway')}"
    if not tests.run("aarch64: builds and installs", install_library, place, *cross, highway):
        return
    cross = [cross[0], "-DCMAKE_BUILD_TYPE=Release"]
    tests.run("aarch64: C++ by find_package, emulated", test_program, "cpp", place, *cross)
    cross.append("-DEXPECTED_ISA=NEON")
    tests.run("aarch64: kernels, emulated", test_program, "kernels", place, *cross)


def install_tests() -> Count:
    tests = Tally()
    with tempfile.TemporaryDirectory(prefix="deltaworks-") as name:
        place = Path(name)
        for kind in ("shared", "static", "subdirectory", "aarch64"):
            (place / kind).mkdir()
        shared_tests(tests, place / "shared")
        static_tests(tests, place / "static")
        part = place / "subdirectory"
        tests.run("subdirectory: a part of another project", test_subdirectory, part)
        tests.run("subdirectory: shared if the parent says so", test_subdirectory_shared, part)
        aarch64_tests(tests, place / "aarch64")
    return tests.count


def main() -> int:
    count = install_tests()
    print(count)
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
