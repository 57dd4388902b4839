"""The operators in plain PyTorch: what `deltaworks bench cpu` compares with.

All of them are one recurrence over rows (a token has `sub_steps` of them), on a state S [K, V]:

    S = D S;  u = w - e^T S;  S = S + k u^T;  o = scale S^T q  after the last row of a token

`loop` runs it row by row, `chunked` in chunks of 64 rows as matrix products (SPEC section 1 of the
chunk form): both in fp32, differentiable, over one sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

CHUNK = 64  # rows
_BLOCK = 16  # rows of a chunk whose pairwise decays a channel are formed one by one


class Rows(NamedTuple):
    """The recurrence's rows in fp32; R = T * sub_steps."""

    q: torch.Tensor  # [T, H, K], scaled
    k: torch.Tensor  # [R, H, K]
    erase: torch.Tensor | None  # [R, H, K]; None: nothing is erased
    write: torch.Tensor  # [R, H, V]
    log_decay: torch.Tensor  # [R, H, 1] or [R, H, K]
    sub_steps: int


def loop(rows: Rows) -> torch.Tensor:
    """o [T, H, V], a row at a time."""
    q, n = rows.q, rows.sub_steps
    state = q.new_zeros(q.shape[1], q.shape[2], rows.write.shape[2])
    # unbind: the gradient of an index would be a tensor of all tokens, for every token.
    queries = q.unsqueeze(2).unbind()
    keys = rows.k.unsqueeze(3).unbind()
    erased = None if rows.erase is None else rows.erase.unsqueeze(2).unbind()
    writes = rows.write.unsqueeze(2).unbind()
    decays = rows.log_decay.exp().unsqueeze(3).unbind()
    outputs = []
    for token, query in enumerate(queries):
        for row in range(token * n, token * n + n):
            state = decays[row] * state
            update = writes[row] if erased is None else writes[row] - erased[row] @ state
            state = torch.baddbmm(state, keys[row], update)
        outputs.append(query @ state)
    return torch.cat(outputs, dim=1).transpose(0, 1)


def chunked(rows: Rows) -> torch.Tensor:
    """o [T, H, V], a chunk at a time."""
    n = rows.sub_steps
    tokens = max(1, CHUNK // n)  # of a chunk
    q = _in_chunks(rows.q, tokens)
    k, write, log_decay = (_in_chunks(x, tokens * n) for x in (rows.k, rows.write, rows.log_decay))
    total = log_decay.cumsum(-2)  # [chunks, H, C, 1 or K]
    row = torch.arange(tokens * n)
    query_total, query_row = total[..., n - 1 :: n, :], row[n - 1 :: n]
    last = total[..., -1:, :]
    decayed_q = q * query_total.exp()
    decayed_k = (k * (last - total).exp()).transpose(-1, -2)
    if rows.erase is None:
        scores = _scalar_scores(q, k, query_total, total, query_row[:, None] >= row)
        update, erased = write, None
    else:
        erase = _in_chunks(rows.erase, tokens * n)
        if log_decay.shape[-1] == 1:
            scores = _scalar_scores(q, k, query_total, total, query_row[:, None] >= row)
            system = _scalar_scores(erase, k, total, total, row[:, None] > row)
        else:
            scores, system = _channel_scores(q, erase, k, total)
            system = system.tril(-1)
        right = torch.cat([write, erase * total.exp()], dim=-1)
        # The diagonal of the system is not read: it is one.
        solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        update, erased = solved.split([write.shape[-1], k.shape[-1]], dim=-1)
    return _over_chunks(decayed_q, decayed_k, scores, update, erased, last)[: rows.q.shape[0]]


def _over_chunks(decayed_q, decayed_k, scores, update, erased, last) -> torch.Tensor:
    """Carries the state through the chunks; [tokens, H, V], with those that fill the last one."""
    decays = last.exp().transpose(-1, -2).unbind()  # [H, 1 or K, 1]
    state = update.new_zeros(update.shape[1], decayed_q.shape[-1], update.shape[-1])
    pieces = zip(decayed_q.unbind(), decayed_k.unbind(), scores.unbind(), strict=True)
    updates = update.unbind()
    erasures = None if erased is None else erased.unbind()
    outputs = []
    for chunk, (q, k, score) in enumerate(pieces):
        u = updates[chunk]
        if erasures is not None:
            u = torch.baddbmm(u, erasures[chunk], state, alpha=-1)
        outputs.append(torch.baddbmm(q @ state, score, u))
        state = torch.baddbmm(decays[chunk] * state, k, u)
    return torch.cat(outputs, dim=1).transpose(0, 1)


def _in_chunks(x: torch.Tensor, length: int) -> torch.Tensor:
    """[R, H, D] -> [chunks, H, length, D]; rows of zeros, which do nothing, fill the last one."""
    missing = -x.shape[0] % length
    x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, missing))
    return x.unflatten(0, (-1, length)).transpose(1, 2).contiguous()


def _scalar_scores(a, k, a_total, k_total, mask) -> torch.Tensor:
    """a_i^T k_j exp(G_i - G_j) where the mask is set, 0 elsewhere."""
    differences = a_total - k_total.transpose(-1, -2)
    return (a @ k.transpose(-1, -2)) * differences.masked_fill(~mask, -torch.inf).exp()


def _channel_scores(q, erase, k, total) -> tuple[torch.Tensor, torch.Tensor]:
    """sum_d a_id exp(G_id - G_jd) k_jd, i >= j, for a = q and a = erase.

    Between blocks through the prefix at the end of the block before, so that no exponent is
    positive; inside a block with the decay of every pair.
    """
    size = _BLOCK
    blocks = total.shape[-2] // size
    both = torch.cat([q.unflatten(-2, (blocks, size)), erase.unflatten(-2, (blocks, size))], -2)
    decay = total.unflatten(-2, (blocks, size))
    mask = torch.ones(size, size, dtype=torch.bool).tril()[:, :, None]
    pairs = decay.unsqueeze(-2) - decay.unsqueeze(-3)  # [.., i, j, K]
    keys = k.unflatten(-2, (blocks, size)).unsqueeze(-3)
    keys = pairs.masked_fill(~mask, -torch.inf).exp() * keys
    inside = torch.stack(both.split(size, -2), -1)  # [.., i, K, 2]
    inside = (keys @ inside).unbind(-1)  # two of [.., blocks, i, j]
    strips = []
    for block in range(blocks):
        first = block * size
        own = torch.cat([part[..., block, :, :] for part in inside], -2)  # [.., 2 size, size]
        if block > 0:
            before = total[..., first - 1 : first, :]
            down = (decay[..., block, :, :] - before).exp().repeat(1, 1, 2, 1)
            across = k[..., :first, :] * (before - total[..., :first, :]).exp()
            left = (both[..., block, :, :] * down) @ across.transpose(-1, -2)
            own = torch.cat([left, own], -1)
        strips.append(torch.nn.functional.pad(own, (0, total.shape[-2] - own.shape[-1])))
    queries, erasures = zip(*(strip.split(size, -2) for strip in strips), strict=True)
    return torch.cat(queries, -2), torch.cat(erasures, -2)
