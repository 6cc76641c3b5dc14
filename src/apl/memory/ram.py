"""The memory store (paper, section 2.1): rows with several named columns, recalled by nearest key.

`Memory` is what the learner needs of a memory, wherever it lives: arrays in, arrays out, no network in sight.
`RamMemory` holds the memories of several parallel episodes in preallocated arrays; its search is exact
(`apl.memory.search`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.config import Metric
from apl.memory.search import BLOCKS, SearchIndex
from apl.metric import measured

FIRST_CAPACITY = 64
COUNT = "count"
"""The column that says how many examples stand behind a row, in memories that consolidate."""

Rows = Mapping[str, np.ndarray]
"""Cells by column, each `[episode, query, *cell]`."""


class MemoryFull(RuntimeError):
    """A memory with a fixed capacity was asked to take more rows than it may hold."""


@dataclass(frozen=True)
class Column:
    """The type of one column: the shape of a cell and its dtype."""

    shape: tuple[int, ...] = ()
    dtype: type = np.float32


@dataclass(frozen=True)
class Neighbours:
    """The rows recalled for each query, nearest first. Where `mask` is False there was no row to recall."""

    columns: Mapping[str, np.ndarray]
    """Every column of the recalled rows, each `[episode, query, neighbours, *cell]`; zeros where masked."""
    distance: Float[np.ndarray, "episode query neighbours"]
    mask: Bool[np.ndarray, "episode query neighbours"]
    row: Int[np.ndarray, "episode query neighbours"]
    """Position of the row in its memory; -1 where masked."""
    compared: Bool[np.ndarray, "neighbours embed"] | None = None
    """Which numbers of the embedding the distance is over, where it is not over all of them."""

    @property
    def k(self) -> int:
        return self.distance.shape[-1]

    @cached_property
    def examples(self) -> Float[np.ndarray, "episode query neighbours"]:
        """How many stand behind each row."""
        return self.columns[COUNT] if COUNT in self.columns else self.mask.astype(np.float32)

    @cached_property
    def same(self) -> Bool[np.ndarray, "episode query neighbours neighbours"]:
        """Which rows share a label: all that a decoder with neighbourhood labels needs to know of labels."""
        label = np.where(self.mask, self.columns["label"], -1)
        return (label[..., :, None] == label[..., None, :]) & self.mask[..., None]

    @cached_property
    def is_first(self) -> Bool[np.ndarray, "episode query neighbours"]:
        """Which neighbours are the nearest of their label."""
        return (self.same.argmax(-1) == np.arange(self.k)) & self.mask

    @staticmethod
    def join(parts: list[Neighbours], widths: list[int]) -> Neighbours:
        """Neighbours recalled through different key columns, side by side; the embedding is those columns in a row."""
        if len(parts) == 1:
            return parts[0]

        def beside(arrays: list[np.ndarray]) -> np.ndarray:
            return np.concatenate(arrays, 2)

        columns = {name: beside([part.columns[name] for part in parts]) for name in parts[0].columns}
        starts = np.cumsum([0, *widths])
        place = np.arange(starts[-1])
        compared = [
            np.tile((starts[i] <= place) & (place < starts[i + 1]), (part.k, 1)) for i, part in enumerate(parts)
        ]
        return Neighbours(
            columns,
            beside([part.distance for part in parts]),
            beside([part.mask for part in parts]),
            beside([part.row for part in parts]),
            np.concatenate(compared),
        )


@runtime_checkable
class Memory(Protocol):
    """What the learner needs of a memory: the paper's database."""

    episodes: int
    keys: tuple[str, ...]

    @property
    def counts(self) -> Int[np.ndarray, " episode"]:
        """Rows of each episode."""

    def __len__(self) -> int:
        """Rows of the fullest episode."""

    def nearest(self, key: str, query: Float[np.ndarray, "episode query embed"], k: int) -> Neighbours:
        """The k nearest rows by one key column, with true distances; fewer rows than k is no error."""

    def write(self, rows: Rows, chosen: Bool[np.ndarray, "episode query"]) -> Int[np.ndarray, "episode query"]:
        """Append the chosen rows; returns where each went, -1 for those not chosen."""

    def update(self, rows: Rows, at: Int[np.ndarray, "episode query"]) -> None:
        """Overwrite cells of the rows at these positions (-1: none). Columns not given stay as they are."""

    def remove(self, rows: Bool[np.ndarray, "episode rows"]) -> None:
        """Forget the marked rows; the others close up, keeping their age order."""

    def column(self, name: str) -> np.ndarray:
        """One column, `[episode, rows, *cell]`; rows beyond an episode's count are meaningless."""

    def classes_stored(self, way: int) -> Bool[np.ndarray, "episode way"]:
        """Which of the classes 0..way-1 have rows."""


