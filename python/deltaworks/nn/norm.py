"""RMS normalisation of an operator's output, gated: RMSNorm(o) * weight * act(gate)."""

import torch
import torch.nn.functional as F
from torch import nn

_ACTIVATIONS = {"silu": F.silu, "sigmoid": torch.sigmoid}


class GatedRMSNorm(nn.Module):
    """RMSNorm over the last axis, scaled by a learned weight [dim] and by act of a gate.

    Args:
        dim: size of the last axis.
        eps: added to the mean square.
        activation: of the gate, "silu" or "sigmoid".
        gate_first: RMSNorm(o * act(gate)) * weight, as in Mamba-2.
        groups: dim is normalised in so many equal parts.
    """

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        *,
        activation: str = "silu",
        gate_first: bool = False,
        groups: int = 1,
    ):
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"GatedRMSNorm: activation must be 'silu' or 'sigmoid', got {activation!r}"
            )
        if groups < 1 or dim % groups:
            raise ValueError(f"GatedRMSNorm: groups must divide dim = {dim}, got {groups}")
        self.eps, self.groups, self.gate_first = eps, groups, gate_first
        self.activation = activation
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, o: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """o and gate [..., dim] of one floating dtype; returns the same shape and dtype.

        16-bit inputs are normalised and gated in fp32 and rounded once.
        """
        wide = torch.promote_types(o.dtype, torch.float32)
        factor = _ACTIVATIONS[self.activation](gate.to(wide))
        y = o.to(wide)
        if self.gate_first:
            y = y * factor
        y = y.unflatten(-1, (self.groups, -1))
        y = F.rms_norm(y, y.shape[-1:], None, self.eps).flatten(-2) * self.weight.to(wide)
        if not self.gate_first:
            y = y * factor
        return y.to(o.dtype)
