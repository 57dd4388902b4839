"""The demo's pieces on a tiny budget: data, baselines, metric, training, checkpoint, decoding."""

import gzip
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from deltaworks.demo import __main__ as demo
from deltaworks.demo import baselines, checkpoint, corpus, generate, induction, plot
from deltaworks.demo import train as training
from deltaworks.demo.layers import LAYERS
from deltaworks.demo.model import ByteModel, ModelConfig, zeroed
from deltaworks.demo.optim import orthogonalised, schedule
from deltaworks.ops import gated_delta_net

TINY = ModelConfig(dim=32, layers=1, heads=2, head_dim=16, mlp_dim=32)
FUNCTION = b"def add(a, b):\n    # the sum\n" + b"    a = a + b\n" * 8 + b"    return a\n\n"


@pytest.fixture
def library(tmp_path):
    """A folder of source files; returns (root, corpus)."""
    for i in range(40):
        (tmp_path / f"module{i}.py").write_bytes(b"import os\n" * 30 + FUNCTION * 2)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_skipped.py").write_bytes(b"assert False\n")
    (tmp_path / "empty.py").write_bytes(b"")
    return tmp_path, corpus.load_corpus(tmp_path)


def fresh_model(operator=gated_delta_net, layer="gdn"):
    torch.manual_seed(0)
    return ByteModel(replace(TINY, layer=layer), operator)


def curve_of(levels):
    """A recorded loss curve that ends at `levels`[1] bits per byte."""
    return {
        "tokens": [1e6, 2e6],
        "loss": list(levels),
        "validation_tokens": [2e6],
        "validation_bits_per_byte": [levels[1]],
    }


class TestCorpus:
    def test_split_is_disjoint_and_repeatable(self, library):
        root, files = library
        train, held_out = ({name for name, _ in side} for side in (files.train, files.validation))
        assert not train & held_out
        assert train | held_out == {f"module{i}.py" for i in range(40)}
        assert corpus.load_corpus(root) == files

    def test_no_text_is_an_error(self, tmp_path):
        with pytest.raises(RuntimeError, match="no Python source text"):
            corpus.load_corpus(tmp_path)

    def test_packing(self):
        batch = corpus.pack([b"abc", b"z"])
        assert batch.inputs.tolist() == [corpus.BEGIN, 97, 98, corpus.BEGIN]
        assert batch.targets.tolist() == [97, 98, 99, 122]
        assert batch.cu_seqlens.tolist() == [0, 3, 4]
        assert batch.cu_seqlens.dtype == torch.int32

    def test_pieces_fill_the_budget_from_the_files(self):
        text = bytes(range(256))
        sampler = corpus.PieceSampler([("a", text), ("b", b"b" * 9)], 20, np.random.default_rng(0))
        pieces = sampler.draw(5000)
        assert sum(map(len, pieces)) == 5000
        assert max(map(len, pieces)) == 20
        assert all(piece in text or piece in b"b" * 9 for piece in pieces)
        assert set(b"".join(pieces)) == set(text)

    def test_validation_pieces(self):
        files = [("a", b"a" * 25), ("b", b"b" * 10)]
        assert list(map(len, corpus.validation_pieces(files, 10, 999))) == [10, 10, 5, 10]
        assert corpus.validation_pieces(files, 10, 20) == [b"a" * 10, b"a" * 5]

    def test_stream_is_a_function_of_the_seed(self, library):
        config = training.TrainConfig(steps=1, tokens=600, piece=64)
        first, again, other = (
            training.BatchStream(library[1], config, seed).next() for seed in (0, 0, 1)
        )
        assert len(first.inputs) == 600
        assert torch.equal(first.inputs, again.inputs)
        assert not torch.equal(first.inputs, other.inputs)
        assert 0 < (~first.scored).sum() < 600 * config.induction_share


