"""Fetches the packages that test_independent.py compares with into build/independent.

    .venv/bin/python tests/python/independent/fetch.py

Nothing of them is installed where the library's own tests run: the folder is given to a process of
its own (evaluate.py), which takes torch from this Python. mamba_ssm comes as its source, of which
two files are read; its extensions are not built.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

FOLDER = pathlib.Path(__file__).parents[3] / "build" / "independent"
INSTALLED = ("fla-core==0.6.0", "einops>=0.8", "setuptools", "packaging")
SOURCE = "mamba_ssm==2.3.2.post1"


def pip(*arguments, **environment):
    command = [sys.executable, "-m", "pip", *arguments]
    subprocess.run(command, check=True, env={**os.environ, **environment})


def main():
    FOLDER.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as name:
        fresh = pathlib.Path(name)
        packages = fresh / "packages"
        pip("install", "--no-deps", "--target", str(packages), *INSTALLED)
        # pip asks the source's setup.py for its name; it must not look for a compiler
        source = ("--no-deps", "--no-build-isolation", "--no-binary", ":all:", SOURCE)
        environment = {"MAMBA_SKIP_CUDA_BUILD": "TRUE", "PYTHONPATH": str(packages)}
        pip("download", *source, "--dest", str(fresh), **environment)
        [archive] = fresh.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(fresh / "source", filter="data")
        [root] = (fresh / "source").iterdir()
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        packages.rename(FOLDER / "packages")
        root.rename(FOLDER / "mamba_ssm")


if __name__ == "__main__":
    main()
