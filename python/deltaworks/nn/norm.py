"""RMS normalisation of each head's output, gated: RMSNorm(o) * weight * silu(gate)."""

import torch
import torch.nn.functional as F
from torch import nn


class GatedRMSNorm(nn.Module):
    """RMSNorm over the last axis, scaled by a learned weight and by silu of a gate."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, o: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """o and gate [..., dim] of one floating dtype; returns the same shape and dtype.

        16-bit inputs are normalised and gated in fp32 and rounded once.
        """
        wide = torch.promote_types(o.dtype, torch.float32)
        normed = F.rms_norm(o.to(wide), (o.shape[-1],), self.weight.to(wide), self.eps)
        return (normed * F.silu(gate.to(wide))).to(o.dtype)
