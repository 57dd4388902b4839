"""The operators on NumPy arrays and on DLPack tensors in CPU memory; needs NumPy and ml_dtypes.

Forward and backward are functions of their own: NumPy has no autograd. See docs/numpy.md.
"""

from deltaworks.numpy._gdn import gated_delta_net, gated_delta_net_backward
from deltaworks.numpy._gdn2 import gated_delta_net_v2, gated_delta_net_v2_backward
from deltaworks.numpy._gdp import gated_delta_product, gated_delta_product_backward
from deltaworks.numpy._gradients import (
    GatedDeltaNetGradients,
    GatedDeltaNetV2Gradients,
    GatedDeltaProductGradients,
    KimiDeltaAttentionGradients,
    Mamba2Gradients,
)
from deltaworks.numpy._kda import kimi_delta_attention, kimi_delta_attention_backward
from deltaworks.numpy._mamba2 import mamba2, mamba2_backward

__all__ = [
    "GatedDeltaNetGradients",
    "GatedDeltaNetV2Gradients",
    "GatedDeltaProductGradients",
    "KimiDeltaAttentionGradients",
    "Mamba2Gradients",
    "gated_delta_net",
    "gated_delta_net_backward",
    "gated_delta_net_v2",
    "gated_delta_net_v2_backward",
    "gated_delta_product",
    "gated_delta_product_backward",
    "kimi_delta_attention",
    "kimi_delta_attention_backward",
    "mamba2",
    "mamba2_backward",
]
