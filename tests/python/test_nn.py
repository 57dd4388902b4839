"""deltaworks.nn: packing, carried state, decoding, gradients, no leak between documents.

Every test runs on the plain PyTorch recurrence and on the library's own operator.
"""

import pytest
import torch

from deltaworks import nn, ops
from deltaworks.demo import torch_backend
from deltaworks.nn import KimiDeltaAttention, LayerCache, Mamba2
from nn_layers import LAYERS, LENGTHS, bounds, make, relative

STATES = {kind: (4, 12, 16) if "mamba2" in kind else (4, 8, 16) for kind in LAYERS}


@pytest.fixture(params=[torch_backend, ops], ids=["torch", "deltaworks"])
def backend(request):
    return request.param


@pytest.fixture(params=LAYERS)
def kind(request):
    return request.param


@pytest.fixture
def layer(kind, backend):
    return make(kind, backend)


def token_loop(layer):
    """The plain PyTorch form of a layer's operator."""
    return getattr(torch_backend, layer.operator_name)


class TestEveryLayer:
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
    def test_no_rows(self, kind, layer, sequences):
        cache = LayerCache()
        assert layer(torch.randn(0, 24), bounds([0] * sequences), cache).shape == (0, 24)
        assert cache.recurrent.shape == (sequences, *STATES[kind])

    def test_causal(self, layer):
        x = torch.randn(20, 24)
        changed = torch.cat([x[:11], torch.randn(9, 24)])
        y, z = (layer(rows, bounds([20])) for rows in (x, changed))
        assert torch.equal(y[:11], z[:11])
        assert not torch.equal(y[11], z[11])

    def test_pieces_equal_one_call(self, layer):
        documents = [torch.randn(length, 24) for length in LENGTHS]
        cut = [2, 0, 1, 0, 16, 1, 0]
        end, cache = LayerCache(), LayerCache()
        whole = layer(torch.cat(documents), bounds(LENGTHS), end).split(LENGTHS)
        heads = [d[:c] for d, c in zip(documents, cut, strict=True)]
        tails = [d[c:] for d, c in zip(documents, cut, strict=True)]
        a = layer(torch.cat(heads), bounds(cut), cache).split(cut)
        left = [len(tail) for tail in tails]
        b = layer(torch.cat(tails), bounds(left), cache).split(left)
        joined = torch.cat([torch.cat(pair) for pair in zip(a, b, strict=True)])
        assert relative(joined, torch.cat(whole)) < 1e-5
        assert relative(cache.recurrent, end.recurrent) < 1e-5
        assert cache.convolutions.keys() == end.convolutions.keys() != set()
        for name, rows in cache.convolutions.items():
            torch.testing.assert_close(rows, end.convolutions[name])

    def test_decoding_equals_the_parallel_forward(self, kind, layer):
        x = torch.randn(3, 21, 24)
        parallel = layer(x.flatten(0, 1), bounds([21] * 3)).view(3, 21, 24)
        cache = LayerCache()
        steps = [layer(x[:, :9].flatten(0, 1), bounds([9] * 3), cache).view(3, 9, 24)]
        for t in range(9, 21):
            steps.append(layer(x[:, t], bounds([1] * 3), cache)[:, None])
        assert relative(torch.cat(steps, 1), parallel) < 1e-5
        assert cache.recurrent.shape == (3, *STATES[kind])
        assert cache.recurrent.dtype == torch.float32

    def test_a_sequence_may_be_picked_out_of_a_cache(self, layer):
        x, more = torch.randn(3, 6, 24), torch.randn(2, 24)
        cache = LayerCache()
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

    def test_a_failing_call_leaves_the_cache_as_it_was(self, layer):
        cache = LayerCache()
        layer(torch.randn(6, 24), bounds([6]), cache)
        before = cache.select(torch.tensor([0]))

        def fail(*arguments, **options):
            raise RuntimeError("no")

        layer.operator = fail
        with pytest.raises(RuntimeError, match="no"):
            layer(torch.randn(1, 24), bounds([1]), cache)
        assert torch.equal(cache.recurrent, before.recurrent)
        for name, rows in before.convolutions.items():
            assert torch.equal(cache.convolutions[name], rows)

    def test_a_cache_of_other_sequences_is_an_error(self, layer):
        cache = LayerCache()
        layer(torch.randn(6, 24), bounds([6]), cache)
        with pytest.raises(ValueError, match=r"state must be \[2, 3, \d+\], got \[1, 3, \d+\]"):
            layer(torch.randn(2, 24), bounds([1, 1]), cache)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_16_bit(self, layer, dtype):
        x, cu_seqlens = torch.randn(sum(LENGTHS), 24), bounds(LENGTHS)
        layer, x = layer.to(dtype), x.to(dtype)
        cache = LayerCache()
        y = layer(x, cu_seqlens, cache)
        assert y.dtype == dtype
        assert cache.recurrent.dtype == torch.float32
        layer.operator = token_loop(layer)
        expected = layer.float()(x.float(), cu_seqlens)
        assert relative(y.float(), expected) < (5e-2 if dtype == torch.bfloat16 else 1e-2)

    def test_gradients_equal_those_of_the_token_loop(self, layer):
        x, weight = torch.randn(sum(LENGTHS), 24), torch.randn(sum(LENGTHS), 24)
        found = []
        for operator in (layer.operator, token_loop(layer)):
            layer.operator = operator
            layer.zero_grad()
            (layer(x, bounds(LENGTHS)) * weight).sum().backward()
            found.append([p.grad.clone() for p in layer.parameters()])
        for got, expected in zip(*found, strict=True):
            assert relative(got, expected) < 1e-4

    def test_parameters_have_the_published_names(self, kind, layer):
        shared = {"q_proj", "k_proj", "v_proj", "b_proj", "q_conv", "k_conv", "v_conv", "o_proj"}
        names = {name for name, _ in layer.named_parameters()}
        if isinstance(layer, Mamba2):
            expected = {"in_proj.weight", "conv1d.weight", "conv1d.bias", "out_proj.weight", "D"}
            expected |= {"norm.weight"} if kind == "mamba2" else set()
        elif isinstance(layer, KimiDeltaAttention):
            low_rank = {"f_proj.0.weight", "f_proj.1.weight", "g_proj.0.weight", "g_proj.1.weight"}
            expected = low_rank | {"g_proj.1.bias", "norm.weight"}
            shared |= {"w_proj"} if kind == "gdn2" else set()
        else:
            shared |= {"a_proj", "z_proj"}
            expected = {"norm.weight"}
        if not isinstance(layer, Mamba2):
            expected |= {f"{name}.weight" for name in shared}
        assert names == expected | {"A_log", "dt_bias"}

    def test_a_state_dict_gives_the_same_layer(self, kind, layer):
        torch.manual_seed(1)
        module, arguments = LAYERS[kind]
        other = module(**arguments, operator=layer.operator)
        x, cu_seqlens = torch.randn(9, 24), bounds([4, 5])
        assert not torch.equal(other(x, cu_seqlens), layer(x, cu_seqlens))
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other(x, cu_seqlens), layer(x, cu_seqlens))

    def test_the_default_operator(self, kind):
        module, arguments = LAYERS[kind]
        assert module(**arguments).operator is getattr(ops, module.operator_name)


def test_the_older_name_of_the_cache():
    assert nn.GatedDeltaNetCache is LayerCache
