"""Induction: a random string, other random bytes, and the string again.

    document = string | gap | string          every byte uniform in 0..255

Only the repetition can be predicted, and only by looking it up in what was read before: after
CUE bytes, which say where in the string we are, a model with a working memory knows the rest.
Chance is 1 / 256.
"""

import numpy as np
import torch

from deltaworks.demo.corpus import Batch, pack

STRING, GAP, CUE = 32, (8, 64), 4


def draw_document(rng: np.random.Generator) -> tuple[bytes, np.ndarray]:
    """One document and its mask [len]: True on the bytes of the repetition after the cue."""
    string = rng.integers(0, 256, STRING, dtype=np.uint8).tobytes()
    gap = rng.integers(0, 256, int(rng.integers(*GAP, endpoint=True)), dtype=np.uint8).tobytes()
    scored = np.zeros(2 * STRING + len(gap), bool)
    scored[STRING + len(gap) + CUE :] = True
    return string + gap + string, scored


def draw_documents(rng: np.random.Generator, budget: int) -> tuple[list[bytes], list[np.ndarray]]:
    """Documents of at most `budget` bytes in total."""
    documents, masks = [], []
    while True:
        document, scored = draw_document(rng)
        budget -= len(document)
        if budget < 0:
            return documents, masks
        documents.append(document)
        masks.append(scored)


def induction_test(seed: int, count: int = 200) -> Batch:
    """`count` test documents, packed; their random numbers are never those of the training."""
    drawn = [draw_document(np.random.default_rng([seed, 0x7E57, i])) for i in range(count)]
    return pack([document for document, _ in drawn], [scored for _, scored in drawn])


def accuracy(logits: torch.Tensor, batch: Batch) -> float:
    """Share of the scored targets that are the argmax of logits [T, vocabulary]."""
    hits = logits.argmax(-1) == batch.targets
    return hits[batch.scored].double().mean().item()
