"""The operators on NumPy arrays and on DLPack tensors in CPU memory; needs NumPy and ml_dtypes.

Forward and backward are functions of their own: NumPy has no autograd. See docs/numpy.md.
"""

from deltaworks.numpy._gdn import (
    GatedDeltaNetGradients,
    gated_delta_net,
    gated_delta_net_backward,
)

__all__ = ["GatedDeltaNetGradients", "gated_delta_net", "gated_delta_net_backward"]
