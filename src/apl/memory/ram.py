"""A memory in RAM: the rows of several parallel episodes in preallocated arrays, searched exactly (`apl.memory.search`), and
the totals of their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.config import Metric
from apl.memory.protocol import (
    COUNT,
    LABEL,
    ClassTotals,
    Column,
    Neighbours,
    ReadingState,
    Rows,
)
from apl.memory.search import BLOCKS, SearchIndex
from apl.metric import measured

FIRST_CAPACITY = 64
"""A multiple of `BLOCKS`."""


class RunningTotals:
    """Examples of each class and the sum of their keys, for several parallel episodes. Classes appear as they come.

    Sums are in double precision, so that the order of merges does not matter.
    """

    def __init__(self, episodes: int, width: int) -> None:
        self.total = np.zeros((episodes, 0, width))
        self.everything = np.zeros((episodes, width))
        self.examples = np.zeros((episodes, 0), np.float32)
        self.square = np.zeros((episodes, 0))

    def of(self, way: int | None = None) -> ClassTotals:
        """Of the classes 0..way-1, by default of all."""
        room = self.total.shape[1]
        way = room if way is None else way
        if way > room:
            self._make_room(way)
        return ClassTotals(self.total[:, :way], self.examples[:, :way], self.everything, self.square[:, :way])

    def add(
        self,
        episode: Int[np.ndarray, " row"],
        label: Int[np.ndarray, " row"],
        key: Float[np.ndarray, "row embed"],
        count: Float[np.ndarray, " row"],
    ) -> None:
        """Rows come, or go if their count is negative. Keys are as the metric sees them."""
        self._make_room(int(label.max(initial=-1)) + 1)
        weighed = key * count[:, None].astype(np.float64)
        np.add.at(self.total, (episode, label), weighed)
        np.add.at(self.everything, episode, weighed)
        np.add.at(self.examples, (episode, label), count)
        # A class without examples has no total, not even by rounding.
        empty = self.examples[episode, label] == 0
        self.total[episode[empty], label[empty]] = 0
        total = self.total[episode, label]
        self.square[episode, label] = np.vecdot(total, total)

    def add_one(self, episode: int, label: int, key: Float[np.ndarray, " embed"], count: float) -> None:
        """`add` of a single row."""
        if label >= self.total.shape[1]:
            self._make_room(label + 1)
        weighed = key * np.float64(count)
        total = self.total[episode, label]
        total += weighed
        self.everything[episode] += weighed
        self.examples[episode, label] += count
        if self.examples[episode, label] == 0:
            total[:] = 0
        self.square[episode, label] = total @ total

    def set(self, label: int, total: Float[np.ndarray, " embed"], examples: float | int) -> None:
        """The total of a class of a single memory, as a store keeps it."""
        self._make_room(label + 1)
        self.everything[0] += total - self.total[0, label]
        self.total[0, label] = total
        self.square[0, label] = total @ total
        self.examples[0, label] = examples

    def _make_room(self, classes: int) -> None:
        room = self.total.shape[1]
        if classes > room:
            more = ((0, 0), (0, max(classes, 2 * room) - room))
            self.total = np.pad(self.total, (*more, (0, 0)))
            self.examples, self.square = np.pad(self.examples, more), np.pad(self.square, more)


class RamMemory:
    """Rows of named columns for several parallel episodes, searchable by any of the key columns. Recalled rows are named by
    their position, or by the cell of the column `handle`."""

    local = True

    def __init__(
        self,
        columns: Mapping[str, Column],
        keys: tuple[str, ...],
        *,
        episodes: int = 1,
        metric: Metric = "euclidean",
        handle: str | None = None,
    ) -> None:
        missing = [key for key in keys if key not in columns]
        if missing or not keys:
            raise ValueError(
                f"key column {missing[0]!r} is not a column" if missing else "at least one key column is needed"
            )
        if any(len(columns[key].shape) != 1 for key in keys):
            raise ValueError("a key column holds one vector per row: its shape must have one axis")
        if episodes < 1:
            raise ValueError("episodes must be at least 1")
        self.spec = {**columns, COUNT: Column()}
        self.keys = tuple(keys)
        self.episodes = episodes
        self.metric: Metric = metric
        self.handle = handle
        self.state: ReadingState | None = None
        self.scale: Float[np.ndarray, "episode 1 embed"] | None = None
        self.version = 0
        self.counts: Int[np.ndarray, " episode"] = np.zeros(episodes, np.int64)
        self._longest = self._shortest = 0
        self._slots = FIRST_CAPACITY
        self._columns: dict[str, np.ndarray] = {
            name: np.zeros((episodes, self._slots, *column.shape), column.dtype) for name, column in self.spec.items()
        }
        self._index: dict[str, SearchIndex] = {}
        self._totals: RunningTotals | None = None
        self._reindex()

    def __len__(self) -> int:
        return self._longest

    def column(self, name: str) -> np.ndarray:
        return self._columns[name][:, : self._longest]

    def classes_stored(self, way: int) -> Bool[np.ndarray, "episode way"]:
        if self._totals is not None:
            stored: np.ndarray = self._totals.of(way).examples > 0
            return stored
        found = np.zeros((self.episodes, way), bool)
        for episode, rows in enumerate(self.counts.tolist()):
            found[episode, self._columns[LABEL][episode, :rows]] = True
        return found

    def class_totals(self, way: int | None = None) -> ClassTotals:
        """Computed at the first call and kept in step from then on: a memory that is never asked pays nothing."""
        if self._totals is None:
            if len(self.keys) > 1:
                raise ValueError(f"class totals are of one key column, not of {', '.join(self.keys)}")
            self.count_classes()
        assert self._totals is not None
        return self._totals.of(way)

    def count_classes(self) -> None:
        """Compute the class totals anew from the rows."""
        self._totals = RunningTotals(self.episodes, self.spec[self.keys[0]].shape[0])
        episode, row = (np.arange(self._longest) < self.counts[:, None]).nonzero()
        self._add_to_totals(episode, row, 1)

    def rescale(self, scale: Float[np.ndarray, "episode 1 embed"] | None) -> None:
        self.scale = scale
        self.version += 1
        self._reindex()

    def write(
        self,
        rows: Rows,
        chosen: Bool[np.ndarray, "episode query"],
        details: Sequence[Any] | None = None,
        surprise_nats: Float[np.ndarray, "episode query"] | None = None,
    ) -> Int[np.ndarray, "episode query"]:
        """A count that is not given is 1."""
        if COUNT not in rows:
            rows = {**rows, COUNT: np.ones(chosen.shape, np.float32)}
        if rows.keys() != self.spec.keys():
            raise ValueError(f"rows must have exactly the columns {', '.join(self.spec)}; got {', '.join(rows)}")
        self._check_cells(rows, chosen, chosen, "written")
        if self.episodes == 1 and chosen.all():
            start, end = self._longest, self._longest + chosen.shape[1]
            if end > self._slots:
                self._make_room(end)
            self._put(rows, 0, slice(None), slice(start, end))
            self._count(np.array([end]))
            position = np.arange(start, end)[None]
        else:
            position = np.where(chosen, self.counts[:, None] + chosen.cumsum(1) - 1, -1)
            if not chosen.any():
                return position
            self._make_room(int(position.max()) + 1)
            episode, query = chosen.nonzero()
            self._put(rows, episode, query, position[chosen])
            self._count(self.counts + chosen.sum(1))
        if self._totals is not None:
            there = position >= 0
            self._add_to_totals(there.nonzero()[0], position[there], 1)
        return position

    def merge(self, rows: Rows, at: Int[np.ndarray, "episode query"], details: Sequence[Any] | None = None) -> None:
        chosen = at >= 0
        self._check_places(at)
        self._check_cells({key: rows[key] for key in self.keys}, at, chosen, "merged")
        for query, episode in zip(*chosen.T.nonzero(), strict=True):
            example = {key: rows[key][episode, query] for key in self.keys}
            self.merge_one(int(episode), int(at[episode, query]), example)

    def merge_one(self, episode: int, row: int, example: Mapping[str, Float[np.ndarray, " embed"]]) -> None:
        """`merge` of one example, whose row exists and whose keys are known to be finite."""
        place = slice(row, row + 1)
        counts, label = self._columns[COUNT][episode, place], self._columns[LABEL][episode, place]
        for key, new in example.items():
            mean = self._columns[key][episode, place]
            before = mean.copy()
            mean += (new - mean) / (counts + 1)
            self._index[key].note(episode, place)
            if self._totals is not None:
                grown = measured(mean, self.metric) * np.float64(counts[0] + 1)
                grown -= measured(before, self.metric) * np.float64(counts[0])
                self._totals.add_one(episode, int(label[0]), grown[0], 1.0)
        counts += 1
        self.version += 1

    def update(self, rows: Rows, at: Int[np.ndarray, "episode query"]) -> None:
        """Overwrite cells of rows (-1: none). Columns not given stay as they are."""
        unknown = set(rows) - set(self.spec)
        if unknown:
            raise ValueError(f"there is no column {min(unknown)!r}; the columns are {', '.join(self.spec)}")
        self._check_places(at)
        chosen = at >= 0
        self._check_cells(rows, at, chosen, "changed")
        episode, query = chosen.nonzero()
        self._add_to_totals(episode, at[chosen], -1)
        self._put(rows, episode, query, at[chosen])
        self._add_to_totals(episode, at[chosen], 1)

    def remove(self, at: Int[np.ndarray, "episode row"]) -> None:
        self._check_places(at)
        chosen = at >= 0
        episode = chosen.nonzero()[0]
        gone = np.zeros((self.episodes, self._longest), bool)
        gone[episode, at[chosen]] = True
        few = 8 * len(episode) < self.counts.sum()
        if few:
            episode, row = gone.nonzero()
            self._add_to_totals(episode, row, -1)
        kept = ~gone & (np.arange(self._longest) < self.counts[:, None])
        left = kept.sum(1)
        moved = (kept & (np.arange(self._longest) >= left[:, None])).any()
        if moved:
            order = np.argsort(~kept, axis=1, kind="stable")
            for storage in self._columns.values():
                storage[:, : self._longest] = storage[np.arange(self.episodes)[:, None], order]
        self._count(left)
        if moved:
            self._reindex()
        else:
            for index in self._index.values():
                index.keep_first(left)
        if not few and self._totals is not None:
            self.count_classes()

    def relabel(self, numbers: Int[np.ndarray, " label"]) -> None:
        """Give each class another number."""
        labels = self.column(LABEL)
        labels[:] = numbers[labels]
        self.version += 1
        if self._totals is not None:
            self.count_classes()

    def nearest(self, key: str, query: Float[np.ndarray, "episode query embed"], k: int) -> Neighbours:
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if key not in self._index:
            raise ValueError(f"{key!r} is not a key column; the key columns are {', '.join(self.keys)}")
        width = self.spec[key].shape[0]
        if query.ndim != 3 or query.shape[0] != self.episodes or query.shape[2] != width:
            raise ValueError(f"query must be [{self.episodes}, any, {width}], got {list(query.shape)}")
        shape = (*query.shape[:2], k)
        if self._longest == 0:
            if not np.isfinite(query).all():
                raise ValueError("the query contains NaN or infinity")
            columns = {name: np.zeros((*shape, *c.shape), c.dtype) for name, c in self.spec.items()}
            return Neighbours(columns, np.zeros(shape, np.float32), np.zeros(shape, bool), np.full(shape, -1))
        row, distance = self._index[key].nearest(query, k, self.counts, self._longest)
        if self._shortest >= k:
            row = row.reshape(shape)
            columns = self._cells(row)
            handle = columns[self.handle] if self.handle else row
            return Neighbours(columns, distance.reshape(shape), row >= 0, handle)
        found = row.shape[1]
        rows, distances = np.zeros((len(row), k), np.int64), np.full((len(row), k), np.inf, np.float32)
        rows[:, :found], distances[:, :found] = row, distance
        mask = (distances < np.inf).reshape(shape)
        hidden = ~mask
        row, distance = rows.reshape(shape), distances.reshape(shape)
        row[hidden], distance[hidden] = 0, 0
        columns = self._cells(row)
        handle = np.where(mask, columns[self.handle] if self.handle else row, -1)
        for cells in columns.values():
            cells[hidden] = 0
        return Neighbours(columns, distance, mask, handle)

    # --- storage ----------------------------------------------------------------------------------

    def _cells(self, row: Int[np.ndarray, "episode query neighbours"]) -> dict[str, np.ndarray]:
        """All columns of these rows."""
        found = {}
        episode = np.arange(self.episodes)[:, None, None]
        for name, cells in self._columns.items():
            found[name] = cells[0].take(row[0], axis=0)[None] if self.episodes == 1 else cells[episode, row]
        return found

    def _put(
        self,
        rows: Rows,
        episode: Int[np.ndarray, " row"] | int,
        query: Int[np.ndarray, " row"] | slice,
        slot: Int[np.ndarray, " row"] | slice,
    ) -> None:
        """These queries go to these slots: a place for each, or one episode and two slices."""
        for name, cells in rows.items():
            self._columns[name][episode, slot] = cells[episode, query]
        for key in self.keys:
            if key in rows:
                self._index[key].note(episode, slot)
        self.version += 1

    def _add_to_totals(self, episode: Int[np.ndarray, " row"], row: Int[np.ndarray, " row"], sign: int) -> None:
        if self._totals is None:
            return
        label = self._columns[LABEL][episode, row]
        count = sign * self._columns[COUNT][episode, row]
        key = measured(self._columns[self.keys[0]][episode, row], self.metric)
        if len(row) == 1:
            self._totals.add_one(int(episode[0]), int(label[0]), key[0], float(count[0]))
        else:
            self._totals.add(episode, label, key, count)

    def _count(self, counts: Int[np.ndarray, " episode"]) -> None:
        self.counts, rows = counts, counts.tolist()
        self._longest, self._shortest = max(rows), min(rows)
        self.version += 1

    def _reindex(self) -> None:
        self._index = {
            key: SearchIndex(
                self._columns[key],
                self.counts,
                self.metric,
                centred=key in self._index and self._index[key].origin is not None,
                scale=self.scale,
            )
            for key in self.keys
        }

    def _make_room(self, rows: int) -> None:
        if rows <= self._slots:
            return
        self._slots = -(-max(rows, 2 * self._slots) // BLOCKS) * BLOCKS
        for name, storage in self._columns.items():
            larger = np.zeros((self.episodes, self._slots, *storage.shape[2:]), storage.dtype)
            larger[:, : self._longest] = storage[:, : self._longest]
            self._columns[name] = larger
        self._reindex()

    def _check_places(self, at: Int[np.ndarray, "episode query"]) -> None:
        if at.ndim == 2 and len(at) == self.episodes and (at >= self.counts[:, None]).any():
            raise ValueError("there is no such row to change")

    def _check_cells(self, rows: Rows, places: np.ndarray, chosen: np.ndarray, done: str) -> None:
        if places.ndim != 2 or places.shape[0] != self.episodes:
            raise ValueError(f"expected one row for each of [{self.episodes}, any], got {list(places.shape)}")
        for name, cells in rows.items():
            expected = (*places.shape, *self.spec[name].shape)
            if cells.shape != expected:
                raise ValueError(f"column {name!r} must be {list(expected)}, got {list(cells.shape)}")
        for key in self.keys:
            given = rows.get(key) if chosen.all() else rows[key][chosen] if key in rows else None
            if given is not None and not np.isfinite(np.vdot(given, given)):
                raise ValueError(f"key column {key!r} contains NaN or infinity; nothing was {done}")
