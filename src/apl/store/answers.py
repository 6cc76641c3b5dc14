"""The values that a store answers with: snapshots, changes, recalled rows, class totals, and what a memory is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from apl.config import Metric
from apl.metric import measured
from apl.store.rows import Label, LabelTotal, Row


@dataclass(frozen=True)
class Snapshot:
    """Rows of a memory at one moment, oldest first, without their payloads."""

    ids: np.ndarray
    keys: np.ndarray
    labels: list[Label]
    surprise_nats: np.ndarray
    written_at: np.ndarray
    sources: list[str | None]
    counts: np.ndarray
    generation: int
    """The memory has changed since if `Store.generation()` returns another."""

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def of(rows: Sequence[Row], width: int, generation: int) -> Snapshot:
        return Snapshot(
            ids=np.array([row.id for row in rows], np.int64),
            keys=np.array([row.key for row in rows], np.float32).reshape(len(rows), width),
            labels=[row.label for row in rows],
            surprise_nats=np.array([row.surprise_nats for row in rows], np.float64),
            written_at=np.array([row.written_at for row in rows], np.float64),
            sources=[row.source for row in rows],
            counts=np.array([row.count for row in rows], np.int64),
            generation=generation,
        )


@dataclass(frozen=True)
class Changes:
    """What happened to a memory since an earlier generation: enough to bring a copy of it up to date."""

    rows: Snapshot
    """The rows that were added or updated, as they are now."""
    removed: list[int]
    """Ids that are gone. Some may be of rows that were also added in the meantime."""

    @property
    def generation(self) -> int:
        return self.rows.generation


@dataclass(frozen=True)
class Forgotten:
    """What forgetting a source did."""

    gone: list[int]
    """Ids of rows that consisted of this source alone."""
    rebuilt: list[int]
    """Ids of rows that are now the mean of what the other sources contributed."""


@dataclass(frozen=True)
class Recalled:
    """The rows nearest to each of several keys, without payloads: nearest first, the older first among equals."""

    rows: list[list[Row]]
    distances: list[np.ndarray]
    generation: int
    """Of the memory at the time of the search."""

    @property
    def ids(self) -> list[list[int]]:
        return [[row.id for row in rows] for rows in self.rows]

    @staticmethod
    def of(found: Sequence[Sequence[Row]], asked: np.ndarray, k: int, metric: Metric, generation: int) -> Recalled:
        """The k nearest of the rows found for each key, by their true distances."""
        nearest, distances = [], []
        for key, rows in zip(measured(asked, metric), found, strict=True):
            keys = np.array([row.key for row in rows], np.float32).reshape(len(rows), len(key))
            apart = measured(keys, metric).astype(np.float64) - key
            distance = np.sqrt(np.square(apart).sum(1)).astype(np.float32)
            order = np.lexsort(([row.id for row in rows], distance))[:k]
            nearest.append([rows[at] for at in order])
            distances.append(distance[order])
        return Recalled(nearest, distances, generation)


@dataclass(frozen=True)
class Record:
    """A memory's own record, cell by cell."""

    id: int
    name: str
    identity: str
    fingerprint: str
    width: int
    metric: Metric
    keep_sources: int
    created: float
    next_id: int
    generation: int
    state: str | None

    def info(self, rows: int) -> MemoryInfo:
        head = (self.name, self.fingerprint, self.width, self.created)
        return MemoryInfo(*head, rows, self.identity, bool(self.keep_sources))


@dataclass(frozen=True)
class MemoryInfo:
    """A memory as it is listed."""

    name: str
    fingerprint: str
    """The encoder that made the keys."""
    width: int
    created: float
    rows: int
    identity: str = ""
    """Random, made with the memory. Copies made by `save` share it; a memory made anew under the same name does not."""
    keep_sources: bool = True
    """Whether what each source contributed is kept, so that a source can be forgotten."""


@dataclass(frozen=True)
class Totals:
    """Classes of a memory at one moment, in the order in which they came."""

    generation: int
    classes: list[LabelTotal]
    complete: bool
    """All classes; otherwise only those that changed since an earlier generation."""
    state: Any | None
    """What the readers have learnt about the memory."""
