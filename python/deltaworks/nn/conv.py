"""Causal depthwise convolution over packed sequences, with a carried state.

Each sequence is laid out behind its own history (the last kernel_size - 1 inputs before it, zeros
at the beginning of a text), and one plain convolution then runs over that padded row axis: what
lies in front of a sequence's first row is always its history, never its neighbour.

    padded: | history 0 | rows 0 | history 1 | rows 1 | ... | one more gap for rows past the end |
"""

import torch
import torch.nn.functional as F
from torch import nn


class ShortConvolution(nn.Module):
    """y_t = act(sum_j weight[:, j] * x_{t - kernel_size + 1 + j} + bias), per channel.

    It stays within a sequence. The weight has shape [dim, 1, kernel_size] as in nn.Conv1d, and the
    bias, if asked for, [dim].
    """

    def __init__(
        self,
        dim: int,
        kernel_size: int = 4,
        activation: str | None = "silu",
        *,
        bias: bool = False,
    ):
        super().__init__()
        if kernel_size < 2:
            raise ValueError(f"ShortConvolution: kernel_size must be at least 2, got {kernel_size}")
        if activation not in ("silu", None):
            raise ValueError(
                f"ShortConvolution: activation must be 'silu' or None, got {activation!r}"
            )
        self.kernel_size = kernel_size
        self.activation = activation
        bound = kernel_size**-0.5
        self.weight = nn.Parameter(torch.empty(dim, 1, kernel_size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(dim).uniform_(-bound, bound)) if bias else None

    def forward(
        self, x: torch.Tensor, cu_seqlens: torch.Tensor, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Convolves every sequence, whatever its length (also 0), without looking past its start.

        Args:
            x: [T, dim].
            cu_seqlens: [N+1] int32 or int64.
            state: [N, kernel_size - 1, dim], the inputs before each sequence; None is zeros.

        Returns:
            y [T, dim], zero at and past cu_seqlens[-1], and the new state, shaped like `state`.
        """
        history = self.kernel_size - 1
        rows, dim = x.shape
        starts = cu_seqlens.long()
        sequences = starts.numel() - 1
        if state is not None and state.shape != (sequences, history, dim):
            raise ValueError(
                f"ShortConvolution: state must be [{sequences}, {history}, {dim}], "
                f"got {list(state.shape)}"
            )

        token = torch.arange(rows, device=x.device)
        sequence = torch.searchsorted(starts[1:].contiguous(), token, right=True)
        row_at = token + history * (sequence + 1)
        slot = torch.arange(history, device=x.device)
        gaps = history * torch.arange(sequences, device=x.device)

        # One spare row, for conv1d refuses to have nothing to compute (no rows in no sequences).
        padded = x.new_zeros(rows + history * (sequences + 1) + 1, dim).index_copy(0, row_at, x)
        if state is not None:
            before = (starts[:-1] + gaps)[:, None] + slot
            padded = padded.index_copy(0, before.flatten(), state.to(x.dtype).flatten(0, 1))
        after = (starts[1:] + gaps)[:, None] + slot
        new_state = padded.index_select(0, after.flatten()).view(sequences, history, dim)

        mixed = F.conv1d(padded.t().unsqueeze(0), self.weight, self.bias, groups=dim).squeeze(0).t()
        y = mixed.index_select(0, row_at - history)
        if self.activation == "silu":
            y = F.silu(y)
        return y.masked_fill((sequence == sequences)[:, None], 0), new_state
