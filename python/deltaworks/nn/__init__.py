"""PyTorch layers on top of `deltaworks.ops`.

Every module works on packed rows [T, D] with `cu_seqlens` [N+1] (int32 or int64) that bound the N
sequences: a dense batch of N sequences of length L is `cu_seqlens = [0, L, 2L, ...]`.
"""

from deltaworks.nn.cache import LayerCache
from deltaworks.nn.conv import ShortConvolution
from deltaworks.nn.gated_delta_net import GatedDeltaNet
from deltaworks.nn.gated_delta_net_2 import GatedDeltaNet2
from deltaworks.nn.gated_delta_product import GatedDeltaProduct
from deltaworks.nn.kimi_delta_attention import KimiDeltaAttention
from deltaworks.nn.mamba2 import Mamba2
from deltaworks.nn.norm import GatedRMSNorm

GatedDeltaNetCache = LayerCache  # its name while there was one layer

__all__ = [
    "GatedDeltaNet",
    "GatedDeltaNet2",
    "GatedDeltaNetCache",
    "GatedDeltaProduct",
    "GatedRMSNorm",
    "KimiDeltaAttention",
    "LayerCache",
    "Mamba2",
    "ShortConvolution",
]
