"""The Gated DeltaNet-2 layer: one strength per channel to erase with, another to write with."""

import torch
from torch import nn

from deltaworks.nn.kimi_delta_attention import KimiDeltaAttention


class GatedDeltaNet2(KimiDeltaAttention):
    """Token mixer over packed rows [T, D] by `deltaworks.ops.gated_delta_net_v2`.

    Kimi Delta Attention (gate, convolutions, norm and output gate, initial values) but for beta and
    the written value:

        beta = sigmoid(x Wb)   [T, HO, K]   erases beta * k; doubled with allow_neg_eigval
        w = sigmoid(x Ww)      [T, HO, V]   writes w * v; in (0, 1) whatever allow_neg_eigval says
        S <- S' + k (w * v - (beta * k)^T S')^T

    with full projections Wb (b_proj) and Ww (w_proj); the sigmoid of beta is the operator's, that
    of w the layer's.

    Args:
        beta_guard: channels of beta are pulled together where a step could expand the state.
        shared: the arguments of `KimiDeltaAttention` and of `DeltaLayer`.

    Raises:
        ValueError: as KimiDeltaAttention.
    """

    operator_name = "gated_delta_net_v2"

    def __init__(self, dim: int, num_heads: int, *, beta_guard: bool = False, **shared):
        super().__init__(dim, num_heads, **shared)
        self.w_proj = nn.Linear(dim, self.num_value_heads * self.value_dim, bias=False)
        if beta_guard:
            self.options["beta_guard"] = True

    def beta_width(self) -> int:
        return self.num_value_heads * self.key_dim

    def gates(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w = torch.sigmoid(self.w_proj(x)).unflatten(-1, (self.num_value_heads, self.value_dim))
        return self.per_channel(self.f_proj(x)), self.per_channel(self.b_proj(x)), w
