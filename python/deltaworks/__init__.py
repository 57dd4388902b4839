"""deltaworks: chunked linear attention.

`import deltaworks` needs no framework; `deltaworks.ops` holds the PyTorch operators and imports
torch.
"""

from deltaworks._library import cpu_isa
from deltaworks.errors import NotSupportedError

__version__ = "0.1.0"
__all__ = ["NotSupportedError", "__version__", "cpu_isa"]
