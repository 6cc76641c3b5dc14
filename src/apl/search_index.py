"""Finding the nearest keys fast, and exactly.

A float32 pass over |m|² - 2qm scores all rows of a memory. Its rounding is bounded, so every row that may be among
the k nearest has a score within that bound of the k-th best: those few are measured truly, from the differences
themselves. Equal distances go by age, the older row first.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from apl.config import Metric
from apl.metric import measured

EPSILON = float(np.finfo(np.float32).eps)
SPARE = 16
"""Rows measured truly beyond k in the common case, so that rounding seldom leaves it open who is among the k nearest."""
CROWD = 256
"""When more rows than this may be among the k nearest, those that have k older twins are left out."""
BLOCKS = 8
"""Long rows of scores are first compared by the least of each block of so many; slots come in multiples of it, ..."""
BLOCKS_WORTH_IT = 20
"""... when there are so many more blocks than rows wanted."""


class SearchIndex:
    """One key column of parallel episodes made searchable.

    The keys are the column itself until they are found to share an offset so large that rounding decides who is
    near: then a copy is moved to the mean of the rows.
    """

    def __init__(
        self,
        column: Float[np.ndarray, "episode slots embed"],
        counts: Int[np.ndarray, " episode"],
        metric: Metric,
        centred: bool = False,
    ) -> None:
        self.metric: Metric = metric
        self.column = column
        self.keys = measured(column, metric)
        self.origin: Float[np.ndarray, "episode 1 embed"] | None = None
        self.rows_when_centred = 0
        present = np.arange(column.shape[1]) < counts[:, None]
        if centred:
            total = np.where(present[..., None], self.keys, 0).sum(1, keepdims=True)
            self.origin = total / counts.clip(1)[:, None, None].astype(np.float32)
            self.keys = self.keys - self.origin
            self.rows_when_centred = int(counts.max())
        self.owns_keys = self.keys is not column
        # An empty slot has an infinite norm, so that a search needs no mask.
        self.square_norms: Float[np.ndarray, "episode slots"] = np.full(column.shape[:2], np.inf, np.float32)
        self.groups: Int[np.ndarray, "episode slots"] | None = None
        self.group_of: dict[int, int] = {}
        self.twins: dict[int, Int[np.ndarray, " slots"]] = {}
        self.longest = 0.0
        self.note(*present.nonzero())

    def note(self, episode: Int[np.ndarray, " row"], slot: Int[np.ndarray, " row"]) -> None:
        """The rows at these places of the column were written or changed."""
        keys = self.column[episode, slot]
        if self.owns_keys:
            keys = measured(keys, self.metric)
            self.keys[episode, slot] = keys = keys if self.origin is None else keys - self.origin[episode, 0]
        norms = np.einsum("rd,rd->r", keys, keys)
        self.square_norms[episode, slot] = norms
        if self.groups is not None:
            self.groups[episode, slot] = self._grouped(episode, slot)
        self.twins.clear()
        self.longest = max(self.longest, float(norms.max(initial=0.0)) ** 0.5)

    def keep_first(self, counts: Int[np.ndarray, " episode"]) -> None:
        """Only so many rows of each episode are left."""
        self.square_norms[np.arange(self.column.shape[1]) >= counts[:, None]] = np.inf

    def nearest(
        self, query: Float[np.ndarray, "episode query embed"], k: int, counts: Int[np.ndarray, " episode"]
    ) -> tuple[Int[np.ndarray, "asked found"], Float[np.ndarray, "asked found"]]:
        """The k nearest rows of each query of all episodes (all rows, where there are fewer than k), and how far they
        are: infinitely, where there was no row."""
        query = measured(query, self.metric)
        asked = query if self.origin is None else query - self.origin
        episodes, queries, width = query.shape
        flat, episode = query.reshape(-1, width), np.repeat(np.arange(episodes), queries)
        length = np.sqrt(np.einsum("eqd,eqd->eq", asked, asked)).reshape(-1)
        # A sum of `width` products is off by at most width · eps / 2 of the product of lengths. Four times that, and
        # a little, also covers the norms, the move to the origin, the true distances, and both sides of a comparison.
        rounding = np.float32(2 * (width + 16) * EPSILON) * np.square(length + np.float32(self.longest))
        if not np.isfinite(rounding).all():
            raise ValueError("the query contains NaN or infinity")
        rows = int(counts.max())
        take = min(k + SPARE, rows)
        slots = min(-(-rows // BLOCKS) * BLOCKS, self.column.shape[1])
        # |m|² - 2qm orders the rows as |q - m|² does: |q|² is the same for all rows of a query.
        doubled = asked * np.float32(-2)
        if len(asked) == 1:
            keys = self.keys[0, :slots]
            # Row by row is as fast as BLAS from the cache, and twice as fast when the keys have to come from RAM.
            score = np.vecdot(keys, doubled[0])[None] if queries == 1 else doubled[0] @ keys.T
        else:
            score = np.matmul(doubled, self.keys[:, :slots].transpose(0, 2, 1)).reshape(-1, slots)
        score += self.square_norms[episode, :slots]
        place = smallest(score, take)
        place.sort(axis=1)
        best = score[np.arange(len(score))[:, None], place]
        found, distance = self._ranked(flat, episode, place, k, best)
        if take == rows or take <= k:
            return found, distance
        worst_of_k = np.partition(best, k - 1, 1)[:, k - 1]
        with np.errstate(invalid="ignore"):
            unsure = ((best.max(1) <= worst_of_k + rounding) & np.isfinite(worst_of_k)).nonzero()[0]
        for q in unsure:
            near = (score[q] <= worst_of_k[q] + rounding[q]).nonzero()[0]
            if len(near) > CROWD:
                twins = self._twins(int(episode[q]))[near]
                if 2 * (twins == 0).sum() > len(near) and rows >= 2 * self.rows_when_centred:
                    self.__init__(self.column, counts, self.metric, centred=True)
                    return self.nearest(query, k, counts)
                near = near[twins < k]  # of equal rows only the oldest can be wanted
            found[q], distance[q] = self._ranked_crowd(flat[q], int(episode[q]), near, k)
        return found, distance

    def _square_distances(self, query: np.ndarray, episode: np.ndarray, place: np.ndarray) -> np.ndarray:
        """True ones, from the differences themselves."""
        rows = self.column[0].take(place, axis=0) if len(self.column) == 1 else self.column[episode[:, None], place]
        rows = measured(rows, self.metric)
        rows -= query[:, None]
        return np.einsum("qkd,qkd->qk", rows, rows)

    def _ranked(
        self, query: np.ndarray, episode: np.ndarray, place: np.ndarray, k: int, best: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nearest of candidates that come oldest first; a stable sort breaks ties by age."""
        square = self._square_distances(query, episode, place)
        lines = np.arange(len(place))[:, None]
        square[np.isinf(best)] = np.inf
        order = square.argsort(1, kind="stable")[:, :k]
        return place[lines, order], np.sqrt(square[lines, order])

    def _ranked_crowd(
        self, query: np.ndarray, episode: int, place: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same for one query with many candidates."""
        parts = np.split(place, range(4096, len(place), 4096))
        square = np.concatenate([self._square_distances(query[None], np.array([episode]), p[None])[0] for p in parts])
        order = square.argsort(kind="stable")[:k]
        return place[order], np.sqrt(square[order])

    def _twins(self, episode: int) -> Int[np.ndarray, " slots"]:
        """How many older rows are equal to each. Worked out when a crowd is met."""
        if episode not in self.twins:
            if self.groups is None or len(self.group_of) > 2 * self.groups.size:
                self.group_of.clear()
                self.groups = np.full(self.square_norms.shape, -1)
                present = np.isfinite(self.square_norms).nonzero()
                self.groups[present] = self._grouped(*present)
            group = self.groups[episode]
            order, size = group.argsort(kind="stable"), np.bincount(group + 1)
            self.twins[episode] = twins = np.empty_like(order)
            twins[order] = np.arange(len(order)) - np.repeat(size.cumsum() - size, size)
        return self.twins[episode]

    def _grouped(self, episode: np.ndarray, slot: np.ndarray) -> list[int]:
        """Equal keys have equal numbers."""
        known = self.group_of
        return [known.setdefault(hash(key.tobytes()), len(known)) for key in self.column[episode, slot]]


def smallest(score: Float[np.ndarray, "query slots"], take: int) -> Int[np.ndarray, "query take"]:
    """Where the `take` smallest scores of each query are, in any order.

    In long rows they are looked for only where they must be: in the `take` blocks with the smallest minima.
    """
    count, slots = score.shape
    if slots < BLOCKS_WORTH_IT * BLOCKS * take:
        return score.argpartition(take - 1, axis=1)[:, :take]
    block = slots // BLOCKS
    least = score.reshape(count, BLOCKS, block).min(1)
    blocks = least.argpartition(take - 1, axis=1)[:, None, :take]
    inside = (blocks + block * np.arange(BLOCKS)[:, None]).reshape(count, -1)
    lines = np.arange(count)[:, None]
    return inside[lines, score[lines, inside].argpartition(take - 1, axis=1)[:, :take]]
