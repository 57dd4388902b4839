"""Makes the source tree's package importable where no deltaworks is installed."""

import importlib.util
import pathlib
import sys

if importlib.util.find_spec("deltaworks") is None:
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python"))
