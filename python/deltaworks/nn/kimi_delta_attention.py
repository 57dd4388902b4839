"""The layers whose gate has a channel: Kimi Delta Attention ("Kimi Linear", 2025)."""

import torch
from torch import nn

from deltaworks.nn.delta import DeltaLayer
from deltaworks.nn.gate import amplitude_log, sigmoid_bias, softplus_bias


def low_rank(dim: int, rank: int, out: int, bias: bool = False) -> nn.Sequential:
    """dim -> rank -> out, without a nonlinearity between; a bias at the end if asked."""
    return nn.Sequential(nn.Linear(dim, rank, bias=False), nn.Linear(rank, out, bias=bias))


class KimiDeltaAttention(DeltaLayer):
    """Token mixer over packed rows [T, D] by `deltaworks.ops.kimi_delta_attention`.

        q, k, v = ShortConv(x Wq), ShortConv(x Wk), ShortConv(x Wv)
        o = kimi_delta_attention(q, k, v, g = f(x), beta = x Wb)   (l2 norm, sigmoid, gate inside)
        y = (RMSNorm(o) * weight * sigmoid(g(x))) Wo

    f and g are projections of rank value_dim: f dim -> value_dim -> HO * key_dim, g dim ->
    value_dim -> HO * value_dim with a bias. A_log is [HO] and dt_bias [HO * key_dim]; the decay's
    logarithm is, per channel,

        -exp(A_log) softplus(f(x) + dt_bias)                    without gate_lower_bound
        gate_lower_bound sigmoid(exp(A_log) (f(x) + dt_bias))   with it; A_log then starts at 0

    Args:
        gate_lower_bound: < 0; None: the unbounded gate.
        norm_eps: added to the mean square in the output's norm.
        shared: the other arguments of `DeltaLayer`.

    Raises:
        ValueError: sizes that do not fit together, a gate_lower_bound that is not below 0.
    """

    operator_name = "kimi_delta_attention"
    norm_activation = "sigmoid"

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        gate_lower_bound: float | None = None,
        norm_eps: float = 1e-5,
        **shared,
    ):
        super().__init__(dim, num_heads, norm_eps=norm_eps, **shared)
        heads, channels = self.num_value_heads, self.num_value_heads * self.key_dim
        self.f_proj = low_rank(dim, self.value_dim, channels)
        self.b_proj = nn.Linear(dim, self.beta_width(), bias=False)
        self.g_proj = low_rank(dim, self.value_dim, heads * self.value_dim, bias=True)
        self.A_log = amplitude_log(heads)
        if gate_lower_bound is None:
            self.dt_bias = softplus_bias(channels)
            self.options["gate"] = "softplus"
        else:
            self.require(gate_lower_bound < 0, "gate_lower_bound must be < 0", gate_lower_bound)
            nn.init.zeros_(self.A_log)
            self.dt_bias = sigmoid_bias(channels, gate_lower_bound)
            self.options["gate_lower_bound"] = gate_lower_bound

    def beta_width(self) -> int:
        """Columns of b_proj."""
        return self.num_value_heads

    def per_channel(self, x: torch.Tensor) -> torch.Tensor:
        """[..., HO * K] as [..., HO, K]."""
        return x.unflatten(-1, (self.num_value_heads, self.key_dim))

    def gates(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.per_channel(self.f_proj(x)), self.b_proj(x)

    def gate_bias(self) -> torch.Tensor:
        return self.per_channel(self.dt_bias)

    def output_gate(self, x: torch.Tensor) -> torch.Tensor:
        return self.g_proj(x)
