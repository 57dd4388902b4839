"""deltaworks.nn: packing, carried state, decoding, gradients, no leak between documents.

Every layer test runs on the plain PyTorch recurrence and on the library's own operator.
"""

import pytest
import torch
import torch.nn.functional as F

from deltaworks.demo.torch_backend import gated_delta_net as torch_operator
from deltaworks.nn import GatedDeltaNet, GatedDeltaNetCache, GatedRMSNorm, ShortConvolution

LENGTHS = [5, 0, 1, 2, 17, 3, 0]


def bounds(lengths, dtype=torch.int32):
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


@pytest.fixture(params=["torch", "deltaworks"])
def operator(request):
    if request.param == "torch":
        return torch_operator
    from deltaworks.ops import gated_delta_net

    return gated_delta_net


@pytest.fixture
def layer(operator):
    torch.manual_seed(0)
    return GatedDeltaNet(
        24, 2, num_value_heads=4, key_dim=16, value_dim=8, operator=operator, allow_neg_eigval=True
    )


def relative(got, expected):
    assert expected.abs().max() > 1e-3
    return ((got - expected).abs().max() / expected.abs().max()).item()


class TestShortConvolution:
    def test_equals_the_sum_that_defines_it(self):
        conv = ShortConvolution(3, activation=None)
        x = torch.randn(sum(LENGTHS), 3)
        y, state = conv(x, bounds(LENGTHS))
        first = 0
        for n, length in enumerate(LENGTHS):
            document = torch.cat([torch.zeros(3, 3), x[first : first + length]])
            for t in range(length):
                expected = (document[t : t + 4] * conv.weight[:, 0].T).sum(0)
                torch.testing.assert_close(y[first + t], expected)
            assert torch.equal(state[n], document[-3:])
            first += length

    @pytest.mark.parametrize("kernel_size", [2, 4])
    @pytest.mark.parametrize("cut", [[0] * 7, [1, 0, 1, 0, 2, 3, 0], [4, 0, 0, 2, 16, 1, 0]])
    def test_pieces_equal_one_call(self, kernel_size, cut):
        conv = ShortConvolution(3, kernel_size)
        documents = [torch.randn(length, 3) for length in LENGTHS]
        whole, end = conv(torch.cat(documents), bounds(LENGTHS, torch.int64))
        heads = [d[:c] for d, c in zip(documents, cut, strict=True)]
        tails = [d[c:] for d, c in zip(documents, cut, strict=True)]
        a, state = conv(torch.cat(heads), bounds(cut))
        b, state = conv(torch.cat(tails), bounds([len(t) for t in tails]), state)
        a, b = a.split(cut), b.split([len(t) for t in tails])
        joined = torch.cat([torch.cat(pair) for pair in zip(a, b, strict=True)])
        torch.testing.assert_close(joined, whole, rtol=1e-6, atol=1e-6)
        assert torch.equal(state, end)

    def test_rows_past_the_end_are_zero(self):
        x = torch.randn(9, 3, requires_grad=True)
        y, _ = ShortConvolution(3)(x, bounds([2, 4]))
        assert y[:6].abs().min() > 0
        assert y[6:].abs().max() == 0
        y.square().sum().backward()
        assert x.grad[:6].abs().min() > 0
        assert x.grad[6:].abs().max() == 0

    @pytest.mark.parametrize("sequences", [0, 1, 2])
    def test_no_rows(self, sequences):
        state = torch.randn(sequences, 3, 3)
        y, end = ShortConvolution(3)(torch.randn(0, 3), bounds([0] * sequences), state)
        assert y.shape == (0, 3)
        assert torch.equal(end, state)

    def test_says_what_is_wrong(self):
        with pytest.raises(ValueError, match="kernel_size must be at least 2, got 1"):
            ShortConvolution(3, 1)
        with pytest.raises(ValueError, match="activation must be 'silu' or None, got 'relu'"):
            ShortConvolution(3, activation="relu")
        with pytest.raises(ValueError, match=r"state must be \[2, 3, 3\], got \[1, 3, 3\]"):
            ShortConvolution(3)(torch.randn(2, 3), bounds([1, 1]), torch.zeros(1, 3, 3))


class TestGatedRMSNorm:
    def test_formula(self):
        norm = GatedRMSNorm(8, eps=1e-5)
        torch.nn.init.normal_(norm.weight)
        o, gate = torch.randn(5, 2, 8), torch.randn(5, 2, 8)
        mean_square = o.square().mean(-1, keepdim=True)
        expected = o / (mean_square + 1e-5).sqrt() * norm.weight * F.silu(gate)
        torch.testing.assert_close(norm(o, gate), expected)

    def test_16_bit_is_rounded_once(self):
        norm = GatedRMSNorm(8)
        o, gate = torch.randn(5, 8).bfloat16(), torch.randn(5, 8).bfloat16()
        assert torch.equal(norm(o, gate), norm(o.float(), gate.float()).bfloat16())


