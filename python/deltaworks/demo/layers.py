"""The token mixers that the demo's model can be built of: one row each.

Their initial weights make each an associative memory that holds nothing yet: keys are the queries
of one token earlier, what is stored is the token itself, and the output is laid back along the
direction that it was read from. Random projections get there too, but only after more text than
this demo reads (compare mimetic initialisation, Trockman 2024).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from deltaworks.nn import (
    GatedDeltaNet,
    GatedDeltaNet2,
    GatedDeltaProduct,
    KimiDeltaAttention,
    Mamba2,
)


class Sizes(NamedTuple):
    """Of a mixer: key and value heads are equally many and equally wide."""

    dim: int
    heads: int
    head_dim: int


def _read_one_token_earlier(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Weights [channels, 1, kernel_size] of the convolutions, of their usual start."""
    query.mul_(2)
    key.mul_(2)
    key[..., :-1] = query.repeat(len(key) // len(query), 1, 1)[..., 1:]
    value.div_(4)
    value[..., -1] += 1


@torch.no_grad()
def _start_delta_layer(mixer: nn.Module) -> None:
    """Every sub-step of a token starts with the same keys and values."""
    nn.init.orthogonal_(mixer.q_proj.weight)
    value = nn.init.orthogonal_(torch.empty(mixer.o_proj.in_features, mixer.o_proj.out_features))
    mixer.k_proj.weight.copy_(mixer.q_proj.weight.repeat(mixer.substeps, 1))
    mixer.v_proj.weight.copy_(value.repeat(mixer.substeps, 1))
    mixer.o_proj.weight.copy_(value.mT / 2)
    _read_one_token_earlier(mixer.q_conv.weight, mixer.k_conv.weight, mixer.v_conv.weight)
    # Amplitude 1 leaves time constants of 10 to 1,000 tokens; the published start is shorter.
    mixer.A_log.zero_()


def _start_scalar_gate(mixer: nn.Module) -> None:
    _start_delta_layer(mixer)
    nn.init.orthogonal_(mixer.z_proj.weight)


def _start_channel_gate(mixer: nn.Module) -> None:
    _start_delta_layer(mixer)
    for matrix in mixer.g_proj:
        nn.init.orthogonal_(matrix.weight)


@torch.no_grad()
def _start_mamba2(mixer: Mamba2) -> None:
    """C takes the place of the queries, B of the keys, x of the values."""
    gate, rows, _ = mixer.in_proj.weight.split(mixer.parts)
    value, key, query = rows.split(mixer.conv_parts)
    for matrix in (gate, value, query):
        nn.init.orthogonal_(matrix)
    key.copy_(query)
    mixer.out_proj.weight.copy_(value.mT / 2)
    value, key, query = mixer.conv1d.weight.split(mixer.conv_parts)
    _read_one_token_earlier(query, key, value)
    mixer.conv1d.bias.zero_()
    mixer.A_log.zero_()


def _delta_sizes(sizes: Sizes) -> dict:
    width = {"key_dim": sizes.head_dim, "value_dim": sizes.head_dim}
    return {"dim": sizes.dim, "num_heads": sizes.heads} | width


def _product_sizes(sizes: Sizes) -> dict:
    """beta in (0, 1): where (0, 2) starts, at 1, a token erases what keys like its own hold."""
    return _delta_sizes(sizes) | {"allow_neg_eigval": False}


def _mamba2_sizes(sizes: Sizes) -> dict:
    """States as large as the delta rule's, and B and C of every head's own."""
    return {
        "dim": sizes.dim,
        "expand": sizes.heads * sizes.head_dim // sizes.dim,
        "head_dim": sizes.head_dim,
        "state_dim": sizes.head_dim,
        "num_groups": sizes.heads,
    }


class Layer(NamedTuple):
    """One row: the operator's name in `deltaworks.ops`, how the layer is called and made."""

    operator: str
    title: str
    module: type[nn.Module]
    arguments: Callable[[Sizes], dict]
    start: Callable[[nn.Module], None]

    def build(self, sizes: Sizes, operator: Callable | None) -> nn.Module:
        """A fresh mixer with its initial weights."""
        mixer = self.module(**self.arguments(sizes), operator=operator)
        self.start(mixer)
        return mixer


_SCALAR, _CHANNEL = (_delta_sizes, _start_scalar_gate), (_delta_sizes, _start_channel_gate)
_PRODUCT = (_product_sizes, _start_scalar_gate)
LAYERS = {
    "gdn": Layer("gated_delta_net", "Gated DeltaNet", GatedDeltaNet, *_SCALAR),
    "kda": Layer("kimi_delta_attention", "Kimi Delta Attention", KimiDeltaAttention, *_CHANNEL),
    "gdn2": Layer("gated_delta_net_v2", "Gated DeltaNet-2", GatedDeltaNet2, *_CHANNEL),
    "gdp": Layer("gated_delta_product", "Gated DeltaProduct", GatedDeltaProduct, *_PRODUCT),
    "mamba2": Layer("mamba2", "Mamba-2", Mamba2, _mamba2_sizes, _start_mamba2),
}
