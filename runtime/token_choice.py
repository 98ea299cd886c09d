"""One token a row from logits: the likeliest, or one drawn from the filtered distribution.

A row's token depends on its own logits, options and random number alone. Sums of float probabilities depend on the
order in which a device adds them, and that order on the batch; here probabilities become integer weights first, and
sums of integers are exact in any order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_ONE = 2.0**40
"""Weight of a row's likeliest token. 2**22 tokens of this weight still add up within int64."""


class DrawOptions(NamedTuple):
    """Options of R rows, all on the device of the logits.

    Attributes:
        temperature: [R] float32, above 0.
        min_p: [R] float32.
        top_k: [R] int32, at least 1; the size of the vocabulary or more keeps all.
        top_p: [R] float64.
    """

    temperature: Tensor
    min_p: Tensor
    top_k: Tensor
    top_p: Tensor

    def rows(self, index: Tensor) -> DrawOptions:
        """The options of the rows named by `index`."""
        return DrawOptions(*(option[index] for option in self))


def argmax_rows(scores: Tensor) -> Tensor:
    """The likeliest token of each row of [S, V], the lowest id of equals, as int64 [S]. A NaN counts as the largest."""
    if scores.device.type == "cpu" and scores.dtype == torch.float32:
        return torch.from_numpy(scores.detach().numpy().argmax(axis=1))  # ten times faster than torch's
    return scores.argmax(dim=1)


def token_weights(scores: Tensor, peak: Tensor, temperature: Tensor) -> Tensor:
    """Probabilities relative to the likeliest token's, in units of 2**-40, as int64 [R, V].

    Args:
        scores: [R, V] float32 logits.
        peak: [R, 1], the largest logit of each row.
        temperature: [R] float32.
    """
    relative = (scores - peak).div_(temperature[:, None])
    return relative.exp_().mul_(_ONE).long()


def kept_by_rank(scores: Tensor, peak: Tensor, options: DrawOptions) -> Tensor:
    """Which tokens pass top-k, then top-p over what top-k left, as bool [R, V].

    Top-p keeps the smallest set of likeliest tokens whose probabilities sum to at least `top_p`. Of equal logits at
    the boundary the lowest ids are kept, so exactly as many tokens remain as the options say.
    """
    ordered = _sort_descending(scores)
    rank = torch.arange(scores.shape[1], device=scores.device)
    weights = token_weights(ordered, peak, options.temperature) * (rank < options.top_k[:, None])
    before = weights.cumsum(dim=1) - weights
    needed = options.top_p[:, None] * weights.sum(dim=1, keepdim=True).double()
    within = (before.double() < needed) & (rank < options.top_k[:, None])
    count = within.sum(dim=1, keepdim=True).clamp_(min=1)
    return _first_ranks(scores, ordered.gather(1, count - 1), count)


def likeliest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and scores, both [R, count], of the largest scores: the largest first, of equals the lowest id first."""
    last = scores.topk(count, dim=1).values[:, -1:]
    kept = _first_ranks(scores, last, torch.full_like(last, count, dtype=torch.int64))
    from_end = torch.arange(scores.shape[1], 0, -1, dtype=torch.int32, device=scores.device)
    ids = scores.shape[1] - (kept * from_end).topk(count, dim=1).values.long()  # ascending, and one of each
    ids = ids.clamp_(max=scores.shape[1] - 1)  # NaN logits have fewer than `count`
    values, order = scores.gather(1, ids).sort(dim=1, descending=True, stable=True)
    return ids.gather(1, order), values


def _first_ranks(scores: Tensor, last: Tensor, count: Tensor) -> Tensor:
    """Which tokens are the `count` [R, 1] likeliest, as bool [R, V]; `last` [R, 1] is the smallest score among them."""
    above, equal = scores > last, scores == last
    spare = count - above.sum(dim=1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= spare))


def _sort_descending(scores: Tensor) -> Tensor:
    if scores.device.type == "cpu":
        return torch.from_numpy(np.sort(scores.numpy(), axis=1)).flip(1)  # vectorised, twenty times faster than torch's
    return scores.sort(dim=1, descending=True).values


def drop_unlikely(weights: Tensor, min_p: Tensor) -> Tensor:
    """Zero the weights below the fraction `min_p` of the likeliest token's."""
    least = (min_p.double() * _ONE).long()
    return weights * (weights >= least[:, None])


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The token where the cumulative weight passes a random share of the total, as int64 [R].

    Args:
        weights: [R, V] int64.
        uniforms: [R] float64 in [0, 1).
    """
    cumulative = weights.cumsum(dim=1)
    total = cumulative[:, -1]
    share = (uniforms * total.double()).long().minimum(total - 1)
    return torch.searchsorted(cumulative, share[:, None], right=True)[:, 0].clamp_(max=weights.shape[1] - 1)