class RamMemory:
    """Rows of named columns for several parallel episodes, searchable by any of the key columns.

    Without `capacity` the memory grows as needed; with it, a write that does not fit raises `MemoryFull`
    and writes nothing.
    """

    def __init__(
        self,
        columns: Mapping[str, Column],
        keys: tuple[str, ...],
        *,
        episodes: int = 1,
        capacity: int | None = None,
        metric: Metric = "euclidean",
    ) -> None:
        missing = [key for key in keys if key not in columns]
        if missing or not keys:
            raise ValueError(
                f"key column {missing[0]!r} is not a column" if missing else "at least one key column is needed"
            )
        if any(len(columns[key].shape) != 1 for key in keys):
            raise ValueError("a key column holds one vector per row: its shape must have one axis")
        if episodes < 1 or (capacity is not None and capacity < 1):
            raise ValueError("episodes and capacity must be at least 1")
        self.spec = dict(columns)
        self.keys = tuple(keys)
        self.episodes = episodes
        self.capacity = capacity
        self.metric: Metric = metric
        self.scale: Float[np.ndarray, "episode 1 embed"] | None = None
        """What the columns of positions are multiplied with before they are compared."""
        self.counts: Int[np.ndarray, " episode"] = np.zeros(episodes, np.int64)
        self._longest = self._shortest = 0
        self._slots = -(-(capacity or FIRST_CAPACITY) // BLOCKS) * BLOCKS
        self._columns = {n: np.zeros((episodes, self._slots, *c.shape), c.dtype) for n, c in columns.items()}
        self._reindex()

    def __len__(self) -> int:
        return self._longest

    def column(self, name: str) -> np.ndarray:
        return self._columns[name][:, : self._longest]

    def classes_stored(self, way: int) -> Bool[np.ndarray, "episode way"]:
        found = np.zeros((self.episodes, way), bool)
        for episode, rows in enumerate(self.counts.tolist()):
            found[episode, self._columns["label"][episode, :rows]] = True
        return found

    def clear(self) -> None:
        """Forget everything; the space stays."""
        self._count(np.zeros_like(self.counts))
        self._reindex()

    def write(self, rows: Rows, chosen: Bool[np.ndarray, "episode query"]) -> Int[np.ndarray, "episode query"]:
        if rows.keys() != self.spec.keys():
            raise ValueError(f"rows must have exactly the columns {', '.join(self.spec)}; got {', '.join(rows)}")
        self._check_cells(rows, chosen, chosen, "written")
        if self.episodes == 1 and chosen.all():
            start, end = self._longest, self._longest + chosen.shape[1]
            self._make_room(end)
            self._put(rows, 0, slice(None), slice(start, end))
            self._count(np.array([end]))
            return np.arange(start, end)[None]
        position = np.where(chosen, self.counts[:, None] + chosen.cumsum(1) - 1, -1)
        if not chosen.any():
            return position
        self._make_room(int(position.max()) + 1)
        self._put(rows, *chosen.nonzero(), position[chosen])
        self._count(self.counts + chosen.sum(1))
        return position

    def update(self, rows: Rows, at: Int[np.ndarray, "episode query"]) -> None:
        unknown = set(rows) - set(self.spec)
        if unknown:
            raise ValueError(f"there is no column {min(unknown)!r}; the columns are {', '.join(self.spec)}")
        if at.ndim == 2 and len(at) == self.episodes and (at >= self.counts[:, None]).any():
            raise ValueError("there is no such row to change")
        chosen = at >= 0
        self._check_cells(rows, at, chosen, "changed")
        self._put(rows, *chosen.nonzero(), at[chosen])

    def remove(self, rows: Bool[np.ndarray, "episode rows"]) -> None:
        if rows.shape != (self.episodes, self._longest):
            raise ValueError(f"rows must be [{self.episodes}, {self._longest}], got {list(rows.shape)}")
        kept = ~rows & (np.arange(self._longest) < self.counts[:, None])
        left = kept.sum(1)
        if not (kept & (np.arange(self._longest) >= left[:, None])).any():
            # Only the youngest rows go: nothing has to move.
            self._count(left)
            for index in self._index.values():
                index.keep_first(left)
            return
        order = np.argsort(~kept, axis=1, kind="stable")
        for storage in self._columns.values():
            storage[:, : self._longest] = storage[np.arange(self.episodes)[:, None], order]
        self._count(left)
        self._reindex()

    def nearest(self, key: str, query: Float[np.ndarray, "episode query embed"], k: int) -> Neighbours:
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if key not in self._index:
            raise ValueError(f"{key!r} is not a key column; the key columns are {', '.join(self.keys)}")
        width = self.spec[key].shape[0]
        if query.shape[0] != self.episodes or query.ndim != 3 or query.shape[2] != width:
            raise ValueError(f"query must be [{self.episodes}, any, {width}], got {list(query.shape)}")
        shape = (*query.shape[:2], k)
        if self._longest == 0:
            if not np.isfinite(query).all():
                raise ValueError("the query contains NaN or infinity")
            columns = {name: np.zeros((*shape, *c.shape), c.dtype) for name, c in self.spec.items()}
            return Neighbours(columns, np.zeros(shape, np.float32), np.zeros(shape, bool), np.full(shape, -1))
        row, distance = self._index[key].nearest(query, k, self.counts)
        everywhere = self._shortest >= k
        if not everywhere:
            missing = ((0, 0), (0, k - row.shape[1]))
            distance = np.pad(distance, missing, constant_values=np.inf)
            hidden = ~np.isfinite(distance)
            row, distance = np.where(hidden, 0, np.pad(row, missing)), np.where(hidden, np.float32(0), distance)
        row, distance = row.reshape(shape), distance.reshape(shape)
        if self.episodes == 1:
            columns = {name: cells[0].take(row[0], axis=0)[None] for name, cells in self._columns.items()}
        else:
            episode = np.arange(self.episodes)[:, None, None]
            columns = {name: cells[episode, row] for name, cells in self._columns.items()}
        if everywhere:
            return Neighbours(columns, distance, row >= 0, row)
        hidden = hidden.reshape(shape)
        for cells in columns.values():
            cells[hidden] = 0
        return Neighbours(columns, distance, ~hidden, np.where(hidden, -1, row))

    def linked(self, key: str, k: int) -> Bool[np.ndarray, "episode rows other"]:
        """Which rows are among the k nearest of each row; every row against every other, for small memories."""
        keys = measured(self.column(key), self.metric, self.scale)
        empty = np.arange(self._longest) >= self.counts[:, None]
        square = np.square(keys[:, :, None] - keys[:, None]).sum(-1)
        square[np.broadcast_to(empty[:, None], square.shape)] = np.inf
        nearest = square.argsort(-1, kind="stable")[..., :k]
        found = np.zeros(square.shape, bool)
        np.put_along_axis(found, nearest, True, -1)
        return found & ~empty[:, None]

    # --- storage ----------------------------------------------------------------------------------

    def _put(self, rows: Rows, episode: Any, query: Any, slot: Any) -> None:
        """These queries go to these slots: a place for each, or one episode and two slices."""
        for name, cells in rows.items():
            self._columns[name][episode, slot] = cells[episode, query]
        for key in self.keys:
            if key in rows:
                self._index[key].note(episode, slot)

    def _count(self, counts: Int[np.ndarray, " episode"]) -> None:
        self.counts, rows = counts, counts.tolist()
        self._longest, self._shortest = max(rows), min(rows)

    def _reindex(self) -> None:
        centred = {key: self._index[key].origin is not None for key in self.keys} if hasattr(self, "_index") else {}
        self._index = {
            key: SearchIndex(self._columns[key], self.counts, self.metric, centred.get(key, False), self.scale)
            for key in self.keys
        }

    def _make_room(self, rows: int) -> None:
        if self.capacity is not None and rows > self.capacity:
            raise MemoryFull(f"the memory holds {self.capacity} rows and this write needs {rows}; nothing was written")
        if rows <= self._slots:
            return
        self._slots = -(-max(rows, 2 * self._slots) // BLOCKS) * BLOCKS
        for name, storage in self._columns.items():
            larger = np.zeros((self.episodes, self._slots, *storage.shape[2:]), storage.dtype)
            larger[:, : self._longest] = storage[:, : self._longest]
            self._columns[name] = larger
        self._reindex()

    def _check_cells(self, rows: Rows, places: np.ndarray, chosen: np.ndarray, done: str) -> None:
        if places.ndim != 2 or places.shape[0] != self.episodes:
            raise ValueError(f"rows must be told for [{self.episodes}, any], got {list(places.shape)}")
        for name, cells in rows.items():
            expected = (*places.shape, *self.spec[name].shape)
            if cells.shape != expected:
                raise ValueError(f"column {name!r} must be {list(expected)}, got {list(cells.shape)}")
        for key in self.keys:
            told = rows.get(key) if chosen.all() else rows[key][chosen] if key in rows else None
            if told is not None and not np.isfinite(np.vdot(told, told)):
                raise ValueError(f"key column {key!r} contains NaN or infinity; nothing was {done}")
