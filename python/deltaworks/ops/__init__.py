"""The PyTorch operators: packed variable-length linear attention, with autograd.

Each works eagerly, under torch.compile(fullgraph=True), FakeTensor and activation checkpointing.
"""

from deltaworks._library import last_plan
from deltaworks._library import last_workspace_bytes as workspace_bytes
from deltaworks.ops._gdn import gated_delta_net
from deltaworks.ops._gdn2 import gated_delta_net_v2
from deltaworks.ops._gdp import gated_delta_product
from deltaworks.ops._kda import kimi_delta_attention
from deltaworks.ops._mamba2 import mamba2

__all__ = [
    "gated_delta_net",
    "gated_delta_net_v2",
    "gated_delta_product",
    "kimi_delta_attention",
    "last_plan",
    "mamba2",
    "workspace_bytes",
]
