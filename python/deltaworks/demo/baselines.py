"""What a language model has to beat: byte counts of order 0 and 2, and gzip.

The order-k model is adaptive: it starts from counts of the training text and goes on counting
through the validation text. Its estimate is a Witten-Bell mixture down the orders,
    p_k(b | context) = (count(b) + distinct * p_(k-1)(b)) / (total + distinct),   p_(-1) = 1/256,
total and distinct being the bytes and the different bytes seen in that context.
"""

import gzip
import math

import numpy as np


class ByteCounts:
    """Counts of every byte after every context of `order` (0, 1 or 2) bytes."""

    def __init__(self, order: int):
        self.order = order
        self.counts = np.zeros((256**order, 256), np.int32)
        self.total = np.zeros(256**order, np.int64)
        self.distinct = np.zeros(256**order, np.int64)

    def count_text(self, text: bytes) -> None:
        """Adds all of a text at once; bytes in front of a text count as zeros."""
        data = np.frombuffer(bytes(self.order) + text, np.uint8).astype(np.int64)
        context = np.zeros(len(text), np.int64)
        for i in range(self.order):
            context = context * 256 + data[i : i + len(text)]
        cells = np.bincount(context * 256 + data[self.order :], minlength=self.counts.size)
        self.counts += cells.reshape(self.counts.shape).astype(np.int32)
        self.total = self.counts.sum(1, dtype=np.int64)
        self.distinct = np.count_nonzero(self.counts, axis=1).astype(np.int64)

    def add(self, context: int, byte: int) -> None:
        """Adds one byte seen in a context (its bytes as a base-256 number)."""
        self.distinct[context] += self.counts[context, byte] == 0
        self.counts[context, byte] += 1
        self.total[context] += 1


def order_bits_per_byte(order: int, train: list[bytes], validation: list[bytes]) -> float:
    """Bits a byte of the adaptive order-`order` model on the validation pieces."""
    models = [ByteCounts(k) for k in range(order + 1)]
    for model in models:
        model.count_text(b"".join(train))
    bits, size = 0.0, 0
    for text in validation:
        history = 0
        for byte in text:
            p = 1 / 256
            for model in models:
                context = history % 256**model.order
                distinct = int(model.distinct[context])
                if distinct:
                    seen = int(model.counts[context, byte])
                    p = (seen + distinct * p) / (int(model.total[context]) + distinct)
                model.add(context, byte)
            bits -= math.log2(p)
            history = (history * 256 + byte) % 65536
        size += len(text)
    return bits / size


def gzip_bits_per_byte(validation: list[bytes]) -> float:
    """`gzip -9` on all validation pieces as one file: its window reaches across pieces."""
    text = b"".join(validation)
    return 8 * len(gzip.compress(text, 9, mtime=0)) / len(text)
