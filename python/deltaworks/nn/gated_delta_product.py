"""The Gated DeltaProduct layer (Siems et al., "DeltaProduct", 2025): n delta steps a token."""

import torch

from deltaworks.nn.delta import ScalarGateLayer


class GatedDeltaProduct(ScalarGateLayer):
    """Token mixer over packed rows [T, D] by `deltaworks.ops.gated_delta_product`.

    A Gated DeltaNet whose k, v and beta projections (and convolutions) are n times as wide: each
    token decays the state once and then takes n delta steps. Sub-step s of a token has the columns
    s * heads * width up to (s + 1) * heads * width of a projection, which is viewed as
    [T, n, heads, width] and read in place.

    Args:
        num_householder: n.
        allow_neg_eigval: beta in (0, 2), the default: with it a step can be a reflection, and n of
            them any rotation of an n-dimensional subspace.
        shared: the other arguments of `DeltaLayer`.

    Raises:
        ValueError: sizes that do not fit together.
    """

    operator_name = "gated_delta_product"

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_householder: int = 2,
        allow_neg_eigval: bool = True,
        **shared,
    ):
        if num_householder < 1:
            raise ValueError(
                f"GatedDeltaProduct: num_householder must be at least 1, got {num_householder}"
            )
        self.substeps = num_householder  # first of all: it is the width of the projections
        super().__init__(dim, num_heads, allow_neg_eigval=allow_neg_eigval, **shared)
        self.options["num_householder"] = num_householder

    def heads(self, q, k, v) -> tuple[torch.Tensor, ...]:
        return (
            q.view(-1, self.num_heads, self.key_dim),
            k.view(-1, self.substeps, self.num_heads, self.key_dim),
            v.view(-1, self.substeps, self.num_value_heads, self.value_dim),
        )

    def gates(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.a_proj(x), self.b_proj(x).view(-1, self.substeps, self.num_value_heads)
