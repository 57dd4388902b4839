"""The Gated DeltaNet layer (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024)."""

from deltaworks.nn.delta import ScalarGateLayer


class GatedDeltaNet(ScalarGateLayer):
    """Token mixer over packed rows [T, D] by `deltaworks.ops.gated_delta_net`.

        q, k, v = ShortConv(x Wq), ShortConv(x Wk), ShortConv(x Wv)
        o = gated_delta_net(q, k, v, g = x Wa, beta = x Wb)    (l2 norm, sigmoid and gate inside)
        y = (RMSNorm(o) * weight * silu(x Wz)) Wo

    with the gate -exp(A_log) softplus(x Wa + dt_bias): the conventions of published checkpoints.
    The arguments are those of `DeltaLayer`.
    """

    operator_name = "gated_delta_net"
