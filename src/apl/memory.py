"""The memory store (paper, section 2.1): rows with several named columns, recalled by nearest key.

One `Memory` holds the memories of several parallel episodes in preallocated tensors. Search is exact:
a `SearchIndex` proposes a few candidates more than asked for, true distances are then computed for those
alone, and its bound proves that nothing nearer was left out. The rare query for which the proof fails
(many ties, or keys of very different sizes) is answered by a full scan. Equal distances go by age, the
older row first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apl.search_index import BLOCKS, Metric, SearchIndex, measured

SPARE_CANDIDATES = 2
"""Candidates proposed beyond k, so that rounding seldom decides who is among the k nearest."""
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
            raise ValueError(f"key column {missing[0]!r} is not a column" if missing else "at least one key column is needed")
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
        self._index = {key: SearchIndex(self._columns[key], self.counts, metric) for key in keys}
        self._episode = torch.arange(episodes)

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
    def write(
        self, rows: Mapping[str, Tensor], chosen: Bool[Tensor, "episode query"]
    ) -> Int[Tensor, "episode query"]:
        """Append the chosen rows; returns where each went, -1 for those not chosen.

        Values are detached: nothing in the memory carries a gradient.
        """
        self._check_rows(rows, chosen)
        taken = chosen.flatten().nonzero().squeeze(1)
        if not len(taken):
            return torch.full(chosen.shape, -1)
        everything = len(taken) == chosen.numel()
        values = {name: rows[name].detach().flatten(0, 1) for name in self.spec}
        if not everything:
            values = {name: value.index_select(0, taken) for name, value in values.items()}
        episode = None if self.episodes == 1 else taken // chosen.shape[1]
        placed = {key: self._index[key].placed(values[key], episode) for key in self.keys}
        norms = {key: torch.linalg.vector_norm(keys, dim=-1) for key, keys in placed.items()}
        largest = {key: float(norm.max()) for key, norm in norms.items()}
        for key, norm in largest.items():
            if not math.isfinite(norm):
                raise ValueError(f"key column {key!r} contains NaN or infinity; nothing was written")
        position = self._positions(chosen, len(taken))
        self._make_room(int(position.max()) + 1)
        where = self._flat(position.view(-1) if everything else position.view(-1).index_select(0, taken), episode)
        for name, storage in self._columns.items():
            self._put(storage, where, values[name])
        for key, index in self._index.items():
            self._put(index.square_norms, where, norms[key].square_())
            if index.keys is not self._columns[key]:
                self._put(index.keys, where, placed[key])
            index.largest_norm = max(index.largest_norm, largest[key])
        self._count(self.counts + chosen.sum(1))
        return position

    @torch.no_grad()
    def remove(self, rows: Bool[Tensor, "episode rows"]) -> None:
        """Forget the marked rows; the others close up, keeping their age order."""
        if rows.shape != (self.episodes, self._longest):
            raise ValueError(f"rows must be [{self.episodes}, {self._longest}], got {list(rows.shape)}")
        kept = ~rows & (torch.arange(self._longest) < self.counts[:, None])
        order = kept.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        for storage in self._columns.values():
            storage[:, : self._longest] = storage[self._episode[:, None], order]
        self._count(kept.sum(1))
        self._reindex()

    def nearest(
        self, key: str, query: Float[Tensor, "episode query embed"], k: int
    ) -> Neighbours:
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

        query = measured(query, self.metric)
        take = min(k + SPARE_CANDIDATES, self._longest)
        proposal = self._index[key].propose(query.detach(), take, self._longest)
        candidate = proposal.row
        distance = self._distance(key, query, candidate)
        # Candidates arrive oldest first, so a stable sort breaks ties by age.
        ranked, order = self._hidden(distance.detach(), candidate).sort(dim=-1, stable=True)
        if k < take:
            order, ranked = order[..., :k], ranked[..., :k]
            proven = ranked[..., -1].square() < proposal.complete_below
            if not bool(proven.all()):
                unsure = ~proven & proposal.complete_below.isfinite()
                if bool(unsure.any()):
                    if self._longest >= 2 * self._index[key].rows_when_centred:
                        self._index[key] = SearchIndex(self._columns[key], self.counts, self.metric, centred=True)
                        return self.nearest(key, query, k)
                    candidate, order = self._scan(key, query.detach(), k, unsure, candidate, order)
                    distance = self._distance(key, query, candidate)
                    ranked = self._hidden(distance.detach(), candidate).gather(-1, order)
        row = candidate.gather(-1, order)
        distance = distance.gather(-1, order) if distance.requires_grad else ranked
        return self._recalled(row, distance, k)

    @torch.no_grad()
    def links(self, key: str, k: int) -> Bool[Tensor, "episode rows other"]:
        """Which rows are among the k nearest of each row; every row against every other, for small memories."""
        keys = measured(self.column(key), self.metric)
        empty = torch.arange(self._longest) >= self.counts[:, None]
        distance = torch.cdist(keys, keys).masked_fill(empty[:, None], torch.inf)
        nearest = distance.topk(min(k, self._longest), largest=False).indices
        return torch.zeros_like(distance, dtype=torch.bool).scatter_(2, nearest, True) & ~empty[:, None]

    # --- search -----------------------------------------------------------------------------------

    def _flat(self, slot: Tensor, episode: Tensor | None = None) -> Tensor:
        """Slots of episodes as places in storage whose two first axes are merged."""
        if self.episodes == 1:
            return slot
        return slot + self._slots * (self._episode[:, None, None] if episode is None else episode)

    def _cells(self, name: str, row: Int[Tensor, "episode query neighbours"]) -> Tensor:
        storage = self._columns[name]
        return storage.flatten(0, 1).index_select(0, self._flat(row).flatten()).view(*row.shape, *storage.shape[2:])

    def _distance(self, key: str, query: Tensor, candidate: Tensor) -> Tensor:
        return torch.linalg.vector_norm(query[:, :, None] - measured(self._cells(key, candidate), self.metric), dim=-1)

    def _hidden(self, distance: Tensor, candidate: Tensor) -> Tensor:
        """Infinite where a candidate is an empty slot."""
        if self._shortest >= candidate.shape[-1]:
            return distance
        return distance.masked_fill(candidate >= self.counts[:, None, None], torch.inf)

    def _recalled(self, row: Tensor, distance: Tensor, k: int) -> Neighbours:
        """The rows in full; places for which there is no row are masked and zero."""
        if self._shortest >= k:
            columns = {name: self._cells(name, row) for name in self.spec}
            return Neighbours(columns, distance, torch.ones_like(row, dtype=torch.bool), row)
        missing = (0, k - row.shape[-1])
        row = torch.nn.functional.pad(row, missing, value=self._slots)
        mask = row < self.counts[:, None, None]
        row, distance = row.masked_fill(~mask, 0), torch.nn.functional.pad(distance, missing).masked_fill(~mask, 0)
        columns = {}
        for name in self.spec:
            cells = self._cells(name, row)
            columns[name] = cells.masked_fill_(~mask.view(*mask.shape, *[1] * (cells.ndim - 3)), 0)
        return Neighbours(columns, distance, mask, row.masked_fill(~mask, -1))

    def _scan(
        self, key: str, query: Tensor, k: int, unsure: Tensor, candidate: Tensor, order: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Answer the unsure queries exactly, in double precision, over all rows."""
        candidate, order = candidate.clone(), order.clone()
        rows = measured(self._columns[key][:, : self._longest], self.metric).double()
        empty = torch.arange(self._longest) >= self.counts[:, None]
        at_once = max(1, SCANNED_NUMBERS // (rows.shape[1] * rows.shape[2]))
        for episode, q in zip(*(part.split(at_once) for part in unsure.nonzero(as_tuple=True)), strict=True):
            distance = (rows[episode] - query[episode, q, None].double()).norm(dim=-1).float()
            ranked, best = distance.masked_fill(empty[episode], torch.inf).sort(dim=-1, stable=True)
            candidate[episode, q, :k] = best[:, :k]
            order[episode, q] = torch.arange(k)
        return candidate, order

    def _nothing(self, query: Tensor, k: int) -> Neighbours:
        shape = (*query.shape[:2], k)
        columns = {name: torch.zeros(*shape, *c.shape, dtype=c.dtype) for name, c in self.spec.items()}
        mask = torch.zeros(shape, dtype=torch.bool)
        return Neighbours(columns, torch.zeros(shape), mask, torch.full(shape, -1))

    # --- storage ----------------------------------------------------------------------------------

    def _positions(self, chosen: Tensor, count: int) -> Int[Tensor, "episode query"]:
        if self.episodes == 1 and count == chosen.shape[1]:
            return torch.arange(self._longest, self._longest + count)[None]
        return torch.where(chosen, self.counts[:, None] + chosen.cumsum(1) - 1, -1)

    def _put(self, storage: Tensor, where: Tensor, values: Tensor) -> None:
        if self.episodes == 1:
            # The rows of one episode are neighbours in storage, in the order in which they were chosen.
            storage[0, self._longest : self._longest + len(values)] = values
        else:
            storage.flatten(0, 1).index_copy_(0, where, values.to(storage.dtype))

    def _count(self, counts: Int[Tensor, " episode"]) -> None:
        self.counts = counts
        self._longest, self._shortest = int(counts.max()), int(counts.min())

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
