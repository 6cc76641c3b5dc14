"""The memory store (paper, section 2.1): rows with several named columns, recalled by nearest key.

One `Memory` holds the memories of several parallel episodes in preallocated tensors. Search is exact:
a `SearchIndex` proposes a few candidates more than asked for, true distances are then computed for those
alone, and its bound proves that nothing nearer was left out. Where the proof fails (many ties, or keys of very
different sizes) more are proposed, and in the last resort all rows are scanned. Equal distances go by age, the
older row first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apl.search_index import BLOCKS, Metric, SearchIndex, measured

SPARE_CANDIDATES = (2, 64)
"""Candidates proposed beyond k, so that rounding seldom decides who is among the k nearest; and how many are tried
where those left it open, as a few dozen equal rows do."""
FIRST_CAPACITY = 64
SCANNED_NUMBERS = 1 << 20
"""Key entries compared at once in a full scan, which answers where ties or rounding leave the fast pass unproven."""


class MemoryFull(RuntimeError):
    """A memory with a fixed capacity was asked to take more rows than it may hold."""


@dataclass(frozen=True)
class Column:
    """The type of one column: the shape of a cell and its dtype."""

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Neighbours:
    """The rows recalled for each query, nearest first. Where `mask` is False there was no row to recall."""

    columns: Mapping[str, Tensor]
    """Every column of the recalled rows, each `[*query, neighbours, *cell]`; zeros where masked."""
    distance: Float[Tensor, "*query neighbours"]
    mask: Bool[Tensor, "*query neighbours"]
    row: Int[Tensor, "*query neighbours"]
    """Position of the row in its memory; -1 where masked."""

    @property
    def k(self) -> int:
        return self.distance.shape[-1]

    def flatten(self) -> Neighbours:
        """Merge the axes before `neighbours` into one axis of queries."""

        def merge(tensor: Tensor) -> Tensor:
            return tensor.flatten(0, self.distance.ndim - 2)

        columns = {name: merge(column) for name, column in self.columns.items()}
        return Neighbours(columns, merge(self.distance), merge(self.mask), merge(self.row))

    @staticmethod
    def join(parts: list[Neighbours]) -> Neighbours:
        """Neighbours recalled through different key columns, side by side."""
        axis = parts[0].distance.ndim - 1
        columns = {name: torch.cat([p.columns[name] for p in parts], axis) for name in parts[0].columns}
        return Neighbours(
            columns,
            torch.cat([p.distance for p in parts], axis),
            torch.cat([p.mask for p in parts], axis),
            torch.cat([p.row for p in parts], axis),
        )


class Memory:
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
        self.counts: Int[Tensor, " episode"] = torch.zeros(episodes, dtype=torch.int64)
        self._longest = self._shortest = 0
        self._slots = -(-(capacity or FIRST_CAPACITY) // BLOCKS) * BLOCKS
        self._columns = {n: torch.zeros(episodes, self._slots, *c.shape, dtype=c.dtype) for n, c in columns.items()}
        self._flat = self._flattened()
        self._index = {key: SearchIndex(self._columns[key], self.counts, metric) for key in keys}

    def __len__(self) -> int:
        """Rows of the fullest episode."""
        return self._longest

    def column(self, name: str) -> Tensor:
        """A view of one column, `[episode, rows, *cell]`; rows beyond an episode's count are meaningless."""
        return self._columns[name][:, : self._longest]

    def clear(self) -> None:
        """Forget everything; the space stays."""
        self.counts.zero_()
        self._longest = self._shortest = 0
        self._index = {key: SearchIndex(self._columns[key], self.counts, self.metric) for key in self.keys}

    @torch.no_grad()
    def write(self, rows: Mapping[str, Tensor], chosen: Bool[Tensor, "episode query"]) -> Int[Tensor, "episode query"]:
        """Append the chosen rows; returns where each went, -1 for those not chosen.

        Values are detached: nothing in the memory carries a gradient.
        """
        self._check_rows(rows, chosen)
        picked = chosen.numpy()
        episode, query = picked.nonzero()
        if not len(query):
            return torch.full(chosen.shape, -1)
        values = {name: self._picked(rows[name], picked, len(query)) for name in self.spec}
        placed = {key: self._index[key].placed(values[key], episode) for key in self.keys}
        square_norms = {key: np.einsum("rd,rd->r", keys, keys) for key, keys in placed.items()}
        largest = {key: float(norms.max()) for key, norms in square_norms.items()}
        for key, norm in largest.items():
            if not math.isfinite(norm):
                raise ValueError(f"key column {key!r} contains NaN or infinity; nothing was written")
        counts = self.counts.numpy()
        position = np.where(picked, counts[:, None] + picked.cumsum(1) - 1, -1)
        self._make_room(int(position.max()) + 1)
        where: slice | np.ndarray = slice(self._longest, self._longest + len(query))
        if self.episodes > 1:
            where = position[episode, query] + self._slots * episode
        for name in self.spec:
            self._flat[name][where] = values[name]
        for key, index in self._index.items():
            index.put(where, placed[key], square_norms[key], largest[key])
        self._count(torch.from_numpy(counts + picked.sum(1)))
        return torch.from_numpy(position)

    @torch.no_grad()
    def remove(self, rows: Bool[Tensor, "episode rows"]) -> None:
        """Forget the marked rows; the others close up, keeping their age order."""
        if rows.shape != (self.episodes, self._longest):
            raise ValueError(f"rows must be [{self.episodes}, {self._longest}], got {list(rows.shape)}")
        kept = ~rows & (torch.arange(self._longest) < self.counts[:, None])
        left = kept.sum(1)
        empty = torch.arange(self._slots) >= left[:, None]
        if not bool((kept & empty[:, : self._longest]).any()):
            # Only the youngest rows go: nothing has to move.
            self._count(left)
            for index in self._index.values():
                index.square_norms[empty.numpy()] = np.inf
            return
        order = kept.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        for storage in self._columns.values():
            storage[:, : self._longest] = storage[torch.arange(self.episodes)[:, None], order]
        self._count(left)
        self._reindex()

    def nearest(self, key: str, query: Float[Tensor, "episode query embed"], k: int) -> Neighbours:
        """The k nearest rows by one key column, with true distances; fewer rows than k is no error.

        The distance carries gradient into `query`; everything recalled is constant.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if key not in self._index:
            raise ValueError(f"{key!r} is not a key column; the key columns are {', '.join(self.keys)}")
        width = self.spec[key].shape[0]
        if query.shape[0] != self.episodes or query.ndim != 3 or query.shape[2] != width:
            raise ValueError(f"query must be [{self.episodes}, any, {width}], got {list(query.shape)}")
        if self._longest == 0:
            return self._nothing(query, k)

        return self._nearest(key, measured(query, self.metric), k, *SPARE_CANDIDATES)

    def _nearest(
        self, key: str, query: Float[Tensor, "episode query embed"], k: int, spare: int, *more: int
    ) -> Neighbours:
        constant = query.detach()
        take = min(k + spare, self._longest)
        proposal = self._index[key].propose(constant, take, self._longest)
        candidate = proposal.row
        square = self._square_distances(key, constant, candidate)
        # Candidates arrive oldest first, so a stable sort breaks ties by age.
        order = square.argsort(1, kind="stable")[:, :k]
        lines = np.arange(len(order))[:, None]
        row, square = candidate[lines, order], square[lines, order]
        if k < take:
            unsure = ~(square[:, -1] < proposal.complete_below)
            if unsure.any():
                unsure &= np.isfinite(proposal.complete_below)
            if unsure.any():
                if more:
                    return self._nearest(key, query, k, *more)
                if self._longest >= 2 * self._index[key].rows_when_centred:
                    self._index[key] = SearchIndex(self._columns[key], self.counts, self.metric, centred=True)
                    return self._nearest(key, query, k, *SPARE_CANDIDATES)
                row[unsure] = self._scan(key, constant, k, torch.from_numpy(unsure).view(query.shape[:2]))
                square = self._square_distances(key, constant, row)
        return self._recalled(key, query, row, np.sqrt(square), k)

    @torch.no_grad()
    def links(self, key: str, k: int) -> Bool[Tensor, "episode rows other"]:
        """Which rows are among the k nearest of each row; every row against every other, for small memories."""
        keys = measured(self.column(key), self.metric)
        empty = torch.arange(self._longest) >= self.counts[:, None]
        distance = torch.cdist(keys, keys).masked_fill(empty[:, None], torch.inf)
        nearest = distance.topk(min(k, self._longest), largest=False).indices
        return torch.zeros_like(distance, dtype=torch.bool).scatter_(2, nearest, True) & ~empty[:, None]

    # --- search -----------------------------------------------------------------------------------

    def _flattened(self) -> dict[str, np.ndarray]:
        """The storage of the columns, the slots of one episode after those of another."""
        return {name: storage.flatten(0, 1).numpy() for name, storage in self._columns.items()}

    def _places(self, row: Int[np.ndarray, "query neighbours"]) -> Int[np.ndarray, "query neighbours"]:
        """Rows of the queries' episodes as places in `_flat`."""
        if self.episodes == 1:
            return row
        return row + np.repeat(np.arange(self.episodes) * self._slots, len(row) // self.episodes)[:, None]

    def _hidden(self, row: Int[np.ndarray, "query neighbours"]) -> np.ndarray:
        """Where a candidate is an empty slot."""
        return row >= np.repeat(self.counts.numpy(), len(row) // self.episodes)[:, None]

    def _square_distances(
        self, key: str, query: Tensor, row: Int[np.ndarray, "query candidates"]
    ) -> Float[np.ndarray, "query candidates"]:
        """True ones, from the differences themselves; infinite for empty slots."""
        rows = self._flat[key].take(self._places(row), axis=0)
        if self.metric == "cosine":
            rows = measured(torch.from_numpy(rows), self.metric).numpy()
        rows -= query.numpy().reshape(-1, 1, query.shape[2])
        square = np.einsum("qkd,qkd->qk", rows, rows)
        if self._shortest < row.shape[1]:
            square[self._hidden(row)] = np.inf
        return square

    def _recalled(
        self, key: str, query: Tensor, row: np.ndarray, distance: Float[np.ndarray, "query neighbours"], k: int
    ) -> Neighbours:
        """The rows in full; places for which there is no row are masked and zero."""
        everywhere = self._shortest >= k
        if not everywhere:
            missing = ((0, 0), (0, k - row.shape[1]))
            row = np.pad(row, missing, constant_values=self._slots)
            hidden = self._hidden(row)
            row, distance = np.where(hidden, 0, row), np.where(hidden, np.float32(0), np.pad(distance, missing))
        places = self._places(row)
        columns = {name: self._flat[name].take(places, axis=0) for name in self.spec}
        if everywhere:
            mask = np.ones(row.shape, bool)
        else:
            mask, row = ~hidden, np.where(hidden, -1, row)
            for cells in columns.values():
                cells[hidden] = 0

        def apart(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array.reshape(*query.shape[:2], *array.shape[1:]))

        found = Neighbours({n: apart(c) for n, c in columns.items()}, apart(distance), apart(mask), apart(row))
        if query.requires_grad and torch.is_grad_enabled():
            apart_by = query[:, :, None] - measured(found.columns[key], self.metric)
            live = torch.linalg.vector_norm(apart_by, dim=-1).masked_fill(~found.mask, 0)
            # The value stays the one without gradient to the last bit: an answer depends on the rows alone.
            return replace(found, distance=live + (found.distance - live.detach()))
        return found

    def _scan(self, key: str, query: Tensor, k: int, unsure: Bool[Tensor, "episode query"]) -> np.ndarray:
        """The k nearest of each unsure query, over all rows in double precision."""
        rows = measured(self._columns[key][:, : self._longest], self.metric).double()
        empty = torch.arange(self._longest) >= self.counts[:, None]
        at_once = max(1, SCANNED_NUMBERS // (rows.shape[1] * rows.shape[2]))
        found = []
        for episode, q in zip(*(part.split(at_once) for part in unsure.nonzero(as_tuple=True)), strict=True):
            distance = (rows[episode] - query[episode, q, None].double()).norm(dim=-1).float()
            found.append(distance.masked_fill(empty[episode], torch.inf).sort(dim=-1, stable=True).indices[:, :k])
        return torch.cat(found).numpy()

    def _nothing(self, query: Tensor, k: int) -> Neighbours:
        shape = (*query.shape[:2], k)
        columns = {name: torch.zeros(*shape, *c.shape, dtype=c.dtype) for name, c in self.spec.items()}
        mask = torch.zeros(shape, dtype=torch.bool)
        return Neighbours(columns, torch.zeros(shape), mask, torch.full(shape, -1))

    # --- storage ----------------------------------------------------------------------------------

    @staticmethod
    def _picked(values: Tensor, picked: np.ndarray, count: int) -> np.ndarray:
        """The chosen ones of `[episode, query, *cell]`, episode by episode."""
        array = values.detach().numpy()
        return array.reshape(-1, *array.shape[2:]) if count == picked.size else array[picked]

    def _count(self, counts: Int[Tensor, " episode"]) -> None:
        self.counts = counts
        held = counts.tolist()
        self._longest, self._shortest = max(held), min(held)

    def _reindex(self) -> None:
        for key, index in self._index.items():
            centred = index.origin is not None
            self._index[key] = SearchIndex(self._columns[key], self.counts, self.metric, centred)

    def _make_room(self, rows: int) -> None:
        if self.capacity is not None and rows > self.capacity:
            raise MemoryFull(f"the memory holds {self.capacity} rows and this write needs {rows}; nothing was written")
        if rows <= self._slots:
            return
        self._slots = -(-max(rows, 2 * self._slots) // BLOCKS) * BLOCKS
        for name, storage in self._columns.items():
            larger = torch.zeros(self.episodes, self._slots, *storage.shape[2:], dtype=storage.dtype)
            larger[:, : self._longest] = storage[:, : self._longest]
            self._columns[name] = larger
        self._flat = self._flattened()
        self._reindex()

    def _check_rows(self, rows: Mapping[str, Tensor], chosen: Tensor) -> None:
        if set(rows) != set(self.spec):
            raise ValueError(f"rows must have exactly the columns {', '.join(self.spec)}; got {', '.join(rows)}")
        if chosen.ndim != 2 or chosen.shape[0] != self.episodes:
            raise ValueError(f"chosen must be [{self.episodes}, any], got {list(chosen.shape)}")
        for name, value in rows.items():
            expected = (*chosen.shape, *self.spec[name].shape)
            if value.shape != expected:
                raise ValueError(f"column {name!r} must be {list(expected)}, got {list(value.shape)}")