class TestBaselines:
    def test_order_0_by_hand(self):
        # After "aab": p(a) = (2 + 2/256) / 5; then counts a:3 b:1: p(b) = (1 + 2/256) / 6.
        expected = -(math.log2((2 + 2 / 256) / 5) + math.log2((1 + 2 / 256) / 6)) / 2
        assert baselines.order_bits_per_byte(0, [b"aab"], [b"ab"]) == pytest.approx(expected)

    def test_order_2_by_hand(self):
        # Training "aab" and then one new byte "c" in the context of two zero bytes.
        p = 1 / 256
        p = (0 + 2 * p) / (3 + 2)
        p = (0 + 1 * p) / (1 + 1)
        p = (0 + 1 * p) / (1 + 1)
        assert baselines.order_bits_per_byte(2, [b"aab"], [b"c"]) == pytest.approx(-math.log2(p))

    def test_probabilities_sum_to_one(self):
        bits = [
            baselines.order_bits_per_byte(1, [b"abcabcabd"], [bytes([byte])]) for byte in range(256)
        ]
        assert sum(2.0**-b for b in bits) == pytest.approx(1)

    def test_order_2_knows_more(self):
        train, text = [b"abcd" * 200], [b"abcd" * 50]
        assert baselines.order_bits_per_byte(0, train, text) == pytest.approx(2, abs=0.05)
        assert baselines.order_bits_per_byte(2, train, text) < 0.2

    def test_gzip(self):
        pieces = [b"spam " * 100, b"eggs"]
        size = len(gzip.compress(b"".join(pieces), 9, mtime=0))
        assert baselines.gzip_bits_per_byte(pieces) == pytest.approx(8 * size / 504)
        noise = np.random.default_rng(0).bytes(4096)
        assert 8 <= baselines.gzip_bits_per_byte([noise]) < 8.1


class TestInduction:
    def test_documents(self):
        document, scored = induction.draw_document(np.random.default_rng(0))
        string = document[: induction.STRING]
        assert document.endswith(string)
        gap = len(document) - 2 * induction.STRING
        assert induction.GAP[0] <= gap <= induction.GAP[1]
        assert np.flatnonzero(scored).tolist() == list(
            range(len(document) - induction.STRING + induction.CUE, len(document))
        )

    def test_a_perfect_look_up_scores_one_and_a_guess_chance(self):
        test = induction.induction_test(seed=0)
        logits = torch.zeros(len(test.targets), 256)
        for first, last in zip(test.cu_seqlens, test.cu_seqlens[1:], strict=False):
            back = int(last - first) - induction.STRING
            for t in range(int(first) + back, int(last)):
                logits[t, test.targets[t - back]] = 1
        assert induction.accuracy(logits, test) == 1.0
        guess = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0))
        assert induction.accuracy(guess, test) == pytest.approx(1 / 256, abs=5e-3)

    def test_other_seeds_are_other_strings(self):
        first, second = (induction.induction_test(seed, 3) for seed in (0, 1))
        assert torch.equal(first.targets, induction.induction_test(0, 3).targets)
        assert not torch.equal(first.targets[:32], second.targets[:32])