class TestGatedDeltaNet:
    def test_packed_equals_separate_documents(self, layer):
        documents = [torch.randn(length, 24) for length in LENGTHS]
        packed = layer(torch.cat(documents), bounds(LENGTHS)).split(LENGTHS)
        for document, y in zip(documents, packed, strict=True):
            if len(document):
                assert relative(y, layer(document, bounds([len(document)]))) < 1e-5

    def test_no_leak_between_documents(self, layer):
        x = torch.randn(sum(LENGTHS), 24)
        cu_seqlens = bounds(LENGTHS)
        y = layer(x, cu_seqlens)
        for n, length in enumerate(LENGTHS):
            if not length:
                continue
            own = slice(int(cu_seqlens[n]), int(cu_seqlens[n + 1]))
            changed = x.clone()
            changed[own] = torch.randn(length, 24)
            other = torch.ones(len(x), dtype=torch.bool)
            other[own] = False
            z = layer(changed, cu_seqlens)
            assert torch.equal(z[other], y[other])
            assert not torch.equal(z[own], y[own])

    @pytest.mark.parametrize("sequences", [0, 2])
    def test_no_rows(self, layer, sequences):
        cache = GatedDeltaNetCache()
        assert layer(torch.randn(0, 24), bounds([0] * sequences), cache).shape == (0, 24)
        assert cache.recurrent.shape == (sequences, 4, 8, 16)

    def test_causal(self, layer):
        x = torch.randn(20, 24)
        changed = torch.cat([x[:11], torch.randn(9, 24)])
        y, z = (layer(rows, bounds([20])) for rows in (x, changed))
        assert torch.equal(y[:11], z[:11])
        assert not torch.equal(y[11], z[11])

    def test_pieces_equal_one_call(self, layer):
        documents = [torch.randn(length, 24) for length in LENGTHS]
        cut = [2, 0, 1, 0, 16, 1, 0]
        end, cache = GatedDeltaNetCache(), GatedDeltaNetCache()
        whole = layer(torch.cat(documents), bounds(LENGTHS), end).split(LENGTHS)
        heads = [d[:c] for d, c in zip(documents, cut, strict=True)]
        tails = [d[c:] for d, c in zip(documents, cut, strict=True)]
        a = layer(torch.cat(heads), bounds(cut), cache).split(cut)
        left = [len(tail) for tail in tails]
        b = layer(torch.cat(tails), bounds(left), cache).split(left)
        joined = torch.cat([torch.cat(pair) for pair in zip(a, b, strict=True)])
        assert relative(joined, torch.cat(whole)) < 1e-5
        assert relative(cache.recurrent, end.recurrent) < 1e-5
        torch.testing.assert_close(cache.v_conv, end.v_conv)

    def test_decoding_equals_the_parallel_forward(self, layer):
        x = torch.randn(3, 21, 24)
        parallel = layer(x.flatten(0, 1), bounds([21] * 3)).view(3, 21, 24)
        cache = GatedDeltaNetCache()
        steps = [layer(x[:, :9].flatten(0, 1), bounds([9] * 3), cache).view(3, 9, 24)]
        for t in range(9, 21):
            steps.append(layer(x[:, t], bounds([1] * 3), cache)[:, None])
        assert relative(torch.cat(steps, 1), parallel) < 1e-5
        assert cache.recurrent.shape == (3, 4, 8, 16)
        assert cache.recurrent.dtype == torch.float32

    def test_a_sequence_may_be_picked_out_of_a_cache(self, layer):
        x, more = torch.randn(3, 6, 24), torch.randn(2, 24)
        cache = GatedDeltaNetCache()
        layer(x.flatten(0, 1), bounds([6] * 3), cache)
        y = layer(more, bounds([1, 1]), cache.select(torch.tensor([2, 0])))
        texts = torch.cat([x[2], more[:1], x[0], more[1:]])
        assert relative(y, layer(texts, bounds([7, 7]))[[6, 13]]) < 1e-5

    def test_gradients_reach_every_parameter(self, layer):
        x = torch.randn(sum(LENGTHS), 24, requires_grad=True)
        (layer(x, bounds(LENGTHS)) * torch.randn(len(x), 24)).sum().backward()
        for name, tensor in [*layer.named_parameters(), ("x", x)]:
            assert tensor.grad.isfinite().all(), name
            assert tensor.grad.abs().amax() > 1e-6, name

    def test_gradients_equal_those_of_the_token_loop(self, layer):
        x, weight = torch.randn(sum(LENGTHS), 24), torch.randn(sum(LENGTHS), 24)
        found = []
        for operator in (layer.operator, torch_operator):
            layer.operator = operator
            layer.zero_grad()
            (layer(x, bounds(LENGTHS)) * weight).sum().backward()
            found.append([p.grad.clone() for p in layer.parameters()])
        for got, expected in zip(*found, strict=True):
            assert relative(got, expected) < 1e-4

    def test_initial_gate(self):
        layer = GatedDeltaNet(8, 64, key_dim=4, value_dim=4, operator=torch_operator)
        amplitude, dt = layer.A_log.exp(), F.softplus(layer.dt_bias)
        assert 1 <= amplitude.min() < 3
        assert 13 < amplitude.max() <= 16
        assert 0.99e-3 <= dt.min() < 3e-3
        assert 0.04 < dt.max() <= 0.101

    def test_says_what_is_wrong(self):
        with pytest.raises(ValueError, match="multiple of num_heads, got 3 and 2"):
            GatedDeltaNet(8, 2, num_value_heads=3, operator=torch_operator)


@pytest.mark.parametrize("allow", [False, True])
def test_the_layer_hands_its_options_to_the_operator(allow):
    seen = {}

    def record(*arguments, **options):
        seen.update(options)
        return torch_operator(*arguments, **options)

    layer = GatedDeltaNet(8, 2, key_dim=4, value_dim=4, operator=record, allow_neg_eigval=allow)
    layer(torch.randn(5, 8), torch.tensor([0, 5]))
    assert seen["allow_neg_eigval"] is allow
    assert seen["use_beta_sigmoid_in_kernel"] and seen["safe_gate"]
    assert seen["use_qk_l2norm_in_kernel"]
    assert seen["a_log"] is layer.A_log and seen["dt_bias"] is layer.dt_bias
