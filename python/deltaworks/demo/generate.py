"""Continuing a text with the carried state: the prompt in one call, then one token a step."""

import re
from dataclasses import dataclass

import numpy as np
import torch

from deltaworks.demo.corpus import BEGIN
from deltaworks.demo.model import ByteModel


@dataclass
class Continuation:
    """A continued text.

    Attributes:
        prompt, text: bytes given and bytes added.
        mismatch: largest difference between a decoding step's logits and the logits of one
            parallel forward over the whole text, relative to their largest magnitude.
    """

    prompt: bytes
    text: bytes
    mismatch: float


def find_function(files: list[tuple[str, bytes]], longest: int = 700) -> tuple[str, bytes, bytes]:
    """(file, prompt, rest) of a top-level function: the prompt is the text up to its third line."""
    for name, text in sorted(files, key=lambda file: -len(file[1])):
        for match in re.finditer(rb"^def \w+\(.*\):\n(?:[ ]{4}.*\n|\n){6,20}", text, re.M):
            head = re.match(rb"(?:.*\n){2}", match.group())
            if match.start() >= longest and head is not None:
                first = text.rfind(b"\n", 0, match.start() - longest // 2) + 1
                return name, text[first : match.start() + head.end()], match.group()[head.end() :]
    name, text = files[0]
    return name, text[:longest], text[longest : 2 * longest]


def _draw(logits: torch.Tensor, temperature: float, rng: np.random.Generator) -> int:
    """One byte from logits [256]; temperature 0 is the argmax."""
    if temperature == 0:
        return int(logits.argmax())
    share = torch.softmax(logits.double() / temperature, -1).numpy()
    return int(rng.choice(256, p=share / share.sum()))


@torch.no_grad()
def continue_text(
    model: ByteModel, prompt: bytes, count: int, temperature: float = 0.0, seed: int = 0
) -> Continuation:
    """Adds `count` bytes to a prompt of one byte or more and checks them.

    Raises:
        AssertionError: the decoding steps and the parallel forward differ by more than 1e-3.
    """
    rng = np.random.default_rng(seed)
    caches = model.new_cache()
    inputs = [BEGIN, *prompt]
    rows = torch.tensor(inputs)
    logits = model(rows, torch.tensor([0, len(inputs)], dtype=torch.int32), caches)[-1]
    steps, text, one = [logits], bytearray(), torch.tensor([0, 1], dtype=torch.int32)
    while len(text) < count:
        byte = _draw(steps[-1], temperature, rng)
        text.append(byte)
        steps.append(model(torch.tensor([byte]), one, caches)[0])

    whole = torch.tensor([*inputs, *text])
    parallel = model(whole, torch.tensor([0, len(whole)], dtype=torch.int32))[len(prompt) :]
    stepwise = torch.stack(steps)
    mismatch = ((stepwise - parallel).abs().max() / parallel.abs().max()).item()
    assert mismatch < 1e-3, f"decoding and the parallel forward differ by {mismatch:.1e}"
    return Continuation(prompt, bytes(text), mismatch)
