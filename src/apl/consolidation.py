"""A memory that consolidates: what does not surprise is merged into the row that explains it.

A row is then the running mean of the examples behind it, with their count, so nothing that was shown is lost on the
memory, and it hardly grows. Beside the rows stand a few numbers that are kept in step with them: the sum of all
examples of each class, the weights of the readers (`apl.reading.readers`), the rule for new classes (`apl.reading.novelty`), and
the units of the columns of positions (`apl.reading.column_units`). The sums follow from rows and counts at any time (`recount`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.memory import COUNT, Column, RamMemory, Rows
from apl.metric import measured
from apl.reading.column_units import MOST_COLUMNS, Spread
from apl.reading.novelty import Novelty
from apl.reading.readers import DECODER, ClassStatistics, Pool, Readings


class ConsolidatingMemory(RamMemory):
    """Rows with counts, and what the readers need to know of their classes."""

    def __init__(
        self, columns: Mapping[str, Column], keys: tuple[str, ...], readers: tuple[str, ...], **options: Any
    ) -> None:
        if len(keys) != 1:
            raise ValueError(f"a memory consolidates by one key column, not by {', '.join(keys)}")
        super().__init__({**columns, COUNT: Column((), np.float32)}, keys, **options)
        self.pool = Pool(readers, self.episodes)
        self.novelty = Novelty(self.episodes)
        self.spread = Spread(self.columns, self.episodes)
        self._clear_sums()

    @property
    def of_positions(self) -> bool:
        """Whether how far out a key lies says something. (Behind a trained decoder all embeddings have one length.)"""
        return self.metric == "euclidean" and DECODER not in self.pool.readers

    @property
    def columns(self) -> int:
        """How many have a spread of their own."""
        ((width,),) = (self.spec[name].shape for name in self.keys)
        return width if width <= MOST_COLUMNS else 1

    @property
    def of_table(self) -> bool:
        """Whether keys are positions of so few columns that they may be a table of measurements."""
        return self.of_positions and self.columns == self.spec[self.keys[0]].shape[0]

    @property
    def in_units(self) -> bool:
        """Whether columns are compared each in its own unit."""
        return self.of_table

    def measured(self, keys: Float[np.ndarray, "episode *any embed"]) -> Float[np.ndarray, "episode *any embed"]:
        """Keys as they are compared."""
        if self.scale is None:
            return measured(keys, self.metric)
        return measured(keys, self.metric, self.scale.reshape(len(keys), *[1] * (keys.ndim - 2), -1))

    def statistics(self, way: int) -> ClassStatistics:
        """Of the classes 0..way-1."""
        self._make_class_room(way)
        return ClassStatistics(self._total[:, :way], self._examples[:, :way], self._everything, self._square[:, :way])

    def take_units(self) -> None:
        """Compare columns in the units that suit the rows there are now, if these have changed enough for that."""
        if not self.in_units:
            return
        if self.spread.is_due(self._examples.sum(1)).any():
            self.spread.take_units(self.statistics(self._total.shape[1]))
        elif self.scale is not None and np.array_equal(self.scale[:, 0], self.spread.scale):
            return
        self.scale = self.spread.scale[:, None]
        self._reindex()

    def classes_stored(self, way: int) -> Bool[np.ndarray, "episode way"]:
        self._make_class_room(way)
        return self._examples[:, :way] > 0

    def learn(
        self,
        readings: Readings,
        truth: Int[np.ndarray, "episode query"],
        key: Float[np.ndarray, "episode query embed"],
    ) -> None:
        """Weigh the readers, and the rule for new classes, by how well they foresaw the truth of this example."""
        if self.of_positions:
            self.spread.learn(key, truth, self.statistics(readings.scores.shape[-1]))
        self.pool.learn(readings, truth, np.ones(truth.shape, bool))
        if self.of_table:
            # Lessons sorted by class would teach that what is near is wrong: in few dimensions classes lie close together.
            self.pool.weight = np.maximum(self.pool.weight, 0)
        self.novelty.learn(readings, truth)

    def merge(
        self,
        key: Float[np.ndarray, "episode query embed"],
        at: Int[np.ndarray, "episode query"],
    ) -> None:
        """Merge examples into the rows at these positions (-1: none), one query of each episode after the other."""
        (name,) = self.keys
        episode = np.arange(self.episodes)
        for query in range(at.shape[1]):
            place = at[:, query]
            if not (place >= 0).any():
                continue
            count = self.column(COUNT)[episode, place] + 1
            mean = self.column(name)[episode, place]
            mean = mean + (key[:, query] - mean) / count[:, None]
            self.update({name: mean[:, None], COUNT: count[:, None]}, place[:, None])

    # --- what lessons have taught a single memory, to be kept beside its rows -------------------------

    def lessons_to_dict(self) -> dict[str, Any]:
        kept = {"pool": self.pool.to_dict(), "novelty": self.novelty.to_dict()}
        return {**kept, "spread": self.spread.to_dict()} if self.of_positions else kept

    def lessons_from_dict(self, kept: Mapping[str, Any] | None) -> None:
        """As they were kept; as before any lesson if nothing was."""
        kept = kept or {}
        self.pool = Pool.from_dict(self.pool.readers, kept.get("pool"))
        self.novelty = Novelty.from_dict(kept.get("novelty"))
        self.spread = Spread.from_dict(self.columns, kept.get("spread"))
        self.take_units()

    # --- the sums stay in step with the rows --------------------------------------------------------

    def write(self, rows: Rows, chosen: Bool[np.ndarray, "episode query"]) -> Int[np.ndarray, "episode query"]:
        position = super().write(rows, chosen)
        self._add(*(position >= 0).nonzero(), position, 1)
        self.take_units()
        return position

    def update(self, rows: Rows, at: Int[np.ndarray, "episode query"]) -> None:
        episode, query = (at >= 0).nonzero()
        valid = at[episode, query] < self.counts[episode]
        self._add(episode[valid], query[valid], at, -1)
        try:
            super().update(rows, at)
        finally:
            self._add(episode[valid], query[valid], at, 1)
        self.take_units()

    def remove(self, rows: Bool[np.ndarray, "episode rows"]) -> None:
        few = rows.shape == (self.episodes, len(self)) and 8 * np.count_nonzero(rows) < self.counts.sum()
        if few:
            there = rows & (np.arange(len(self)) < self.counts[:, None])
            self._add(*there.nonzero(), self._positions(), -1)
        super().remove(rows)
        if not few:
            self.recount()
        self.take_units()

    def clear(self) -> None:
        super().clear()
        self.pool = Pool(self.pool.readers, self.episodes)
        self.novelty = Novelty(self.episodes)
        self.spread = Spread(self.columns, self.episodes)
        self._clear_sums()

    def recount(self) -> None:
        """Work the sums out anew from rows and counts."""
        self._clear_sums()
        episode, row = (np.arange(len(self)) < self.counts[:, None]).nonzero()
        self._add(episode, row, self._positions(), 1)

    def _positions(self) -> Int[np.ndarray, "episode row"]:
        return np.broadcast_to(np.arange(len(self)), (self.episodes, len(self)))

    def set_sum(self, label: int, total: Float[np.ndarray, " embed"], examples: int | float) -> None:
        """The sum of a class of a single memory as somebody else has kept it."""
        self._make_class_room(label + 1)
        self._everything[0] += total - self._total[0, label]
        self._total[0, label] = total
        self._square[0, label] = total @ total
        self._examples[0, label] = examples

    def add_to_sum(self, label: int, key: Float[np.ndarray, " embed"], count: int) -> None:
        """Examples of a class of a single memory come or go."""
        self._make_class_room(label + 1)
        total = self._total[0, label] + count * measured(key, self.metric).astype(np.float64)
        self.set_sum(label, total, float(self._examples[0, label]) + count)

    def _add(self, episode: np.ndarray, query: np.ndarray, position: np.ndarray, sign: int) -> None:
        if not len(episode):
            return
        (name,) = self.keys
        row = position[episode, query]
        label = self._columns["label"][episode, row]
        count = sign * self._columns[COUNT][episode, row]
        key = measured(self._columns[name][episode, row], self.metric)
        self._make_class_room(int(label.max()) + 1)
        key = key * count[:, None].astype(np.float64)
        np.add.at(self._total, (episode, label), key)
        np.add.at(self._everything, episode, key)
        np.add.at(self._examples, (episode, label), count)
        empty = self._examples[episode, label] == 0
        self._total[episode[empty], label[empty]] = 0  # nothing is left of a class, not even by rounding
        total = self._total[episode, label]
        self._square[episode, label] = np.vecdot(total, total)

    def _clear_sums(self) -> None:
        (name,) = self.keys
        # In double precision, so that it makes no difference how often rows were merged, in what order, and with how many
        # others a query is asked.
        self._total = np.zeros((self.episodes, 0, *self.spec[name].shape))
        self._everything = np.zeros((self.episodes, *self.spec[name].shape))
        self._examples = np.zeros((self.episodes, 0), np.float32)
        self._square = np.zeros((self.episodes, 0))

    def _make_class_room(self, classes: int) -> None:
        room = self._total.shape[1]
        if classes > room:
            more = ((0, 0), (0, max(classes, 2 * room) - room))
            self._total = np.pad(self._total, (*more, (0, 0)))
            self._examples, self._square = np.pad(self._examples, more), np.pad(self._square, more)