class TestTraining:
    def run(self, library, tmp_path, operator, layer):
        config = training.TrainConfig(steps=12, tokens=1024, piece=128, evaluate_every=4)
        model = fresh_model(operator, layer)
        pieces = corpus.validation_pieces(library[1].validation, 128, 512)
        stream = training.BatchStream(library[1], config, seed=0)
        curve = tmp_path / "run.jsonl"
        training.train(model, stream, config, pieces, curve)
        return model, plot.read_curve(curve)

    @pytest.mark.parametrize("layer", LAYERS)
    def test_loss_falls_and_the_curve_is_written(self, library, tmp_path, layer):
        operator = demo.find_operator(layer, "deltaworks", ablate=False)
        _, records = self.run(library, tmp_path, operator, layer)
        assert [record["step"] for record in records] == list(range(1, 13))
        assert records[-1]["tokens"] == 12 * 1024
        measured = [r["validation_bits_per_byte"] for r in records if r["step"] % 4 == 0]
        assert records[-1]["loss"] < records[0]["loss"] - 1
        assert measured[-1] < measured[0] - 0.3
        assert sum("validation_bits_per_byte" in record for record in records) == 3
        output = tmp_path / "plots" / "curve.png"
        plot.main([str(tmp_path / "run.jsonl"), "-o", str(output)])
        assert output.read_bytes().startswith(b"\x89PNG")

    @pytest.mark.parametrize("layer", LAYERS)
    def test_backends_agree(self, library, layer):
        config = training.TrainConfig(steps=1, tokens=256, piece=64)
        batch = training.BatchStream(library[1], config, seed=0).next()
        losses, gradients = [], []
        for backend in ("deltaworks", "torch"):
            model = fresh_model(demo.find_operator(layer, backend, ablate=False), layer)
            loss = training.loss_of(model, batch)
            loss.backward()
            losses.append(loss.item())
            mixer = model.blocks[0].mixer
            first = mixer.in_proj if layer == "mamba2" else mixer.q_proj
            gradients.append(first.weight.grad)
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5 * gradients[1].abs().max())

    @pytest.mark.parametrize("layer", LAYERS)
    def test_ablation_silences_the_operator_alone(self, library, layer):
        config = training.TrainConfig(steps=1, tokens=256, piece=64)
        batch = training.BatchStream(library[1], config, seed=0).next()
        operator = demo.find_operator(layer, "torch", ablate=False)
        model = fresh_model(zeroed(operator), layer)
        logits = model(batch.inputs, batch.cu_seqlens)
        # A block without its mixer sees one token: equal inputs, equal logits.
        same = batch.inputs == ord(" ")
        assert same.sum() > 1
        assert (logits[same] - logits[same][0]).abs().max() < 1e-6
        full = fresh_model(operator, layer)(batch.inputs, batch.cu_seqlens)
        assert (full[same] - full[same][0]).abs().max() > 1e-2

    @pytest.mark.parametrize("layer", LAYERS)
    def test_checkpoint_gives_identical_logits(self, tmp_path, layer):
        operator = demo.find_operator(layer, "torch", ablate=False)
        model = fresh_model(operator, layer)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        checkpoint.save(model, tmp_path / "model.safetensors")
        again = checkpoint.load(tmp_path / "model.safetensors", operator)
        inputs, cu_seqlens = torch.arange(60), torch.tensor([0, 25, 60])
        assert torch.equal(again(inputs, cu_seqlens), model(inputs, cu_seqlens))
        fresh = fresh_model(operator, layer)
        assert not torch.equal(fresh(inputs, cu_seqlens), model(inputs, cu_seqlens))

    @pytest.mark.parametrize("layer", LAYERS)
    def test_continuation(self, layer):
        model = fresh_model(demo.find_operator(layer, "deltaworks", ablate=False), layer)
        made = generate.continue_text(model, b"import os", 30)
        assert len(made.text) == 30
        assert made.mismatch < 1e-5
        drawn = generate.continue_text(model, b"import os", 30, temperature=1.0, seed=1)
        assert drawn.text != made.text

    def test_continuation_notices_a_lost_state(self):
        def forgetful(*args, initial_state=None, **kwargs):
            return gated_delta_net(*args, **kwargs)

        with pytest.raises(AssertionError, match="differ by"):
            generate.continue_text(fresh_model(forgetful), b"import os", 30)

    def test_find_function(self):
        name, prompt, rest = generate.find_function([("a.py", b"x = 1\n" * 200 + FUNCTION)])
        assert name == "a.py"
        assert prompt.endswith(b"x = 1\ndef add(a, b):\n    # the sum\n")
        assert rest.startswith(b"    a = a + b\n")


class TestLayers:
    @pytest.mark.parametrize("layer", LAYERS)
    def test_a_row_makes_a_layer_around_its_operator(self, layer):
        row, mixer = LAYERS[layer], fresh_model(layer=layer).blocks[0].mixer
        assert type(mixer) is row.module
        assert row.module.operator_name == row.operator
        assert mixer.operator is gated_delta_net

    @pytest.mark.parametrize("layer", LAYERS)
    def test_the_start_has_keys_one_token_after_the_queries(self, layer):
        mixer = fresh_model(layer=layer).blocks[0].mixer
        if layer == "mamba2":
            value, key, query = mixer.in_proj.weight[32:-2].split([32, 32, 32])
            _, key_taps, query_taps = mixer.conv1d.weight.split([32, 32, 32])
            out = mixer.out_proj.weight
        else:
            query, key, value = mixer.q_proj.weight, mixer.k_proj.weight, mixer.v_proj.weight
            query_taps, key_taps = mixer.q_conv.weight, mixer.k_conv.weight
            out = mixer.o_proj.weight
        steps = 2 if layer == "gdp" else 1
        assert torch.equal(key, query.repeat(steps, 1))
        assert torch.equal(value, 2 * out.T.repeat(steps, 1))
        assert torch.equal(key_taps[..., :-1], query_taps.repeat(steps, 1, 1)[..., 1:])
        torch.testing.assert_close(query @ query.T, torch.eye(32))


