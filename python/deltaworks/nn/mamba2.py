"""The Mamba-2 layer (Dao, Gu, "Transformers are SSMs", 2024)."""

from collections.abc import Callable

import torch
from torch import nn

from deltaworks.nn.cache import Step
from deltaworks.nn.conv import ShortConvolution
from deltaworks.nn.gate import amplitude_log, softplus_bias
from deltaworks.nn.mixer import TokenMixer
from deltaworks.nn.norm import GatedRMSNorm


class Mamba2(TokenMixer):
    """Token mixer over packed rows [T, D] by `deltaworks.ops.mamba2`.

        z, xBC, dt = split(u in_proj);   x, B, C = split(silu(conv1d(xBC)))
        y = mamba2(x, dt, A = -exp(A_log), B, C, D, dt_bias)          (softplus of dt inside)
        out = (RMSNorm(y * silu(z)) * weight) out_proj

    Names, shapes and the order z, x, B, C, dt of in_proj's rows are those of published checkpoints:
    in_proj.weight, conv1d.weight [channels, 1, kernel_size], conv1d.bias, A_log, D and dt_bias [H],
    norm.weight [H * P], out_proj.weight. x, B, C and dt are read in place.

    Args:
        dim: D, width of the input and the output.
        expand: H * P = expand * dim.
        head_dim: P.
        state_dim: N_state, width of a row of B and C.
        num_groups: G, heads of B and C, a divisor of H; head i reads group i // (H // G). The norm
            is over each of the G parts by itself.
        kernel_size: of the convolution.
        norm_eps: added to the mean square in the norm.
        rmsnorm: False: no norm; z goes to the operator, which returns y * silu(z).
        operator: called like `deltaworks.ops.mamba2`, which is the default.

    Raises:
        ValueError: sizes that do not fit together.
    """

    operator_name = "mamba2"

    def __init__(
        self,
        dim: int,
        *,
        expand: int = 2,
        head_dim: int = 64,
        state_dim: int = 128,
        num_groups: int = 1,
        kernel_size: int = 4,
        norm_eps: float = 1e-5,
        rmsnorm: bool = True,
        operator: Callable | None = None,
    ):
        super().__init__(operator)
        sizes = (dim, expand, head_dim, state_dim)
        self.require(
            min(sizes) >= 1, "dim, expand, head_dim and state_dim must be at least 1", *sizes
        )
        inner = expand * dim
        self.require(inner % head_dim == 0, "head_dim must divide expand * dim", head_dim, inner)
        heads = inner // head_dim
        self.require(
            num_groups >= 1 and heads % num_groups == 0,
            "num_groups must be a divisor of the number of heads",
            num_groups,
            heads,
        )
        self.num_heads, self.head_dim = heads, head_dim
        self.num_groups, self.state_dim = num_groups, state_dim
        self.conv_parts = (inner, num_groups * state_dim, num_groups * state_dim)  # x, B, C
        self.parts = (inner, sum(self.conv_parts), heads)  # z, xBC, dt
        self.in_proj = nn.Linear(dim, sum(self.parts), bias=False)
        self.conv1d = ShortConvolution(self.parts[1], kernel_size, bias=True)
        self.A_log, self.dt_bias = amplitude_log(heads), softplus_bias(heads)
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = None
        if rmsnorm:
            self.norm = GatedRMSNorm(inner, norm_eps, gate_first=True, groups=num_groups)
        self.out_proj = nn.Linear(inner, dim, bias=False)

    def mix(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        z, rows, dt = self.in_proj(x).split(self.parts, -1)
        rows = step.convolve("conv1d", self.conv1d, rows)
        values, B, C = rows.split(self.conv_parts, -1)
        per_head, per_group = (self.num_heads, self.head_dim), (self.num_groups, self.state_dim)
        options = {} if self.norm is not None else {"z": z.unflatten(-1, per_head)}
        y = step.operate(
            self.operator,
            values.unflatten(-1, per_head),
            dt,
            -self.A_log.to(torch.promote_types(self.A_log.dtype, torch.float32)).exp(),
            B.unflatten(-1, per_group),
            C.unflatten(-1, per_group),
            D=self.D,
            dt_bias=self.dt_bias,
            **options,
        ).flatten(1)
        return self.out_proj(y if self.norm is None else self.norm(y, z))
