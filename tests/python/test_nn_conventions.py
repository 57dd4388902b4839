"""deltaworks.nn: what each layer hands to its operator, how the layers relate, where they start."""

import pytest
import torch
import torch.nn.functional as F

from deltaworks import ops
from deltaworks.demo import torch_backend
from nn_layers import LENGTHS, bounds, make, relative


@pytest.fixture(params=[torch_backend, ops], ids=["torch", "deltaworks"])
def backend(request):
    return request.param


def spied(layer):
    """What a layer hands to its operator: (arguments, options), filled by a call."""
    seen, operator = [], layer.operator

    def record(*arguments, **options):
        seen[:] = [arguments, options]
        return operator(*arguments, **options)

    layer.operator = record
    return seen


class TestWhatTheOperatorGets:
    @pytest.mark.parametrize("allow", [False, True])
    @pytest.mark.parametrize("kind", ["gdn", "kda", "gdn2", "gdp"])
    def test_options(self, kind, allow):
        layer = make(kind, allow_neg_eigval=allow)
        seen = spied(layer)
        layer(torch.randn(5, 24), bounds([5]))
        options = seen[1]
        assert options["allow_neg_eigval"] is allow
        assert options["use_beta_sigmoid_in_kernel"] and options["safe_gate"]
        assert options["use_qk_l2norm_in_kernel"]
        assert options["a_log"] is layer.A_log
        assert options["dt_bias"].data_ptr() == layer.dt_bias.data_ptr()
        assert options.get("num_householder") == (3 if kind == "gdp" else None)
        assert options.get("gate") == ("softplus" if kind in ("kda", "gdn2") else None)
        assert "beta_guard" not in options and "gate_lower_bound" not in options

    def test_negative_eigenvalues_are_the_product_s_default_alone(self):
        defaults = {kind: make(kind).options["allow_neg_eigval"] for kind in ("kda", "gdn2", "gdp")}
        assert defaults == {"kda": False, "gdn2": False, "gdp": True}

    @pytest.mark.parametrize("kind", ["kda", "gdn2"])
    def test_the_bounded_gate(self, kind):
        options = make(kind, gate_lower_bound=-3.0).options
        assert options["gate_lower_bound"] == -3.0
        assert "gate" not in options
        assert make("gdn2", beta_guard=True).options["beta_guard"] is True

    @pytest.mark.parametrize(
        "kind, shapes",
        [
            ("gdn", [(9, 2, 16), (9, 2, 16), (9, 4, 8), (9, 4), (9, 4)]),
            ("kda", [(9, 2, 16), (9, 2, 16), (9, 4, 8), (9, 4, 16), (9, 4)]),
            ("gdn2", [(9, 2, 16), (9, 2, 16), (9, 4, 8), (9, 4, 16), (9, 4, 16), (9, 4, 8)]),
            ("gdp", [(9, 2, 16), (9, 3, 2, 16), (9, 3, 4, 8), (9, 4), (9, 3, 4)]),
            ("mamba2", [(9, 4, 12), (9, 4), (4,), (9, 2, 16), (9, 2, 16)]),
        ],
    )
    def test_shapes(self, kind, shapes):
        layer = make(kind)
        seen = spied(layer)
        cu_seqlens = bounds([4, 5])
        layer(torch.randn(9, 24), cu_seqlens)
        *tensors, last = seen[0]
        assert [tuple(tensor.shape) for tensor in tensors] == shapes
        assert last is cu_seqlens
        if kind in ("kda", "gdn2"):
            assert seen[1]["dt_bias"].shape == (4, 16)

    def test_mamba2_s_output_gate(self):
        x, cu_seqlens = torch.randn(9, 24), bounds([4, 5])
        layer = make("mamba2 without norm")
        seen = spied(layer)
        layer(x, cu_seqlens)
        expected = (x @ layer.in_proj.weight[:48].T).view(9, 4, 12)
        torch.testing.assert_close(seen[1]["z"], expected)
        layer = make("mamba2")
        seen = spied(layer)
        layer(x, cu_seqlens)
        assert "z" not in seen[1]

    def test_views_not_copies(self):
        made = {}
        for kind, names in (
            ("gdp", ("k_conv", "v_conv", "b_proj")),
            ("mamba2", ("conv1d", "in_proj")),
        ):
            layer = make(kind)
            seen = spied(layer)
            for name in names:
                layer.get_submodule(name).register_forward_hook(
                    lambda _, __, y, name=name: made.update({name: y[0] if type(y) is tuple else y})
                )
            layer(torch.randn(9, 24), bounds([4, 5]))
            made[kind] = seen[0]
        _, k, v, _, beta, _ = made["gdp"]
        for tensor, name in ((k, "k_conv"), (v, "v_conv"), (beta, "b_proj")):
            assert tensor.data_ptr() == made[name].data_ptr()
        x, dt, _, B, C, _ = made["mamba2"]
        for tensor, name in ((x, "conv1d"), (B, "conv1d"), (C, "conv1d"), (dt, "in_proj")):
            whole = made[name].untyped_storage().data_ptr()
            assert tensor.untyped_storage().data_ptr() == whole


