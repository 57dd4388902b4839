"""The text: this machine's own Python standard library, and its packing into training batches.

A document is a piece of one file. Documents of different lengths lie one behind the other in a
batch of fixed size, and `cu_seqlens` keeps them apart: nothing is padded. Each document is read
with a beginning mark in front: inputs = [BEGIN, b0, ..., b(n-2)], targets = [b0, ..., b(n-1)].
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

BEGIN = 256
VOCABULARY = 257
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


@dataclass
class Corpus:
    """Files (relative name, bytes) of both sides of the split."""

    train: list[tuple[str, bytes]]
    validation: list[tuple[str, bytes]]


@dataclass
class Batch:
    """Packed documents.

    Attributes:
        inputs, targets: [T] int64, bytes or BEGIN.
        scored: [T] bool, the targets that count in the loss.
        cu_seqlens: [N+1] int32.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    scored: torch.Tensor
    cu_seqlens: torch.Tensor


def _held_out(name: str) -> bool:
    """One file in ten, decided by its name alone: the same on every machine that has the file."""
    return hashlib.sha256(name.encode()).digest()[0] % 10 == 0


def load_corpus(root: Path | None = None) -> Corpus:
    """Reads every *.py under root (default: the standard library), tests and packages aside."""
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    corpus = Corpus([], [])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if _SKIPPED.intersection(path.relative_to(root).parts):
            continue
        text = path.read_bytes()
        if text:
            (corpus.validation if _held_out(name) else corpus.train).append((name, text))
    if not corpus.train or not corpus.validation:
        raise RuntimeError(f"demo: no Python source text to train on under {root}")
    return corpus


def pack(documents: list[bytes], scored: list[np.ndarray] | None = None) -> Batch:
    """Lays documents (none empty) one behind the other; scored [len] bool each, default all."""
    lengths = [len(document) for document in documents]
    bounds = np.cumsum([0, *lengths])
    targets = np.frombuffer(b"".join(documents), np.uint8).astype(np.int64)
    inputs = np.roll(targets, 1)
    inputs[bounds[:-1]] = BEGIN
    mask = np.ones(len(targets), bool) if scored is None else np.concatenate(scored)
    return Batch(
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        torch.from_numpy(mask),
        torch.from_numpy(bounds.astype(np.int32)),
    )


class PieceSampler:
    """Draws pieces of training files: every byte of the text is equally likely to be read."""

    def __init__(self, files: list[tuple[str, bytes]], piece: int, rng: np.random.Generator):
        self.files = [text for _, text in files]
        self.piece = piece
        self.rng = rng
        sizes = np.array([len(text) for text in self.files], np.float64)
        self.share = np.cumsum(sizes / sizes.sum())

    def draw(self, budget: int) -> list[bytes]:
        """Pieces of `budget` bytes in total, each at most `piece` long."""
        pieces, left = [], budget
        while left > 0:
            text = self.files[
                min(np.searchsorted(self.share, self.rng.random()), len(self.files) - 1)
            ]
            start = int(self.rng.integers(1 - self.piece // 2, len(text)))
            document = text[max(start, 0) : max(start, 0) + min(self.piece, left)]
            pieces.append(document)
            left -= len(document)
        return pieces


def validation_pieces(files: list[tuple[str, bytes]], piece: int, budget: int) -> list[bytes]:
    """`budget` bytes (or all) of the files in pieces, spread evenly over the whole text."""
    pieces = [
        text[start : start + piece] for _, text in files for start in range(0, len(text), piece)
    ]
    wanted = min(len(pieces), max(1, budget // piece))
    return [pieces[i * len(pieces) // wanted] for i in range(wanted)]
