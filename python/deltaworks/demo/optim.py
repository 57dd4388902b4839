"""Muon for the matrices, AdamW for everything else, and their common schedule.

Muon (Jordan 2024): momentum, then the update's singular values are pulled to about 1 by a quintic
Newton-Schulz iteration, so that every direction of a matrix learns at the same pace.
"""

import torch
from torch import nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalised(x: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """x [m, n] with its singular values moved into about [0.7, 1.2]."""
    a, b, c = _COEFFICIENTS
    tall = x.shape[0] > x.shape[1]
    y = x.mT if tall else x
    y = y / (y.norm() + 1e-7)
    for _ in range(iterations):
        gram = y @ y.mT
        y = a * y + torch.addmm(gram, gram, gram, beta=b, alpha=c) @ y
    return y.mT if tall else y


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; weight decay is decoupled."""

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        """One update of every parameter [m, n] that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                velocity = self.state[p].setdefault("velocity", torch.zeros_like(p))
                velocity.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalised(p.grad.lerp(velocity, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def make_optimizers(model: nn.Module, muon_lr: float, adam_lr: float):
    """Muon on the blocks' projections, AdamW on embedding, gates, norms, convolutions."""
    matrices, others = [], []
    for name, p in model.named_parameters():
        inner = name.startswith("blocks.") and p.ndim == 2 and min(p.shape) >= 16
        (matrices if inner else others).append(p)
    adam = torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
    return [Muon(matrices, lr=muon_lr, weight_decay=0.1), adam]


def schedule(step: int, steps: int, warmup: int = 20, decay: float = 0.6) -> float:
    """Factor on the learning rates: warm-up, constant, then linearly to 0 over `decay` of all."""
    return min(1.0, (step + 1) / warmup, (steps - step) / (steps * decay))
