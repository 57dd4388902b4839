"""A valid call of every operation but the first, by name: T = 12 tokens, N = 2, heads (2, 2, 4)."""

import torch

T, H, HV, K, V, n = 12, 2, 4, 16, 8, 3


def _rows(*shape):
    rng = torch.Generator().manual_seed(sum(shape))
    return torch.rand(*shape, generator=rng) - 0.5


def _delta(steps=1, **own):
    return {
        "q": _rows(T, H, K),
        "k": _rows(T * steps, H, K),
        "v": _rows(T * steps, HV, V),
        "g": -_rows(T, HV).abs(),
        "beta": _rows(T * steps, HV).abs(),
        "cu_seqlens": torch.tensor([0, 5, 12]),
        **own,
    }


def calls():
    """Arguments by operation."""
    channels = -_rows(T, HV, K).abs()
    return {
        "kimi_delta_attention": _delta(g=channels),
        "gated_delta_net_v2": _delta(
            g=channels, beta=_rows(T, HV, K).abs(), w=_rows(T, HV, V).abs()
        ),
        "gated_delta_product": _delta(n, num_householder=n),
        "mamba2": {
            "x": _rows(T, HV, V),
            "dt": _rows(T, HV),
            "A": -_rows(HV).abs(),
            "B": _rows(T, H, K),
            "C": _rows(T, H, K),
            "cu_seqlens": torch.tensor([0, 5, 12]),
        },
    }
