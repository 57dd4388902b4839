"""What a layer carries from one call to the next, and the call that reads and replaces it.

An empty cache stands for the beginning of every sequence. Its size does not grow with the length
of the text: kernel_size - 1 rows a convolution and one matrix a head, per sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from deltaworks.nn.conv import ShortConvolution


@dataclass
class LayerCache:
    """Carried state of one layer, of any kind, for N sequences; empty before the first call.

    Attributes:
        convolutions: by the name of a convolution of the layer, [N, kernel_size - 1, channels],
            its last inputs.
        recurrent: [N, HO, V, K] fp32, the operator's state (Mamba-2: [N, H, P, N_state]).
    """

    convolutions: dict[str, torch.Tensor] = field(default_factory=dict)
    recurrent: torch.Tensor | None = None

    def select(self, index: torch.Tensor) -> "LayerCache":
        """The cache of the sequences `index` [M] (int64), in that order."""
        return LayerCache(
            {name: rows.index_select(0, index) for name, rows in self.convolutions.items()},
            None if self.recurrent is None else self.recurrent.index_select(0, index),
        )


class Step:
    """One call of a layer on packed sequences.

    It reads what the cache carries and collects what it shall carry next; `finish` replaces the
    one by the other, so that a call that fails on its way leaves the cache as it was.
    """

    def __init__(self, cache: LayerCache | None, cu_seqlens: torch.Tensor):
        self.cache, self.cu_seqlens = cache, cu_seqlens
        self.before = LayerCache() if cache is None else cache
        self.after = LayerCache()

    def convolve(self, name: str, conv: ShortConvolution, x: torch.Tensor) -> torch.Tensor:
        """conv(x), [T, channels], continued from what is carried under `name`."""
        y, self.after.convolutions[name] = conv(
            x, self.cu_seqlens, self.before.convolutions.get(name)
        )
        return y

    def operate(self, operator: Callable, *tensors: torch.Tensor, **options) -> torch.Tensor:
        """The output of operator(*tensors, cu_seqlens, **options), continued from its state."""
        o, self.after.recurrent = operator(
            *tensors,
            self.cu_seqlens,
            initial_state=self.before.recurrent,
            output_final_state=self.cache is not None,
            **options,
        )
        return o

    def finish(self) -> None:
        """Puts the sequences' ends into the cache, if there is one."""
        if self.cache is not None:
            self.cache.convolutions = self.after.convolutions
            self.cache.recurrent = self.after.recurrent