class TestOneLayerIsAnother:
    """Identities between the layers, which pin the meaning of every projection."""

    def outputs(self, *layers):
        x, cu_seqlens = torch.randn(sum(LENGTHS), 24), bounds(LENGTHS)
        return [layer(x, cu_seqlens) for layer in layers]

    def test_one_step_a_token_is_gated_delta_net(self, backend):
        product, plain = make("gdp", backend, num_householder=1), make("gdn", backend)
        torch.manual_seed(1)
        for parameter in plain.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        product.load_state_dict(plain.state_dict())
        got, expected = self.outputs(product, plain)
        assert torch.equal(got, expected)

    def test_later_steps_of_no_strength_change_nothing(self, backend):
        product, plain = make("gdp", backend), make("gdn", backend)
        weights = plain.state_dict()
        x = torch.rand(sum(LENGTHS), 24)
        for name in ("k_proj", "k_conv", "v_proj", "v_conv"):
            own, taken = product.state_dict()[f"{name}.weight"], weights[f"{name}.weight"]
            weights[f"{name}.weight"] = torch.cat([taken, own[len(taken) :]])
        # Inputs are positive, so the logits of the later steps are far below zero: beta is 0.
        weights["b_proj.weight"] = torch.cat([weights["b_proj.weight"], torch.full((8, 24), -20.0)])
        product.load_state_dict(weights)
        got, expected = (layer(x, bounds(LENGTHS)) for layer in (product, plain))
        assert relative(got, expected) < 1e-5

    def test_equal_strengths_in_all_channels_are_kimi_delta_attention(self, backend):
        second, first = make("gdn2", backend), make("kda", backend)
        weights = first.state_dict()
        weights["w_proj.weight"] = weights["b_proj.weight"].repeat_interleave(8, 0)
        weights["b_proj.weight"] = weights["b_proj.weight"].repeat_interleave(16, 0)
        second.load_state_dict(weights)
        got, expected = self.outputs(second, first)
        assert relative(got, expected) < 1e-5

    def test_equal_gates_in_all_channels_are_gated_delta_net(self, backend):
        kimi, plain = (
            make("kda", backend, norm_eps=1e-6),
            make("gdn", backend, allow_neg_eigval=False),
        )
        weights = {n: w for n, w in plain.state_dict().items() if not n.startswith(("a_", "z_"))}
        weights["dt_bias"] = weights["dt_bias"].repeat_interleave(16)
        weights["f_proj.0.weight"] = torch.eye(8, 24)
        weights["f_proj.1.weight"] = torch.zeros(64, 8)
        weights["g_proj.0.weight"] = torch.eye(8, 24)
        weights["g_proj.1.weight"] = torch.zeros(32, 8)
        weights["g_proj.1.bias"] = torch.zeros(32)
        kimi.load_state_dict(weights)
        torch.nn.init.zeros_(plain.a_proj.weight)
        plain.output_gate = lambda x: torch.ones(len(x), 32)
        got, expected = self.outputs(kimi, plain)
        assert relative(got / 0.5, expected / F.silu(torch.ones(()))) < 1e-5

    def test_mamba2_is_its_formula(self, backend):
        layer = make("mamba2", backend)
        torch.manual_seed(1)
        torch.nn.init.normal_(layer.D)
        torch.nn.init.normal_(layer.norm.weight)
        weights, u = layer.state_dict(), torch.randn(7, 24)
        z, x, B, C, dt = (u @ weights["in_proj.weight"].T).split([48, 48, 32, 32, 4], 1)
        rows = torch.cat([torch.zeros(3, 112), torch.cat([x, B, C], 1)])
        taps = weights["conv1d.weight"][:, 0].T
        mixed = [(rows[t : t + 4] * taps).sum(0) + weights["conv1d.bias"] for t in range(7)]
        x, B, C = F.silu(torch.stack(mixed)).split([48, 32, 32], 1)
        dt = F.softplus(dt + weights["dt_bias"])
        decay = torch.exp(-dt * weights["A_log"].exp())
        y = torch.zeros(7, 48)
        for h in range(4):
            group, channels = slice(16 * (h // 2), 16 * (h // 2) + 16), slice(12 * h, 12 * h + 12)
            state = torch.zeros(12, 16)
            for t in range(7):
                written = dt[t, h] * x[t, channels]
                state = decay[t, h] * state + written[:, None] * B[t, group]
                y[t, channels] = state @ C[t, group] + weights["D"][h] * x[t, channels]
        y = (y * F.silu(z)).view(7, 2, 24)
        y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        expected = (y.flatten(1) * weights["norm.weight"]) @ weights["out_proj.weight"].T
        assert relative(layer(u, bounds([7])), expected) < 1e-5


class TestInitialGate:
    @pytest.mark.parametrize("kind", ["gdn", "kda", "gdn2", "gdp"])
    def test_amplitudes_and_time_steps(self, kind):
        wide = dict(num_heads=64, num_value_heads=64, key_dim=4, value_dim=4)
        self.check(make(kind, **wide))

    def test_mamba2(self):
        layer = make("mamba2", expand=32)
        self.check(layer)
        assert torch.equal(layer.D, torch.ones(64))

    def check(self, layer):
        amplitude, dt = layer.A_log.exp(), F.softplus(layer.dt_bias)
        assert 1 <= amplitude.min() < 3
        assert 13 < amplitude.max() <= 16
        assert 0.99e-3 <= dt.min() < 3e-3
        assert 0.04 < dt.max() <= 0.101

    def test_bounded(self):
        layer = make("kda bounded")
        decay = 4 * torch.sigmoid(layer.A_log.exp()[:, None] * layer.dt_bias.view(4, 16))
        assert 0.99e-3 <= decay.min() < 3e-3
        assert 0.04 < decay.max() <= 0.101
        assert make("kda", gate_lower_bound=-0.01).dt_bias.isfinite().all()


@pytest.mark.parametrize(
    "kind, options, text",
    [
        ("gdn", dict(num_value_heads=3), "GatedDeltaNet: .*multiple of num_heads, got 3 and 2"),
        ("gdp", dict(num_heads=0), "GatedDeltaProduct: .*multiple of num_heads, got 4 and 0"),
        ("kda", dict(key_dim=0), "key_dim and value_dim must be at least 1, got 24 and 0 and 8"),
        ("kda", dict(gate_lower_bound=0.0), "KimiDeltaAttention: .* must be < 0, got 0.0"),
        ("gdn2", dict(gate_lower_bound=1.0), "GatedDeltaNet2: gate_lower_bound must be < 0"),
        ("gdp", dict(num_householder=0), "num_householder must be at least 1, got 0"),
        ("mamba2", dict(head_dim=7), "Mamba2: head_dim must divide expand .*, got 7 and 48"),
        ("mamba2", dict(num_groups=3), "Mamba2: num_groups must be a divisor .*, got 3 and 4"),
        ("mamba2", dict(state_dim=0), "state_dim must be at least 1, got 24 and 2 and 12 and 0"),
        ("gdn", dict(kernel_size=1), "kernel_size must be at least 2, got 1"),
    ],
)
def test_says_what_is_wrong(kind, options, text):
    with pytest.raises(ValueError, match=text):
        make(kind, **options)


def test_an_unknown_argument_is_an_error():
    with pytest.raises(TypeError, match="num_householder"):
        make("gdn", num_householder=2)
