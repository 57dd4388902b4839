"""deltaworks: chunked linear attention.

`import deltaworks` needs no framework: `deltaworks.ops` holds the PyTorch operators and imports
torch, `deltaworks.numpy` those on NumPy arrays and DLPack tensors.
"""

from deltaworks._library import Verdict, cpu_isa
from deltaworks.errors import NotSupportedError
from deltaworks.problem import Problem

__version__ = "0.1.0"
__all__ = ["NotSupportedError", "Problem", "Verdict", "__version__", "cpu_isa"]
