"""What a GatedDeltaNet layer carries from one call to the next.

An empty cache stands for the beginning of every sequence. Its size does not grow with the length
of the text: three rows a convolution and one K x V matrix a head, per sequence.
"""

from dataclasses import dataclass

import torch


@dataclass
class GatedDeltaNetCache:
    """Carried state of one layer for N sequences; every field is None before the first call.

    Attributes:
        q_conv, k_conv: [N, kernel_size - 1, H * K], the last inputs of the convolutions.
        v_conv: [N, kernel_size - 1, HV * V].
        recurrent: [N, HV, V, K] fp32, the operator's state.
    """

    q_conv: torch.Tensor | None = None
    k_conv: torch.Tensor | None = None
    v_conv: torch.Tensor | None = None
    recurrent: torch.Tensor | None = None

    def select(self, index: torch.Tensor) -> "GatedDeltaNetCache":
        """The cache of the sequences `index` [M] (int64), in that order."""
        return GatedDeltaNetCache(
            *(
                None if tensor is None else tensor.index_select(0, index)
                for tensor in (self.q_conv, self.k_conv, self.v_conv, self.recurrent)
            )
        )
