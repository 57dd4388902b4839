"""PyTorch layers on top of `deltaworks.ops`.

Every module works on packed rows [T, D] with `cu_seqlens` [N+1] (int32 or int64) that bound the N
sequences: a dense batch of N sequences of length L is `cu_seqlens = [0, L, 2L, ...]`.
"""

from deltaworks.nn.cache import GatedDeltaNetCache
from deltaworks.nn.conv import ShortConvolution
from deltaworks.nn.gated_delta_net import GatedDeltaNet
from deltaworks.nn.norm import GatedRMSNorm

__all__ = ["GatedDeltaNet", "GatedDeltaNetCache", "GatedRMSNorm", "ShortConvolution"]
