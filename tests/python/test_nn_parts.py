"""The parts of deltaworks.nn's layers: short convolution, gated norm."""

import pytest
import torch
import torch.nn.functional as F

from deltaworks.nn import GatedRMSNorm, ShortConvolution
from nn_layers import LENGTHS, bounds


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

    def test_bias(self):
        conv = ShortConvolution(3, activation=None, bias=True)
        x, cu_seqlens = torch.randn(sum(LENGTHS), 3), bounds(LENGTHS)
        y = conv(x, cu_seqlens)[0]
        bias, conv.bias = conv.bias, None
        torch.testing.assert_close(y, conv(x, cu_seqlens)[0] + bias)

    @pytest.mark.parametrize("bias", [False, True])
    def test_rows_past_the_end_are_zero(self, bias):
        x = torch.randn(9, 3, requires_grad=True)
        y, _ = ShortConvolution(3, bias=bias)(x, bounds([2, 4]))
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
        norm = GatedRMSNorm(8, eps=1e-5, activation="sigmoid")
        torch.testing.assert_close(norm(o, gate), F.rms_norm(o, (8,), eps=1e-5) * gate.sigmoid())

    def test_gate_first_and_groups(self):
        norm = GatedRMSNorm(8, eps=1e-5, gate_first=True, groups=2)
        torch.nn.init.normal_(norm.weight)
        o, gate = torch.randn(5, 8), torch.randn(5, 8)
        halves = (o * F.silu(gate)).split(4, -1)
        normed = [x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() for x in halves]
        torch.testing.assert_close(norm(o, gate), torch.cat(normed, -1) * norm.weight)

    def test_says_what_is_wrong(self):
        with pytest.raises(ValueError, match="activation must be 'silu' or 'sigmoid', got 'tanh'"):
            GatedRMSNorm(8, activation="tanh")
        with pytest.raises(ValueError, match="groups must divide dim = 8, got 3"):
            GatedRMSNorm(8, groups=3)

    def test_16_bit_is_rounded_once(self):
        norm = GatedRMSNorm(8)
        o, gate = torch.randn(5, 8).bfloat16(), torch.randn(5, 8).bfloat16()
        assert torch.equal(norm(o, gate), norm(o.float(), gate.float()).bfloat16())
