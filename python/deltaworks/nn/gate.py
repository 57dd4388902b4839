"""How the decays of fresh layers start.

Amplitudes A = exp(A_log) are uniform in [1, 16] and time steps dt log-uniform in [1e-3, 0.1], as in
the published models: with the gate -A softplus(x + dt_bias) a decay's logarithm starts around
-A dt.
"""

import math

import torch
from torch import nn


def amplitude_log(heads: int) -> nn.Parameter:
    """A_log [heads]."""
    return nn.Parameter(torch.empty(heads).uniform_(1, 16).log())


def time_steps(count: int) -> torch.Tensor:
    """dt [count], log-uniform in [1e-3, 0.1]."""
    return torch.empty(count).uniform_(math.log(1e-3), math.log(0.1)).exp()


def softplus_bias(count: int) -> nn.Parameter:
    """dt_bias [count] with softplus(dt_bias) = dt."""
    dt = time_steps(count)
    return nn.Parameter(dt + torch.log(-torch.expm1(-dt)))


def sigmoid_bias(count: int, lower_bound: float = -5.0) -> nn.Parameter:
    """dt_bias [count] with -lower_bound sigmoid(dt_bias) = dt, at most half of the bound."""
    return nn.Parameter(torch.logit((time_steps(count) / -lower_bound).clamp(max=0.5)))
