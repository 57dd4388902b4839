"""A byte-level language model: embedding, blocks of (GatedDeltaNet, MLP), the embedding again."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn

from deltaworks.demo.corpus import VOCABULARY
from deltaworks.nn import GatedDeltaNet, GatedDeltaNetCache


@dataclass(frozen=True)
class ModelConfig:
    """Sizes; key and value heads are equally many and equally wide."""

    dim: int = 128
    layers: int = 2
    heads: int = 2
    head_dim: int = 64
    mlp_dim: int = 512

    as_dict = asdict


def start_as_memory(mixer: GatedDeltaNet) -> None:
    """Initial weights with which the layer already is an associative memory, of nothing yet.

    Keys are the queries of one token earlier, what is stored is the token itself, and the output
    is laid back along the direction that it was read from. Random projections get there too, but
    only after more text than this demo reads (compare mimetic initialisation, Trockman 2024).
    """
    for linear in (mixer.q_proj, mixer.v_proj, mixer.z_proj):
        nn.init.orthogonal_(linear.weight)
    with torch.no_grad():
        mixer.k_proj.weight.copy_(mixer.q_proj.weight)
        mixer.o_proj.weight.copy_(mixer.v_proj.weight.mT / 2)
        mixer.q_conv.weight.mul_(2)
        mixer.k_conv.weight.mul_(2)
        mixer.k_conv.weight[..., :-1] = mixer.q_conv.weight[..., 1:]
        mixer.v_conv.weight.div_(4)
        mixer.v_conv.weight[..., -1] += 1
        # Amplitude 1 leaves time constants of 10 to 1,000 tokens; the published start is shorter.
        mixer.A_log.zero_()


class Block(nn.Module):
    """x + GatedDeltaNet(norm(x)), then x + MLP(norm(x)) with a squared ReLU."""

    def __init__(self, config: ModelConfig, operator: Callable | None):
        super().__init__()
        self.mixer_norm = nn.RMSNorm(config.dim, eps=1e-6)
        self.mixer = GatedDeltaNet(
            config.dim,
            config.heads,
            key_dim=config.head_dim,
            value_dim=config.head_dim,
            operator=operator,
        )
        start_as_memory(self.mixer)
        self.mlp_norm = nn.RMSNorm(config.dim, eps=1e-6)
        self.up = nn.Linear(config.dim, config.mlp_dim, bias=False)
        self.down = nn.Linear(config.mlp_dim, config.dim, bias=False)
        nn.init.zeros_(self.down.weight)

    def forward(self, x, cu_seqlens, cache=None):
        x = x + self.mixer(self.mixer_norm(x), cu_seqlens, cache)
        return x + self.down(F.relu(self.up(self.mlp_norm(x))).square())


class ByteModel(nn.Module):
    """Next-byte logits over packed documents."""

    def __init__(self, config: ModelConfig, operator: Callable | None = None):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(VOCABULARY, config.dim)
        self.blocks = nn.ModuleList(Block(config, operator) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, eps=1e-6)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def new_cache(self) -> list[GatedDeltaNetCache]:
        """An empty cache, one entry a block."""
        return [GatedDeltaNetCache() for _ in self.blocks]

    def forward(
        self,
        inputs: torch.Tensor,
        cu_seqlens: torch.Tensor,
        caches: list[GatedDeltaNetCache] | None = None,
    ) -> torch.Tensor:
        """inputs [T] int64, cu_seqlens [N+1]; returns logits [T, 256]; updates the caches."""
        x = self.embedding(inputs)
        for i, block in enumerate(self.blocks):
            x = block(x, cu_seqlens, None if caches is None else caches[i])
        return F.linear(self.norm(x), self.embedding.weight[:256])


def zeroed(operator: Callable) -> Callable:
    """The ablation: `operator`, run and differentiated as ever, with its output set to zero."""

    def run(*args, **kwargs):
        o, final_state = operator(*args, **kwargs)
        return o * 0, final_state

    return run
