"""What every layer shares: packed rows in and out, a cache, an operator that can be replaced."""

from collections.abc import Callable

import torch
from torch import nn

from deltaworks.nn.cache import LayerCache, Step


class TokenMixer(nn.Module):
    """A layer over packed rows [T, D] around one operator of `deltaworks.ops`.

    A subclass names its operator and defines `mix(x, step)`.
    """

    operator_name: str

    def __init__(self, operator: Callable | None):
        super().__init__()
        if operator is None:
            from deltaworks import ops

            operator = getattr(ops, self.operator_name)
        self.operator = operator

    def require(self, met: bool, rule: str, *found) -> None:
        """Raises ValueError with the layer's name, the rule and what was found, unless met."""
        if not met:
            shown = " and ".join(map(str, found))
            raise ValueError(f"{type(self).__name__}: {rule}, got {shown}")

    def forward(
        self, x: torch.Tensor, cu_seqlens: torch.Tensor, cache: LayerCache | None = None
    ) -> torch.Tensor:
        """Mixes the rows of each sequence causally.

        Args:
            x: [T, D], fp32, bf16 or fp16, the parameters' dtype.
            cu_seqlens: [N+1] int32 or int64.
            cache: the N sequences are continued from it, and it is updated to their ends: one row
                a sequence decodes a token, and a text in pieces gives what one call gives.

        Returns:
            y [T, D].

        Raises:
            ValueError: the cache holds another number of sequences, or cu_seqlens is malformed.
        """
        step = Step(cache, cu_seqlens)
        y = self.mix(x, step)
        step.finish()
        return y

    def mix(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """y [T, D]; convolutions and the operator are run through `step`."""
        raise NotImplementedError
