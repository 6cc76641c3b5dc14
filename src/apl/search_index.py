"""Finding the nearest keys fast, with a proof.

A float32 pass over |m|² - 2qm ranks the keys of a memory and proposes a few candidates more than asked for.
`Proposal.complete_below` is a squared distance below which nothing can be missing from them, whatever the
rounding of that pass: who measures the candidates truly, and finds enough of them below it, has the answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

Metric = Literal["euclidean", "cosine"]

BLOCKS = 8
"""Long rows of scores are first compared by the least of every so many; slots come in multiples of it."""
BLOCKS_WORTH_IT = 512


def measured(keys: Tensor, metric: Metric) -> Tensor:
    """Keys as the metric sees them: the cosine metric is the euclidean one between unit vectors."""
    return torch.nn.functional.normalize(keys, dim=-1) if metric == "cosine" else keys


@dataclass(frozen=True)
class Proposal:
    """Likely nearest rows, oldest first, and how far the list is known to be complete."""

    row: Int[Tensor, "episode query candidates"]
    complete_below: Float[Tensor, "episode query"]
    """No row outside the list is nearer than the root of this; infinite where the list holds all rows."""


class SearchIndex:
    """One key column made searchable.

    The keys are the column itself until they are found to share an offset so large that rounding decides who
    is near: then a copy is moved to the mean of the rows. Empty slots have an infinite norm, so that the
    search needs no mask.
    """

    def __init__(
        self,
        column: Float[Tensor, "episode slots embed"],
        counts: Int[Tensor, " episode"],
        metric: Metric,
        centred: bool = False,
    ) -> None:
        self.metric: Metric = metric
        self.keys = measured(column, metric)
        self.origin: Float[Tensor, "episode 1 embed"] | None = None
        self.rows_when_centred = 0
        empty = torch.arange(column.shape[1]) >= counts[:, None]
        if centred:
            total = self.keys.masked_fill(empty[..., None], 0).sum(1)
            self.origin = (total / counts.clamp(min=1)[:, None])[:, None]
            self.keys = self.keys - self.origin
            self.rows_when_centred = int(counts.max())
        norms = torch.linalg.vector_norm(self.keys, dim=-1)
        self.largest_norm = float(norms.masked_fill(empty, 0).max())
        self.square_norms: Float[Tensor, "episode slots"] = norms.square().masked_fill_(empty, torch.inf)

    def placed(self, keys: Tensor, episode: Int[Tensor, " row"] | None) -> Tensor:
        """New keys (of these episodes; None if there is only one) as the index compares them."""
        keys = measured(keys, self.metric)
        if self.origin is None:
            return keys
        return keys - (self.origin[0] if episode is None else self.origin[episode, 0])

    def propose(self, query: Float[Tensor, "episode query embed"], take: int, rows: int) -> Proposal:
        """The `take` likeliest of the first `rows` rows."""
        query = query if self.origin is None else query - self.origin
        length = torch.linalg.vector_norm(query, dim=-1)
        largest = (float(length.max()) if length.numel() else 0.0) + self.largest_norm
        if not math.isfinite(largest):
            raise ValueError("the query contains NaN or infinity")
        slots = -(-rows // BLOCKS) * BLOCKS
        keys, norms = self.keys[:, :slots], self.square_norms[:, :slots]
        # |m|² - 2qm orders the rows as |q - m|² does: |q|² is the same for all rows of a query.
        if len(query) == 1:
            score = torch.addmm(norms[0], query[0], keys[0].T, alpha=-2)[None]
        else:
            score = torch.baddbmm(norms[:, None], query, keys.transpose(1, 2), alpha=-2)
        best, row = smallest(score, take)
        # A sum of `width` products is off by at most width · eps / 2 of the product of lengths. Twice that, and a
        # little, also covers the rounding of the norms, of the move to the origin and of the true distances.
        rounding = (query.shape[-1] + 16) * torch.finfo(torch.float32).eps * largest**2
        return Proposal(row.sort(dim=-1).values, length.square_().add_(best[..., -1]).sub_(rounding))


def smallest(score: Float[Tensor, "episode query slots"], take: int) -> tuple[Tensor, Tensor]:
    """The `take` smallest scores in ascending order and where they are, as `topk` gives them.

    They all lie in the `take` blocks with the smallest minima, and minima are quickly found.
    """
    slots = score.shape[-1]
    if slots < max(BLOCKS_WORTH_IT, 4 * BLOCKS * take):
        return score.topk(take, largest=False)
    block = slots // BLOCKS
    least = score.unflatten(-1, (BLOCKS, block)).amin(-2)
    place = least.topk(take, largest=False, sorted=False).indices
    place = (place[..., None, :] + block * torch.arange(BLOCKS)[:, None]).flatten(-2)
    best, among = score.gather(-1, place).topk(take, largest=False)
    return best, place.gather(-1, among)
