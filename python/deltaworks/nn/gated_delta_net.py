"""The Gated DeltaNet layer (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024).

    q, k, v = ShortConv(x Wq), ShortConv(x Wk), ShortConv(x Wv)
    o = gated_delta_net(q, k, v, g = x Wa, beta = x Wb)        (l2 norm, sigmoid and gate inside)
    y = (RMSNorm(o) * weight * silu(x Wz)) Wo

with the gate -exp(A_log) softplus(x Wa + dt_bias): the conventions of published checkpoints.
"""

import math
from collections.abc import Callable

import torch
from torch import nn

from deltaworks.nn.cache import GatedDeltaNetCache
from deltaworks.nn.conv import ShortConvolution
from deltaworks.nn.norm import GatedRMSNorm


def _default_operator() -> Callable:
    from deltaworks.ops import gated_delta_net

    return gated_delta_net


def _initial_gate(heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A_log and dt_bias [heads]: amplitudes 1..16, time steps log-uniform in [1e-3, 0.1]."""
    a_log = torch.empty(heads).uniform_(1, 16).log()
    dt = torch.empty(heads).uniform_(math.log(1e-3), math.log(0.1)).exp()
    return a_log, dt + torch.log(-torch.expm1(-dt))


class GatedDeltaNet(nn.Module):
    """Token mixer over packed rows [T, D].

    Args:
        dim: D, width of the input and the output.
        num_heads: heads of q and k.
        num_value_heads: heads of v, the gates and the output, a multiple of num_heads (which is
            the default); value head i reads q and k head i // (num_value_heads // num_heads).
        key_dim, value_dim: width of a head of q and k, of v.
        kernel_size: of the short convolutions.
        allow_neg_eigval: beta in (0, 2) instead of (0, 1).
        operator: called like `deltaworks.ops.gated_delta_net`, which is the default.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_value_heads: int | None = None,
        key_dim: int = 64,
        value_dim: int = 64,
        kernel_size: int = 4,
        norm_eps: float = 1e-6,
        allow_neg_eigval: bool = False,
        operator: Callable | None = None,
    ):
        super().__init__()
        value_heads = num_heads if num_value_heads is None else num_value_heads
        if num_heads < 1 or value_heads < 1 or value_heads % num_heads:
            raise ValueError(
                f"GatedDeltaNet: num_value_heads must be a positive multiple of num_heads, "
                f"got {value_heads} and {num_heads}"
            )
        self.num_heads, self.num_value_heads = num_heads, value_heads
        self.key_dim, self.value_dim = key_dim, value_dim
        self.allow_neg_eigval = allow_neg_eigval
        self.operator = _default_operator() if operator is None else operator

        keys, values = num_heads * key_dim, value_heads * value_dim
        self.q_proj = nn.Linear(dim, keys, bias=False)
        self.k_proj = nn.Linear(dim, keys, bias=False)
        self.v_proj = nn.Linear(dim, values, bias=False)
        self.z_proj = nn.Linear(dim, values, bias=False)
        self.a_proj = nn.Linear(dim, value_heads, bias=False)
        self.b_proj = nn.Linear(dim, value_heads, bias=False)
        self.q_conv = ShortConvolution(keys, kernel_size)
        self.k_conv = ShortConvolution(keys, kernel_size)
        self.v_conv = ShortConvolution(values, kernel_size)
        a_log, dt_bias = _initial_gate(value_heads)
        self.A_log, self.dt_bias = nn.Parameter(a_log), nn.Parameter(dt_bias)
        self.norm = GatedRMSNorm(value_dim, norm_eps)
        self.o_proj = nn.Linear(values, dim, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        cu_seqlens: torch.Tensor,
        cache: GatedDeltaNetCache | None = None,
    ) -> torch.Tensor:
        """Mixes the rows of each sequence causally.

        Args:
            x: [T, D], fp32, bf16 or fp16, the parameters' dtype.
            cu_seqlens: [N+1] int32 or int64.
            cache: the N sequences are continued from it, and it is updated to their ends: one row
                a sequence decodes a token, and a text in pieces gives what one call gives.

        Returns:
            y [T, D].
        """
        carried = GatedDeltaNetCache() if cache is None else cache
        q, q_conv = self.q_conv(self.q_proj(x), cu_seqlens, carried.q_conv)
        k, k_conv = self.k_conv(self.k_proj(x), cu_seqlens, carried.k_conv)
        v, v_conv = self.v_conv(self.v_proj(x), cu_seqlens, carried.v_conv)
        o, recurrent = self.operator(
            q.view(-1, self.num_heads, self.key_dim),
            k.view(-1, self.num_heads, self.key_dim),
            v.view(-1, self.num_value_heads, self.value_dim),
            self.a_proj(x),
            self.b_proj(x),
            cu_seqlens,
            initial_state=carried.recurrent,
            output_final_state=cache is not None,
            use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            allow_neg_eigval=self.allow_neg_eigval,
            safe_gate=True,
            a_log=self.A_log,
            dt_bias=self.dt_bias,
        )
        if cache is not None:
            cache.q_conv, cache.k_conv, cache.v_conv = q_conv, k_conv, v_conv
            cache.recurrent = recurrent
        z = self.z_proj(x).view_as(o)
        return self.o_proj(self.norm(o, z).flatten(1))