class TestRecords:
    def test_a_curve_is_thinned_to_means(self):
        steps = [{"tokens": 10 * (i + 1), "loss": float(i)} for i in range(8)]
        steps[5]["validation_bits_per_byte"] = 2.0
        assert plot.thinned(steps, points=2) == {
            "tokens": [40, 80],
            "loss": [1.5, 5.5],
            "validation_tokens": [60],
            "validation_bits_per_byte": [2.0],
        }
        assert plot.thinned(steps[:1])["loss"] == [0.0]

    def test_a_folder_gives_every_layer_that_has_a_curve_there(self, tmp_path):
        curves = {name: curve_of((8.0, 2.0 + i)) for i, name in enumerate(LAYERS)}
        for name in ("gdp", "gdn", "mamba2"):
            record = {"curve": curves[name]} if name != "gdn" else {}
            (tmp_path / f"{LAYERS[name].operator}.json").write_text(json.dumps(record))
        (tmp_path / "else.json").write_text("{}")
        found = plot.find_curves([tmp_path])
        assert found == {"Gated DeltaProduct": curves["gdp"], "Mamba-2": curves["mamba2"]}
        named = tmp_path / "gated_delta_product.json"
        assert plot.find_curves([named]) == {"gated_delta_product": curves["gdp"]}
        with pytest.raises(ValueError, match="else.json holds no loss curve"):
            plot.find_curves([tmp_path / "else.json"])


class TestOptimizer:
    @pytest.mark.parametrize("shape", [(16, 40), (40, 16)])
    def test_singular_values_are_pulled_to_one(self, shape):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        values = torch.linalg.svdvals(orthogonalised(x))
        assert values.min() > 0.5
        assert values.max() < 1.3

    def test_schedule(self):
        factors = [schedule(step, 100) for step in range(100)]
        assert factors[0] == pytest.approx(0.05)
        assert factors[20:40] == [1.0] * 20
        assert factors[99] == pytest.approx(1 / 60)


def run_demo(library, monkeypatch, *arguments):
    monkeypatch.setattr(demo, "load_corpus", lambda: library[1])
    monkeypatch.setattr(demo, "ModelConfig", lambda layer: replace(TINY, layer=layer))
    return demo.main(["--steps", "1", *map(str, arguments)])


def test_command_line_end_to_end(library, tmp_path, monkeypatch):
    numbers, out = tmp_path / "numbers" / "demo.json", tmp_path / "out"
    result = run_demo(library, monkeypatch, "--ablate", "--out", out, "--json", numbers)
    assert json.loads(numbers.read_text()) == result
    assert result["tokens"] == 4096
    assert result["ablate"] is True
    assert (result["layer"], result["operator"]) == ("gdn", "gated_delta_net")
    assert result["induction_accuracy"] < 0.05
    assert result["curve"]["tokens"] == [4096]
    assert (out / "ablated.safetensors").exists()
    assert len(plot.read_curve(out / "ablated.jsonl")) == 1


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_chosen_and_recorded(library, tmp_path, monkeypatch, capsys, layer):
    records, out = tmp_path / "records", tmp_path / "out"
    result = run_demo(library, monkeypatch, "--layer", layer, "--out", out, "--record", records)
    operator = LAYERS[layer].operator
    assert json.loads((records / f"{operator}.json").read_text()) == result
    assert result["model"]["layer"] == layer
    assert (records / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (out / f"{operator}.safetensors").exists()
    assert LAYERS[layer].title in capsys.readouterr().out


@pytest.mark.parametrize(
    "choice, label",
    [
        (("gdn", "deltaworks", False), "gated_delta_net"),
        (("gdn", "deltaworks", True), "ablated"),
        (("gdn", "torch", False), "gated_delta_net_torch"),
        (("mamba2", "deltaworks", True), "mamba2_ablated"),
        (("gdn2", "torch", True), "gated_delta_net_v2_ablated_torch"),
    ],
)
def test_the_names_of_a_run_s_files(choice, label):
    assert demo.label_of(*choice) == label


def test_an_unknown_layer_is_refused(capsys):
    with pytest.raises(SystemExit):
        demo.parse(["--layer", "rnn"])
    assert "invalid choice: 'rnn'" in capsys.readouterr().err
