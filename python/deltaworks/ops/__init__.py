"""The PyTorch operators: packed variable-length linear attention, with autograd.

Each works eagerly, under torch.compile(fullgraph=True), FakeTensor and activation checkpointing.
"""

from deltaworks._library import last_plan
from deltaworks._library import last_workspace_bytes as workspace_bytes
from deltaworks.ops._gdn import gated_delta_net

__all__ = ["gated_delta_net", "last_plan", "workspace_bytes"]
