"""Small layers of every kind of deltaworks.nn, and sequences to run them on."""

import torch

from deltaworks.demo import torch_backend
from deltaworks.nn import (
    GatedDeltaNet,
    GatedDeltaNet2,
    GatedDeltaProduct,
    KimiDeltaAttention,
    Mamba2,
)

LENGTHS = [5, 0, 1, 2, 17, 3, 0]


def bounds(lengths, dtype=torch.int32):
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


DELTA = dict(dim=24, num_heads=2, num_value_heads=4, key_dim=16, value_dim=8)
SCAN = dict(dim=24, expand=2, head_dim=12, state_dim=16, num_groups=2)
LAYERS = {
    "gdn": (GatedDeltaNet, DELTA | dict(allow_neg_eigval=True)),
    "kda": (KimiDeltaAttention, DELTA),
    "kda bounded": (KimiDeltaAttention, DELTA | dict(gate_lower_bound=-4.0)),
    "gdn2": (GatedDeltaNet2, DELTA),
    "gdp": (GatedDeltaProduct, DELTA | dict(num_householder=3)),
    "mamba2": (Mamba2, SCAN),
    "mamba2 without norm": (Mamba2, SCAN | dict(rmsnorm=False)),
}


def make(kind, backend=torch_backend, **options):
    """A layer of LAYERS on the operator of its name in `backend`; the same weights every time."""
    module, arguments = LAYERS[kind]
    torch.manual_seed(0)
    operator = getattr(backend, module.operator_name)
    return module(**arguments | options, operator=operator)


def relative(got, expected):
    assert expected.abs().max() > 1e-3
    return ((got - expected).abs().max() / expected.abs().max()).item()
