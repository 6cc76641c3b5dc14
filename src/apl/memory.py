"""The memory store (paper, section 2.1): rows with several named columns, recalled by nearest key.

One `Memory` holds the memories of several parallel episodes in preallocated tensors. Search is exact:
a fast float32 pass proposes a few candidates more than asked for, true distances are then computed for
those alone, and a bound on the rounding error of the fast pass proves that nothing nearer was left out.
The rare query for which the proof fails (many ties, or keys that share a huge offset) is answered by a
full scan. Equal distances go by age, the older row first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Metric = Literal["euclidean", "cosine"]

SPARE_CANDIDATES = 4
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


@dataclass
class SearchIndex:
    """What makes one key column searchable: keys moved to a common origin, and their squared norms."""

    origin: Float[Tensor, "episode embed"]
    keys: Float[Tensor, "episode capacity embed"]
    norms: Float[Tensor, "episode capacity"]
    """Infinite for empty slots, so that the search needs no mask."""
    largest_norm: float = 0.0


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
        self._longest = 0
        slots = FIRST_CAPACITY if capacity is None else capacity
        self._columns = {name: torch.zeros(episodes, slots, *c.shape, dtype=c.dtype) for name, c in columns.items()}
        self._index = {key: self._empty_index(key, slots) for key in keys}
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
        self._longest = 0
        for index in self._index.values():
            index.norms.fill_(torch.inf)
            index.largest_norm = 0.0

    @torch.no_grad()
    def write(
        self, rows: Mapping[str, Tensor], chosen: Bool[Tensor, "episode query"]
    ) -> Int[Tensor, "episode query"]:
        """Append the chosen rows; returns where each went, -1 for those not chosen.

        Values are detached: nothing in the memory carries a gradient.
        """
        self._check_rows(rows, chosen)
        position = torch.where(chosen, self.counts[:, None] + chosen.cumsum(1) - 1, -1)
        longest = int(position.max()) + 1 if position.numel() else 0
        if longest == 0:
            return position
        self._make_room(longest)
        episode, query = chosen.nonzero(as_tuple=True)
        slot = position[episode, query]
        for name, storage in self._columns.items():
            storage[episode, slot] = rows[name].detach()[episode, query].to(storage.dtype)
        was_empty = self.counts == 0
        self.counts += chosen.sum(1)
        self._longest = max(self._longest, longest)
        for key, index in self._index.items():
            if bool(was_empty.any()):
                first = self._measured(self._columns[key][:, 0])
                index.origin[was_empty] = first[was_empty]
            self._refresh(key, episode, slot)
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
        self.counts = kept.sum(1)
        for key in self.keys:
            self._rebuild(key)
        self._longest = int(self.counts.max())

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

        query = self._measured(query)
        candidate, proven = self._propose(self._index[key], query.detach(), min(k + SPARE_CANDIDATES, self._longest))
        episode = self._episode[:, None, None]
        distance = self._distance(key, query, candidate)
        mask = candidate < self.counts[:, None, None]
        ranked = distance.detach().masked_fill(~mask, torch.inf)
        # Candidates arrive oldest first, so a stable sort breaks ties by age.
        ranked, order = ranked.sort(dim=-1, stable=True)
        if k < order.shape[-1]:
            # `proven` is infinite where an episode has fewer rows than candidates: all of them are here.
            unsure = ~((ranked[..., k - 1].square() < proven) | (proven == torch.inf))
            order = order[..., :k]
            if bool(unsure.any()):
                candidate = candidate.clone()
                self._scan(key, query.detach(), k, unsure, candidate, order)
                distance = self._distance(key, query, candidate)
                mask = candidate < self.counts[:, None, None]
        row = candidate.gather(-1, order)
        mask = mask.gather(-1, order)
        distance = distance.gather(-1, order)
        if row.shape[-1] < k:
            pad = (0, k - row.shape[-1])
            row, mask, distance = (torch.nn.functional.pad(t, pad) for t in (row, mask, distance))
        everywhere = bool(mask.all())
        columns = {}
        for name, storage in self._columns.items():
            cells = storage[episode, row]
            columns[name] = cells if everywhere else cells.masked_fill_(~mask.view(*mask.shape, *[1] * (cells.ndim - 3)), 0)
        if not everywhere:
            row, distance = row.masked_fill(~mask, -1), distance.masked_fill(~mask, 0)
        return Neighbours(columns, distance, mask, row)

    @torch.no_grad()
    def links(self, key: str, k: int) -> Bool[Tensor, "episode rows other"]:
        """Which rows are among the k nearest of each row; every row against every other, for small memories."""
        keys = self._measured(self.column(key))
        empty = torch.arange(self._longest) >= self.counts[:, None]
        distance = torch.cdist(keys, keys).masked_fill(empty[:, None], torch.inf)
        nearest = distance.topk(min(k, self._longest), largest=False).indices
        return torch.zeros_like(distance, dtype=torch.bool).scatter_(2, nearest, True) & ~empty[:, None]

    # --- search -----------------------------------------------------------------------------------

    def _propose(self, index: SearchIndex, query: Tensor, take: int) -> tuple[Tensor, Tensor]:
        """Likely nearest rows (oldest first), and the squared distance below which the list is complete."""
        moved = query - index.origin[:, None]
        keys, norms = index.keys[:, : self._longest], index.norms[:, : self._longest]
        # |m|² - 2qm orders the rows as |q - m|² does: |q|² is the same for all rows of a query.
        score = torch.baddbmm(norms[:, None], moved, keys.transpose(1, 2), alpha=-2)
        best, candidate = score.topk(take, largest=False)
        length = torch.linalg.vector_norm(moved, dim=-1)
        width = query.shape[-1]
        rounding = 4 * width * torch.finfo(torch.float32).eps * (length + index.largest_norm).square()
        proven = best[..., -1] + length.square() - rounding
        return candidate.sort(dim=-1).values, proven

    def _scan(self, key: str, query: Tensor, k: int, unsure: Tensor, candidate: Tensor, order: Tensor) -> None:
        """Answer the unsure queries exactly, in double precision, over all rows."""
        if not bool(torch.isfinite(query).all()):
            raise ValueError("the query contains NaN or infinity")
        rows = self._measured(self._columns[key][:, : self._longest]).double()
        empty = torch.arange(self._longest) >= self.counts[:, None]
        at_once = max(1, SCANNED_NUMBERS // (rows.shape[1] * rows.shape[2]))
        for episode, q in zip(*(part.split(at_once) for part in unsure.nonzero(as_tuple=True)), strict=True):
            distance = (rows[episode] - query[episode, q, None].double()).norm(dim=-1).float()
            ranked, best = distance.masked_fill(empty[episode], torch.inf).sort(dim=-1, stable=True)
            best = torch.where(ranked[:, :k].isfinite(), best[:, :k], self._longest)
            candidate[episode, q, :k] = best
            order[episode, q] = torch.arange(k)

    def _distance(self, key: str, query: Tensor, candidate: Tensor) -> Tensor:
        rows = self._columns[key][self._episode[:, None, None], candidate.clamp(max=self._longest - 1)]
        return torch.linalg.vector_norm(query[:, :, None] - self._measured(rows), dim=-1)

    def _nothing(self, query: Tensor, k: int) -> Neighbours:
        shape = (*query.shape[:2], k)
        columns = {name: torch.zeros(*shape, *c.shape, dtype=c.dtype) for name, c in self.spec.items()}
        mask = torch.zeros(shape, dtype=torch.bool)
        return Neighbours(columns, torch.zeros(shape), mask, torch.full(shape, -1))

    def _measured(self, keys: Tensor) -> Tensor:
        """Keys as the metric sees them: the cosine metric is the euclidean one between unit vectors."""
        return torch.nn.functional.normalize(keys, dim=-1) if self.metric == "cosine" else keys

    # --- storage ----------------------------------------------------------------------------------

    def _empty_index(self, key: str, slots: int) -> SearchIndex:
        width = self.spec[key].shape[0]
        keys = torch.zeros(self.episodes, slots, width)
        return SearchIndex(torch.zeros(self.episodes, width), keys, torch.full((self.episodes, slots), torch.inf))

    def _refresh(self, key: str, episode: Tensor, slot: Tensor) -> None:
        index = self._index[key]
        moved = self._measured(self._columns[key][episode, slot]) - index.origin[episode]
        norms = moved.square().sum(-1)
        index.keys[episode, slot], index.norms[episode, slot] = moved, norms
        index.largest_norm = max(index.largest_norm, float(norms.max()) ** 0.5)

    def _rebuild(self, key: str) -> None:
        """Index one key column anew, with the mean of its rows as the origin."""
        index = self._index[key]
        valid = torch.arange(index.norms.shape[1]) < self.counts[:, None]
        total = (self._measured(self._columns[key]) * valid[..., None]).sum(1)
        index.origin = total / self.counts.clamp(min=1)[:, None]
        index.norms.fill_(torch.inf)
        index.largest_norm = 0.0
        episode, slot = valid.nonzero(as_tuple=True)
        if len(slot):
            self._refresh(key, episode, slot)

    def _make_room(self, rows: int) -> None:
        slots = next(iter(self._columns.values())).shape[1]
        if rows <= slots:
            return
        if self.capacity is not None:
            raise MemoryFull(f"the memory holds {self.capacity} rows and this write needs {rows}; nothing was written")
        slots = max(rows, 2 * slots)
        for name, storage in self._columns.items():
            larger = torch.zeros(self.episodes, slots, *storage.shape[2:], dtype=storage.dtype)
            larger[:, : self._longest] = storage[:, : self._longest]
            self._columns[name] = larger
        for key in self.keys:
            self._index[key] = self._empty_index(key, slots)
            self._rebuild(key)

    def _check_rows(self, rows: Mapping[str, Tensor], chosen: Tensor) -> None:
        if set(rows) != set(self.spec):
            raise ValueError(f"rows must have exactly the columns {', '.join(self.spec)}; got {', '.join(rows)}")
        if chosen.ndim != 2 or chosen.shape[0] != self.episodes:
            raise ValueError(f"chosen must be [{self.episodes}, any], got {list(chosen.shape)}")
        for name, value in rows.items():
            expected = (*chosen.shape, *self.spec[name].shape)
            if value.shape != expected:
                raise ValueError(f"column {name!r} must be {list(expected)}, got {list(value.shape)}")
        for key in self.keys:
            if not bool(torch.isfinite(rows[key]).all()):
                raise ValueError(f"key column {key!r} contains NaN or infinity; nothing was written")
