"""A deterministic greedy cover of all pairs of values of several axes, under constraints."""

from __future__ import annotations

import itertools
import random


def cover(axes, valid, seed=0, tries=20):
    """Rows (dicts axis -> value) in which every pair of values of two axes that a valid row can
    hold occurs together at least once.

    `axes` maps names to sequences of values. `valid(partial)` judges a partial row and must be
    monotone: once false, it stays false whatever is added.
    """
    rng = random.Random(seed)
    names = list(axes)
    uncovered = [
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x, y in itertools.product(axes[a], axes[b])
        if valid({a: x, b: y})
    ]
    rng.shuffle(uncovered)
    open_pairs = dict.fromkeys(uncovered)
    rows = []
    for pair in uncovered:
        if pair not in open_pairs:
            continue
        for _ in range(tries):
            row = complete(dict(pair), axes, valid, open_pairs, rng)
            if row is not None:
                break
        else:
            del open_pairs[pair]  # no valid row holds it
            continue
        for held in itertools.combinations(((name, row[name]) for name in names), 2):
            open_pairs.pop(held, None)
        rows.append(row)
    return rows


def complete(row, axes, valid, open_pairs, rng):
    """`row` with every axis filled, each by the value that closes most open pairs; or None."""
    order = {name: i for i, name in enumerate(axes)}
    missing = [name for name in axes if name not in row]
    rng.shuffle(missing)
    for name in missing:
        values = list(axes[name])
        rng.shuffle(values)
        best, best_gain = None, -1
        for value in values:
            if not valid({**row, name: value}):
                continue
            gain = 0
            for other, theirs in row.items():
                held = ((other, theirs), (name, value))
                gain += (held if order[other] < order[name] else held[::-1]) in open_pairs
            if gain > best_gain:
                best, best_gain = value, gain
        if best_gain < 0:
            return None
        row[name] = best
    return row
