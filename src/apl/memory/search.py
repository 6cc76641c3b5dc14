"""Finding the nearest keys fast, and exactly.

A float32 pass over |m|² - 2qm scores all rows of a memory. Its rounding is bounded, so every row that may be among
the k nearest has a score within that bound of the k-th best: those few, hardly more than k, are measured truly, from the
differences themselves. Equal distances go by age, the older row first.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from apl.config import Metric
from apl.metric import measured

EPSILON, FARTHEST = np.finfo(np.float32).eps, np.finfo(np.float32).max
CROWD = 256
"""If this many rows more than k may be among the k nearest, rounding may be the reason: the keys are moved to their mean."""
PAIRS_AT_MOST = 1 << 20
"""If more pairs of a query and a row than this are to be measured, the queries are divided."""
BLOCKS = 8
"""Scores are split into this number of blocks to find the k-th best of many; slots come in multiples of it."""
BLOCKS_WORTH_IT = 4
"""A row of scores is split if it is longer than this times `BLOCKS` times k."""
PAIRS_AT_ONCE = 256
"""Pairs of a query and a row that are measured together, so that they stay in the processor's cache."""


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
        scale: Float[np.ndarray, "episode 1 embed"] | None = None,
    ) -> None:
        self.metric: Metric = metric
        self.scale = scale
        self.column = column
        self._fill(counts, centred)

    def _fill(self, counts: Int[np.ndarray, " episode"], centred: bool) -> None:
        """Index all rows of the column anew, with the keys moved to their mean if `centred`."""
        self.keys = measured(self.column, self.metric, self.scale)
        self.origin: Float[np.ndarray, "episode 1 embed"] | None = None
        self.rows_when_centred = 0
        present = np.arange(self.column.shape[1]) < counts[:, None]
        if centred:
            total = np.where(present[..., None], self.keys, 0).sum(1, keepdims=True)
            self.origin = total / counts.clip(1)[:, None, None].astype(np.float32)
            self.keys = self.keys - self.origin
            self.rows_when_centred = int(counts.max())
        self.owns_keys = self.keys is not self.column
        # An empty slot has an infinite norm, so that a search needs no mask.
        self.square_norms: Float[np.ndarray, "episode slots"] = np.full(self.column.shape[:2], np.inf, np.float32)
        self.longest = 0.0
        self.note(*present.nonzero())

    def note(self, episode: Int[np.ndarray, " row"] | int, slot: Int[np.ndarray, " row"] | slice) -> None:
        """The rows at these places of the column were written or changed."""
        keys = self.column[episode, slot]
        if self.owns_keys:
            keys = measured(keys, self.metric, None if self.scale is None else self.scale[episode, 0])
            self.keys[episode, slot] = keys = keys if self.origin is None else keys - self.origin[episode, 0]
        norms = np.vecdot(keys, keys)
        self.square_norms[episode, slot] = norms
        self.longest = max(self.longest, float(norms.max(initial=0.0)) ** 0.5)

    def keep_first(self, counts: Int[np.ndarray, " episode"]) -> None:
        """Only the first `counts` rows of each episode are left."""
        self.square_norms[np.arange(self.column.shape[1]) >= counts[:, None]] = np.inf

    def nearest(
        self, query: Float[np.ndarray, "episode query embed"], k: int, counts: Int[np.ndarray, " episode"], rows: int
    ) -> tuple[Int[np.ndarray, "asked found"], Float[np.ndarray, "asked found"]]:
        """The k nearest rows of each query of all episodes (all rows, where there are fewer than k), and how far they
        are: infinitely, where there was no row. `rows`: the largest of `counts`."""
        asked_for, query = query, measured(query, self.metric, self.scale)
        asked = query if self.origin is None else query - self.origin
        width = query.shape[2]
        length = np.sqrt(np.vecdot(asked, asked)).reshape(-1)
        # A sum of `width` products is off by at most width · eps / 2 of the product of lengths. Four times that, and
        # a little, also covers the norms, the move to the origin, the true distances, and both sides of a comparison.
        rounding = np.float32(2 * (width + 16) * EPSILON) * np.square(length + np.float32(self.longest))
        if not rounding.max(initial=0) < np.inf:
            raise ValueError("the query contains NaN or infinity")
        slots = min(-(-rows // BLOCKS) * BLOCKS, self.column.shape[1])
        score = self._scores(asked, slots)
        # Where there are no k rows, all there are: an empty slot's score is infinite, and so is no bound.
        bound = least(score, k) + rounding if k < rows else np.full(len(score), FARTHEST)
        near = score <= np.minimum(bound, FARTHEST)[:, None]
        pair = near.reshape(-1).nonzero()[0]
        if len(score) == 1 and (len(pair) <= k + CROWD or k >= rows):
            square = self._square_distances(query[0], pair, pair)
            order = square.argsort(kind="stable")[None, :k]
            return pair[order], np.sqrt(square[order])
        asking = pair // slots
        count = np.bincount(asking, minlength=len(score))
        most = int(count.max(initial=0))
        if most > k + CROWD and k < rows:
            if rows >= 2 * self.rows_when_centred:
                self._fill(counts, centred=True)
                return self.nearest(asked_for, k, counts, rows)
            if len(pair) > PAIRS_AT_MOST and asked.shape[0] == 1 < asked.shape[1]:
                half = asked.shape[1] // 2
                parts = [self.nearest(part, k, counts, rows) for part in (asked_for[:, :half], asked_for[:, half:])]
                return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        row = pair - asking * slots
        square = self._square_distances(query.reshape(-1, width), asking, row)
        # Side by side, oldest first: a stable sort then breaks ties by age.
        place = np.arange(len(pair)) + (most * np.arange(len(count)) - count.cumsum() + count).repeat(count)
        squares, places = np.full(len(count) * most, np.inf, np.float32), np.zeros(len(count) * most, np.int64)
        squares[place], places[place] = square, row
        order = (
            squares.reshape(len(count), most).argsort(1, kind="stable")[:, :k] + most * np.arange(len(count))[:, None]
        )
        return places.take(order), np.sqrt(squares.take(order))

    def _scores(self, asked: Float[np.ndarray, "episode query embed"], slots: int) -> Float[np.ndarray, "asked slots"]:
        """|m|² - 2qm orders the rows as |q - m|² does: |q|² is the same for all rows of a query."""
        doubled = asked * np.float32(-2)
        if len(asked) == 1:
            keys = self.keys[0, :slots]
            # Row by row is as fast as BLAS from the cache, and twice as fast when the keys have to come from RAM.
            score: np.ndarray = np.vecdot(keys, doubled[0])[None] if asked.shape[1] == 1 else doubled[0] @ keys.T
            score += self.square_norms[0, :slots]
            return score
        score = np.matmul(doubled, self.keys[:, :slots].transpose(0, 2, 1))
        score += self.square_norms[:, None, :slots]
        return score.reshape(-1, slots)

    def _square_distances(
        self,
        query: Float[np.ndarray, "asked embed"],
        asking: Int[np.ndarray, " pair"],
        row: Int[np.ndarray, " pair"],
    ) -> Float[np.ndarray, " pair"]:
        """True ones, from the differences themselves."""
        episodes, slots, width = self.column.shape
        place = row if episodes == 1 else row + asking // (len(query) // episodes) * slots
        keys, parts = self.column.reshape(-1, width), []
        for start in range(0, len(row), PAIRS_AT_ONCE):
            part = slice(start, start + PAIRS_AT_ONCE)
            scale = None if self.scale is None else self.scale[place[part] // slots, 0]
            away = measured(keys.take(place[part], axis=0), self.metric, scale)
            away -= query if len(query) == 1 else query.take(asking[part], axis=0)
            parts.append(np.vecdot(away, away))
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.float32)])


def least(score: Float[np.ndarray, "asked slots"], k: int) -> Float[np.ndarray, " asked"]:
    """No less than the k-th smallest score of each query, and hardly more: in long rows the k-th of the blocks' smallest."""
    slots = score.shape[1]
    if slots >= BLOCKS_WORTH_IT * BLOCKS * k:
        score = score.reshape(len(score), BLOCKS, slots // BLOCKS).min(1)
    return np.partition(score, k - 1, axis=1)[:, k - 1]
