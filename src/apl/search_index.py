"""Finding the nearest keys fast, with a proof.

A float32 pass over |m|² - 2qm ranks the keys of a memory and proposes a few candidates more than asked for.
`Proposal.complete_below` is a squared distance below which nothing can be missing from them, whatever the
rounding of that pass: who measures the candidates truly, and finds enough of them below it, has the answer.

Arrays here are numpy's, over the same storage as the memory's tensors: a search consists of many small
operations, and one of numpy's costs a third of one of torch's. The large product is torch's: it is faster, and
numpy's would wake a second pool of threads that gets in the way of torch's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

Metric = Literal["euclidean", "cosine"]

BLOCKS = 8
"""Long rows of scores are first compared by the least of each block of so many; slots come in multiples of it, ..."""
BLOCKS_WORTH_IT = 20
"""... when there are so many more blocks than candidates."""
EPSILON = float(np.finfo(np.float32).eps)


def measured(keys: Tensor, metric: Metric) -> Tensor:
    """Keys as the metric sees them: the cosine metric is the euclidean one between unit vectors."""
    return torch.nn.functional.normalize(keys, dim=-1) if metric == "cosine" else keys


@dataclass(frozen=True)
class Proposal:
    """Likely nearest rows of each query of all episodes, oldest first, and how far the list is known to be complete."""

    row: Int[np.ndarray, "query candidates"]
    complete_below: Float[np.ndarray, " query"]
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
        self.owns_keys = self.keys is not column
        norms = torch.linalg.vector_norm(self.keys, dim=-1).square_()
        self.largest_square_norm = float(norms.masked_fill(empty, 0).max())
        self.square_norms: Float[np.ndarray, "episode slots"] = norms.masked_fill_(empty, torch.inf).numpy()

    def placed(
        self, keys: Float[np.ndarray, "row embed"], episode: Int[np.ndarray, " row"]
    ) -> Float[np.ndarray, "row embed"]:
        """New keys of these episodes as the index compares them."""
        if self.metric == "cosine":
            keys = measured(torch.from_numpy(keys), self.metric).numpy()
        return keys if self.origin is None else keys - self.origin.numpy()[episode, 0]

    def put(self, where: slice | np.ndarray, placed: np.ndarray, square_norms: np.ndarray, largest: float) -> None:
        """Take in keys at places counted through all episodes."""
        self.square_norms.reshape(-1)[where] = square_norms
        if self.owns_keys:
            self.keys.view(-1, self.keys.shape[-1]).numpy()[where] = placed
        self.largest_square_norm = max(self.largest_square_norm, largest)

    def propose(self, query: Float[Tensor, "episode query embed"], take: int, rows: int) -> Proposal:
        """The `take` likeliest of the first `rows` rows."""
        query = query if self.origin is None else query - self.origin
        asked = query.numpy().reshape(-1, query.shape[2])
        length = np.einsum("qd,qd->q", asked, asked)
        largest = math.sqrt(float(length.max(initial=0.0))) + math.sqrt(self.largest_square_norm)
        if not math.isfinite(largest):
            raise ValueError("the query contains NaN or infinity")
        slots = -(-rows // BLOCKS) * BLOCKS
        best, row = smallest(self._scores(query, slots), take)
        # A sum of `width` products is off by at most width · eps / 2 of the product of lengths. Twice that, and a
        # little, also covers the rounding of the norms, of the move to the origin and of the true distances.
        rounding = (asked.shape[1] + 16) * EPSILON * largest**2
        row.sort(axis=1)
        return Proposal(row, best + length - np.float32(rounding))

    def _scores(self, query: Float[Tensor, "episode query embed"], slots: int) -> Float[np.ndarray, "any slots"]:
        """|m|² - 2qm orders the rows as |q - m|² does: |q|² is the same for all rows of a query."""
        norms, keys = torch.from_numpy(self.square_norms[:, None, :slots]), self.keys[:, :slots].transpose(1, 2)
        if len(query) == 1:
            return torch.addmm(norms[0], query[0], keys[0], alpha=-2).numpy()
        return torch.baddbmm(norms, query, keys, alpha=-2).numpy().reshape(-1, slots)


def smallest(score: Float[np.ndarray, "query slots"], take: int) -> tuple[np.ndarray, np.ndarray]:
    """The `take`-th smallest score of each query, and where the `take` smallest are, in any order.

    In long rows they are looked for only where they must be: in the `take` blocks with the smallest minima.
    """
    count, slots = score.shape
    lines = np.arange(count)[:, None]
    if slots < BLOCKS_WORTH_IT * BLOCKS * take:
        place = score.argpartition(take - 1, axis=1)[:, :take]
    else:
        block = slots // BLOCKS
        least = score.reshape(count, BLOCKS, block).min(1)
        blocks = least.argpartition(take - 1, axis=1)[:, None, :take]
        inside = (blocks + block * np.arange(BLOCKS)[:, None]).reshape(count, -1)
        place = inside[lines, score[lines, inside].argpartition(take - 1, axis=1)[:, :take]]
    return score[lines[:, 0], place[:, -1]], place
