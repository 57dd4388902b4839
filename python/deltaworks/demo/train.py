"""Training and evaluation of the byte model.

The loss is the mean over the targets that count: every byte of the Python text, and of the
induction documents only the repetitions (the rest of them is random and cannot be learned).
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from deltaworks.demo.corpus import Batch, Corpus, PieceSampler, pack
from deltaworks.demo.induction import accuracy, draw_documents
from deltaworks.demo.model import ByteModel
from deltaworks.demo.optim import make_optimizers, schedule


@dataclass(frozen=True)
class TrainConfig:
    """Sizes of the run, in bytes where not said otherwise.

    Attributes:
        steps: number of updates.
        tokens: of a batch.
        piece: longest document cut from a file.
        induction_share: of a batch that is induction documents.
        muon_lr, adam_lr: peak learning rates.
        evaluate_every: steps between evaluations, on `quick` validation pieces.
    """

    steps: int
    tokens: int = 4096
    piece: int = 1024
    induction_share: float = 0.25
    muon_lr: float = 0.02
    adam_lr: float = 0.003
    evaluate_every: int = 50
    quick: int = 16

    as_dict = asdict


class BatchStream:
    """Batches of text pieces and fresh induction documents, a function of the seed alone."""

    def __init__(self, corpus: Corpus, config: TrainConfig, seed: int):
        self.rng = np.random.default_rng(seed)
        self.pieces = PieceSampler(corpus.train, config.piece, self.rng)
        self.tokens, self.share = config.tokens, config.induction_share

    def next(self) -> Batch:
        """Exactly `tokens` bytes."""
        documents, scored = draw_documents(self.rng, int(self.tokens * self.share))
        pieces = self.pieces.draw(self.tokens - sum(map(len, documents)))
        return pack(documents + pieces, scored + [np.ones(len(piece), bool) for piece in pieces])


@torch.no_grad()
def bits_per_byte(model: ByteModel, pieces: list[bytes], together: int = 8) -> float:
    """Mean -log2 p of the bytes of the pieces, each read from its own beginning."""
    nats = 0.0
    for i in range(0, len(pieces), together):
        batch = pack(pieces[i : i + together])
        logits = model(batch.inputs, batch.cu_seqlens)
        nats += F.cross_entropy(logits, batch.targets, reduction="sum").item()
    return nats / math.log(2) / sum(map(len, pieces))


@torch.no_grad()
def induction_accuracy(model: ByteModel, test: Batch) -> float:
    """Share of the repeated bytes of the test documents that the model predicts."""
    return accuracy(model(test.inputs, test.cu_seqlens), test)


def loss_of(model: ByteModel, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy, in nats, over the scored targets."""
    logits = model(batch.inputs, batch.cu_seqlens)
    return F.cross_entropy(logits[batch.scored], batch.targets[batch.scored])


def train(
    model: ByteModel,
    stream: BatchStream,
    config: TrainConfig,
    validation: list[bytes],
    curve: Path,
    on_step: Callable[[dict], None] = lambda record: None,
) -> float:
    """Trains in place, writes one JSON line a step to `curve`; returns the seconds taken.

    A record has step, tokens (so far), loss (bits a scored byte), seconds, and on evaluation steps
    validation_bits_per_byte. on_step gets each record as it is written.
    """
    optimizers = make_optimizers(model, config.muon_lr, config.adam_lr)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    began = time.perf_counter()
    with curve.open("w") as lines:
        for step in range(config.steps):
            loss = loss_of(model, stream.next())
            loss.backward()
            factor = schedule(step, config.steps)
            for optimizer, peak in zip(optimizers, peaks, strict=True):
                optimizer.param_groups[0]["lr"] = peak * factor
                optimizer.step()
                optimizer.zero_grad()
            done = step + 1
            record = {
                "step": done,
                "tokens": done * config.tokens,
                "loss": loss.item() / math.log(2),
                "seconds": time.perf_counter() - began,
            }
            if done % config.evaluate_every == 0 or done == config.steps:
                quick = validation[:: max(1, len(validation) // config.quick)]
                record["validation_bits_per_byte"] = bits_per_byte(model, quick)
            lines.write(json.dumps(record) + "\n")
            lines.flush()
            on_step(record)
    return time.perf_counter() - began
