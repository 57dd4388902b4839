"""What the delta rule's layers share: q, k and v in front of the operator, norm and gate behind it.

q, k, v = ShortConv(x Wq), ShortConv(x Wk), ShortConv(x Wv)         (silu)
o = operator(q, k, v, g, beta, ...)                (l2 norm, sigmoid of beta and gate inside)
y = (RMSNorm(o) * weight * act(gate(x))) Wo
"""

from collections.abc import Callable

import torch
from torch import nn

from deltaworks.nn.cache import Step
from deltaworks.nn.conv import ShortConvolution
from deltaworks.nn.gate import amplitude_log, softplus_bias
from deltaworks.nn.mixer import TokenMixer
from deltaworks.nn.norm import GatedRMSNorm


class DeltaLayer(TokenMixer):
    """Token mixer over packed rows [T, D] by a delta rule; the arguments are those of every layer.

    Args:
        dim: D, width of the input and the output.
        num_heads: heads of q and k.
        num_value_heads: HO, heads of v, the gates and the output, a multiple of num_heads (which is
            the default); value head i reads q and k head i // (num_value_heads // num_heads).
        key_dim, value_dim: width of a head of q and k, of v.
        kernel_size: of the short convolutions.
        norm_eps: added to the mean square in the output's norm.
        allow_neg_eigval: beta in (0, 2) instead of (0, 1).
        operator: called like the layer's operator of `deltaworks.ops`, which is the default.

    Raises:
        ValueError: sizes that do not fit together.
    """

    substeps = 1  # rows of k, v and beta a token
    norm_activation = "silu"

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
        super().__init__(operator)
        heads = num_heads if num_value_heads is None else num_value_heads
        self.require(
            num_heads >= 1 and heads >= 1 and heads % num_heads == 0,
            "num_value_heads must be a positive multiple of num_heads",
            heads,
            num_heads,
        )
        sizes = (dim, key_dim, value_dim)
        self.require(min(sizes) >= 1, "dim, key_dim and value_dim must be at least 1", *sizes)
        self.num_heads, self.num_value_heads = num_heads, heads
        self.key_dim, self.value_dim = key_dim, value_dim
        self.options = {
            "use_qk_l2norm_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True,
            "allow_neg_eigval": allow_neg_eigval,
            "safe_gate": True,
        }

        keys, values = num_heads * key_dim, heads * value_dim
        self.q_proj = nn.Linear(dim, keys, bias=False)
        self.k_proj = nn.Linear(dim, self.substeps * keys, bias=False)
        self.v_proj = nn.Linear(dim, self.substeps * values, bias=False)
        self.q_conv = ShortConvolution(keys, kernel_size)
        self.k_conv = ShortConvolution(self.substeps * keys, kernel_size)
        self.v_conv = ShortConvolution(self.substeps * values, kernel_size)
        self.norm = GatedRMSNorm(value_dim, norm_eps, activation=self.norm_activation)
        self.o_proj = nn.Linear(values, dim, bias=False)

    def mix(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        rows = [
            step.convolve("q_conv", self.q_conv, self.q_proj(x)),
            step.convolve("k_conv", self.k_conv, self.k_proj(x)),
            step.convolve("v_conv", self.v_conv, self.v_proj(x)),
        ]
        o = step.operate(
            self.operator,
            *self.heads(*rows),
            *self.gates(x),
            **self.options,
            a_log=self.A_log,
            dt_bias=self.gate_bias(),
        )
        return self.o_proj(self.norm(o, self.output_gate(x).view_as(o)).flatten(1))

    def heads(self, q, k, v) -> tuple[torch.Tensor, ...]:
        """q, k, v [T, heads * width] as the operator takes them."""
        return (
            q.view(-1, self.num_heads, self.key_dim),
            k.view(-1, self.num_heads, self.key_dim),
            v.view(-1, self.num_value_heads, self.value_dim),
        )

    def gates(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the operator takes between v and cu_seqlens: g, beta (and w)."""
        raise NotImplementedError

    def gate_bias(self) -> torch.Tensor:
        """dt_bias as the operator takes it."""
        return self.dt_bias

    def output_gate(self, x: torch.Tensor) -> torch.Tensor:
        """[T, HO * V], in front of the norm's activation."""
        raise NotImplementedError


class ScalarGateLayer(DeltaLayer):
    """One gate a head, -exp(A_log) softplus(x Wa + dt_bias), and a full projection as output gate.

    Its parameters: a_proj, b_proj (beta), z_proj, A_log and dt_bias [HO].
    """

    def __init__(self, dim: int, num_heads: int, **shared):
        super().__init__(dim, num_heads, **shared)
        heads = self.num_value_heads
        self.z_proj = nn.Linear(dim, heads * self.value_dim, bias=False)
        self.a_proj = nn.Linear(dim, heads, bias=False)
        self.b_proj = nn.Linear(dim, self.substeps * heads, bias=False)
        self.A_log, self.dt_bias = amplitude_log(heads), softplus_bias(heads)

    def gates(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.a_proj(x), self.b_proj(x)

    def output_gate(self, x: torch.Tensor) -> torch.Tensor:
        return self.z_proj(x)
