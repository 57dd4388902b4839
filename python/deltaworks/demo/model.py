"""A byte-level language model: embedding, blocks of (token mixer, MLP), the embedding again."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn

from deltaworks.demo.corpus import VOCABULARY
from deltaworks.demo.layers import LAYERS, Sizes
from deltaworks.nn import LayerCache


@dataclass(frozen=True)
class ModelConfig:
    """The mixers' row in LAYERS, and sizes: key and value heads are as many and as wide."""

    dim: int = 128
    layers: int = 2
    heads: int = 2
    head_dim: int = 64
    mlp_dim: int = 512
    layer: str = "gdn"

    as_dict = asdict


class Block(nn.Module):
    """x + mixer(norm(x)), then x + MLP(norm(x)) with a squared ReLU."""

    def __init__(self, config: ModelConfig, operator: Callable | None):
        super().__init__()
        self.mixer_norm = nn.RMSNorm(config.dim, eps=1e-6)
        sizes = Sizes(config.dim, config.heads, config.head_dim)
        self.mixer = LAYERS[config.layer].build(sizes, operator)
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

    def new_cache(self) -> list[LayerCache]:
        """An empty cache, one entry a block."""
        return [LayerCache() for _ in self.blocks]

    def forward(
        self,
        inputs: torch.Tensor,
        cu_seqlens: torch.Tensor,
        caches: list[LayerCache] | None = None,
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
