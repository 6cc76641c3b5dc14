"""The contract of every stored memory, whatever its backend.

- A write is one transaction: all of it happens or none of it, and when the call returns it is durable and visible to the
  next read. Ids count up from 1 and are never reused.
- Rows may be added, removed and updated in the same transaction, settings with them. An id can be reserved before its
  row is written, so that what is written beside it can name it.
- A row may be the mean of several examples (`count`). What named sources contributed is kept as one sum and count per row
  and source (`apl.store.sources`); nothing is kept of merged examples without a source.
- A memory has one writer, except where it is opened `shared` on a server. Opening a memory that another process writes
  raises `StoreBusy` (after `timeout` seconds). Any number may read; a reader compares `generation()` with that of its
  `Snapshot`, and asks for the `changes` when they differ.
- A store may be used from several threads; calls take turns.

A backend implements the methods that begin with an underscore; checks, locking and the public verbs are written once, here.
"""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from apl.config import Metric
from apl.metric import measured
from apl.store.errors import FingerprintMismatch, NoSuchMemory, RowChanged, StoreError
from apl.store.rows import (
    Changes,
    Forgotten,
    Label,
    LabelTotal,
    MemoryInfo,
    Nearest,
    NewRow,
    Recalled,
    Row,
    RowUpdate,
    Snapshot,
    SourceShare,
    Totals,
    Write,
    label_text,
)
from apl.store.validation import (
    checked_ids,
    checked_key,
    checked_label,
    checked_rows,
    checked_source,
    checked_updates,
    encoded,
)

ROWS_PER_BLOCK = 512
"""Rows fetched at a time by `rows()`, so that payloads of a large memory need not fit into RAM."""
SPARE = 8
"""Rows that a search returns beyond those asked for, so that a server's rounding does not decide which are nearest."""
RECEIPTS_KEPT = 10_000
"""Each new receipt replaces the oldest."""
GENERATIONS_FOLLOWED = 10_000
"""A copy that is further behind has to be loaded anew."""
_inherited: list["Store"] = []
"""Stores of the parent process, kept so that Python does not close their connections in a forked child."""


class Store(ABC):
    """One named memory, open. Use it in a `with` statement, or close it."""

    shared = False
    """Other processes may write at the same time."""
    metric: Metric = "euclidean"
    """The metric of `recall` and `totals`."""
    returns_generation = False
    """`recall` returns the generation of its answer."""

    def __init__(self, info: MemoryInfo, read_only: bool) -> None:
        self.name = info.name
        self.fingerprint = info.fingerprint
        self.width = info.width
        self.created = info.created
        self.identity = info.identity
        self.keep_sources = info.keep_sources
        self.read_only = read_only
        self._lock = threading.RLock()
        self._closed = False
        self._process = os.getpid()
        self._reserved: set[int] = set()
        """Ids that were reserved and not yet written."""

    # --- writing ----------------------------------------------------------------------------------

    def reserve(self, count: int = 1) -> list[int]:
        """Ids for rows that are about to be written; no other writer gets them."""
        with self._using(writing=True):
            first = self._reserve(count)
            ids = list(range(first, first + count))
            self._reserved.update(ids)
            return ids

    def append(self, rows: Sequence[NewRow], *, settings: Mapping[str, Any] | None = None) -> list[int]:
        """Write rows, and settings with them, in one transaction; returns the new ids in order."""
        return self.replace((), rows, settings=settings)

    def replace(
        self,
        remove: Iterable[int],
        add: Sequence[NewRow],
        *,
        update: Iterable[RowUpdate] = (),
        settings: Mapping[str, Any] | None = None,
        receipts: Mapping[str, Any] | None = None,
        seen: Mapping[int, int] | None = None,
    ) -> list[int]:
        """Remove some rows, write others and update yet others in one transaction; returns the new ids in order.

        Nothing at all happens if a row to be removed or updated does not exist or has another generation than the `seen`
        one (`RowChanged`; an update may give it as `seen_generation`), or if a receipt of this key exists
        (`AlreadyAnswered`): what a receipt stands for happens once.
        """
        add, remove = checked_rows(add, self.width), checked_ids(remove)
        update, settings, receipts = checked_updates(update, self.width), encoded(settings), encoded(receipts)
        if not self.keep_sources:
            add = [replace(row, source=None, shares=()) for row in add]
            update = [replace(change, shares=()) for change in update]
        with self._using(writing=True):
            if both := set(remove) & {change.id for change in update}:
                raise StoreError(f"row {min(both)} is to be removed and updated at once; nothing was written")
            seen = {**(seen or {}), **{c.id: c.seen_generation for c in update if c.seen_generation is not None}}
            write = Write(remove, self._with_ids(add), update, settings, receipts, seen)
            if not write.is_empty:
                self._write(write)
            ids = [row.id for row in write.add if row.id is not None]
            self._reserved.difference_update(ids)
            return ids

    def delete(self, ids: Iterable[int]) -> list[int]:
        """Forget these rows, ignoring ids that do not exist. Returns the ids removed."""
        with self._using(writing=True):
            return self._delete(self._existing(checked_ids(ids)))

    def delete_label(self, label: Label) -> list[int]:
        """Forget a class. Returns the ids removed."""
        label = checked_label(label)
        with self._using(writing=True):
            return self._delete(self._labelled(label), (str(label),))

    def forget_source(self, source: str, *, settings: Mapping[str, Any] | None = None) -> Forgotten:
        """Leave no trace of a source, in one transaction: rows of it alone go, others become the mean of the rest."""
        source, values = _required(checked_source(source)), encoded(settings)
        with self._using(writing=True):
            if not self.keep_sources:
                raise StoreError(f"memory {self.name!r} keeps no sources: nothing can be forgotten by source")
            forgotten = self._forget_source(source, values)
            if forgotten.gone or forgotten.rebuilt:
                self._erased()
            return forgotten

    def update_settings(self, values: Mapping[str, Any]) -> None:
        """Set some of the memory's settings (anything JSON can hold), leaving the others as they are."""
        self.replace((), (), settings=values)

    def reindex(self) -> int:
        """Build the index anew from the rows; returns their number."""
        raise StoreError(f"memory {self.name!r} was opened without an index: give index=")

    def compact(self) -> None:
        """Give the space of deleted rows back to the system."""
        with self._using(writing=True):
            self._compact()

    # --- reading ----------------------------------------------------------------------------------

    def load(self) -> Snapshot:
        """Everything but the payloads, in arrays: what the search in RAM is filled from."""
        with self._using():
            return self._load()

    def oldest(self, most: int) -> Snapshot:
        """As `load`, but of at most this number of rows."""
        with self._using():
            return Snapshot.of(self._fetch(self._ids(most=most)), self.width, self._generation())

    def rows(self) -> Iterator[Row]:
        """Every row with its payload, oldest first. A row deleted while this runs may be left out."""
        with self._using():
            ids = self._ids()
        for start in range(0, len(ids), ROWS_PER_BLOCK):
            with self._using():
                block = self._fetch(ids[start : start + ROWS_PER_BLOCK])
            yield from block

    def new_rows(self) -> Iterator[NewRow]:
        """Every row with its payload and its shares, to be written elsewhere."""
        with self._using():
            ids = self._ids()
        for start in range(0, len(ids), ROWS_PER_BLOCK):
            yield from self.as_new(self.some_rows(ids[start : start + ROWS_PER_BLOCK]))

    def as_new(self, rows: Sequence[Row]) -> list[NewRow]:
        """Rows of this store with their shares, to be written elsewhere."""
        shares = self.shares([row.id for row in rows if row.has_shares])
        return [row.as_new(shares=tuple(shares.get(row.id, ()))) for row in rows]

    def changes(self, since: int) -> Changes | None:
        """What happened after that generation; None if it is too long ago, and everything has to be loaded."""
        with self._using():
            return self._changes(int(since))

    def shares(self, ids: Iterable[int]) -> dict[int, list[SourceShare]]:
        """What each source contributed to those of these rows that consist of several sources."""
        with self._using():
            return self._shares(checked_ids(ids))

    def rows_of_source(self, source: str) -> list[int]:
        """Ids of the rows that an example of this source began, or was merged into."""
        source = _required(checked_source(source))
        with self._using():
            return self._rows_of_source(source)

    def sources(self) -> list[tuple[str, Label]]:
        """Every named source in the memory, with the label of a row that it contributed to."""
        with self._using():
            return self._sources()

    def row(self, id: int) -> Row:
        found = self.some_rows([id])
        if not found:
            raise StoreError(f"memory {self.name!r} has no row {id}")
        return found[0]

    def some_rows(self, ids: Iterable[int]) -> list[Row]:
        """Those of these rows that exist, in the order of their ids."""
        with self._using():
            return self._fetch(checked_ids(ids))

    def payload(self, id: int) -> bytes | None:
        """The payload of a row, None if it was written without one."""
        return self.row(id).payload

    def nearest(self, key: np.ndarray, k: int) -> Nearest:
        """The k nearest rows, by id and distance alone."""
        found = self.recall(key[None], k)
        return Nearest(found.ids[0, found.mask[0]], found.distances[0, found.mask[0]])

    def recall(self, keys: np.ndarray, k: int) -> Recalled:
        """The k nearest rows of each of these keys, without payloads. A server searches its rows itself."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        asked = np.array([checked_key(key, self.width) for key in keys], np.float32).reshape(len(keys), self.width)
        with self._using():
            found, generation = self._recall(asked, k + SPARE) if len(asked) else ([], None)
        return Recalled.of(found, asked, k, self.metric, generation)

    def index_recall(self, k: int = 16, questions: int = 20) -> float | None:
        """The share of the k nearest rows that the approximate index finds, asked about some rows of the memory itself,
        which are not counted; None if there is no such index."""
        with self._using():
            if not self._has_index():
                return None
            ids = self._ids()
            asked = self._fetch(ids[:: max(1, len(ids) // questions)][:questions])
            shares = []
            for row in asked:
                wide, found = ({r.id for r in rows} - {row.id} for rows in self._compared(row.key, k + 1))
                shares.append(len(wide & found) / max(1, len(wide)))
        return round(float(np.mean(shares)), 4) if shares else None

    def totals(self, since: int | None = None) -> Totals:
        """Rows, examples and sum of keys of all classes, or, where the store can tell, of those that changed after a
        generation."""
        with self._using():
            return self._totals(since)

    def class_counts(self) -> dict[Label, tuple[int, int]]:
        """Rows and examples of each class, in the order in which the classes came."""
        with self._using():
            return self._class_counts()

    def ids(self, after: int = 0, most: int | None = None) -> list[int]:
        """Ids of all rows, oldest first, or of at most `most` beyond an id."""
        with self._using():
            return self._ids(after, most)

    def existing(self, ids: Iterable[int]) -> list[int]:
        """Those of these ids that rows have."""
        with self._using():
            return self._existing(checked_ids(ids))

    def ids_of_label(self, label: Label) -> list[int]:
        label = checked_label(label)
        with self._using():
            return self._labelled(label)

    def settings(self) -> dict[str, Any]:
        with self._using():
            return {key: json.loads(value) for key, value in self._settings().items()}

    def setting(self, key: str) -> Any | None:
        """One of the settings, without the others; None if it does not exist."""
        with self._using():
            found = self._settings(key).get(key)
        return None if found is None else json.loads(found)

    def receipt(self, key: str) -> Any | None:
        """What was written under this key by `replace(receipts=…)`; the latest 10,000 are kept."""
        with self._using():
            found = self._receipt(str(key))
        return None if found is None else json.loads(found)

    def count(self) -> int:
        with self._using():
            return self._count()

    def generation(self) -> int:
        """A number that grows with every write to this memory, by any process."""
        with self._using():
            return self._generation()

    @property
    def info(self) -> MemoryInfo:
        head = (self.name, self.fingerprint, self.width, self.created)
        return MemoryInfo(*head, self.count(), self.identity, self.keep_sources)

    def problems(self) -> list[str]:
        """What is wrong with the memory as stored; empty if nothing is."""
        with self._using():
            return self._problems()

    def close(self) -> None:
        if os.getpid() != self._process:
            # What a forked child inherits belongs to its parent: closing it here would close it there.
            _inherited.append(self)
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                self._close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what a backend implements ----------------------------------------------------------------

    @abstractmethod
    def _write(self, write: Write) -> None:
        """The one transaction. Raises `RowChanged` if a row to be removed or updated does not exist."""

    @abstractmethod
    def _forget_source(self, source: str, settings: dict[str, str]) -> Forgotten: ...

    @abstractmethod
    def _reserve(self, count: int) -> int:
        """The first of this number of ids."""

    @abstractmethod
    def _receipt(self, key: str) -> str | None: ...

    @abstractmethod
    def _changes(self, since: int) -> Changes | None: ...

    @abstractmethod
    def _shares(self, ids: list[int]) -> dict[int, list[SourceShare]]: ...

    @abstractmethod
    def _rows_of_source(self, source: str) -> list[int]: ...

    @abstractmethod
    def _sources(self) -> list[tuple[str, Label]]: ...

    @abstractmethod
    def _existing(self, ids: list[int]) -> list[int]: ...

    @abstractmethod
    def _labelled(self, label: Label) -> list[int]: ...

    @abstractmethod
    def _load(self) -> Snapshot: ...

    @abstractmethod
    def _ids(self, after: int = 0, most: int | None = None) -> list[int]: ...

    @abstractmethod
    def _fetch(self, ids: list[int]) -> list[Row]:
        """Those of these rows that exist, payloads included, in the order of their ids."""

    @abstractmethod
    def _settings(self, key: str | None = None) -> dict[str, str]:
        """All of them, or at least this one."""

    @abstractmethod
    def _generation(self) -> int: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _plain_errors(self) -> AbstractContextManager[None]:
        """Turns the errors of a database driver into `StoreError`s."""

    def _recall(self, keys: np.ndarray, k: int) -> tuple[list[list[Row]], int | None]:
        """At least the k nearest rows of each key, if there are as many, in any order; and the memory's generation."""
        snapshot = self._load()
        rows = measured(snapshot.keys, self.metric).astype(np.float64)
        distances = [np.square(rows - key).sum(1) for key in measured(keys, self.metric)]
        found = [self._fetch(sorted(snapshot.ids[np.argsort(far, kind="stable")[:k]].tolist())) for far in distances]
        return found, snapshot.generation

    def _has_index(self) -> bool:
        return False

    def _compared(self, key: np.ndarray, k: int) -> tuple[list[Row], list[Row]]:
        """The k nearest rows by an exact search, and by the approximate index."""
        raise NotImplementedError

    def _totals(self, since: int | None) -> Totals:
        snapshot = self._load()
        places: dict[str, list[int]] = {}
        for place, label in enumerate(snapshot.labels):
            places.setdefault(label_text(label), []).append(place)
        classes = [
            LabelTotal(
                snapshot.labels[at[0]],
                len(at),
                int(snapshot.counts[at].sum()),
                snapshot.counts[at] @ measured(snapshot.keys[at], self.metric).astype(np.float64),
            )
            for at in places.values()
        ]
        return Totals(snapshot.generation, classes, complete=True)

    def _class_counts(self) -> dict[Label, tuple[int, int]]:
        return {total.label: (total.rows, total.examples) for total in self._totals(None).classes}

    def _count(self) -> int:
        return sum(rows for rows, _ in self._class_counts().values())

    def _problems(self) -> list[str]:
        snapshot = self._load()
        broken = (~np.isfinite(snapshot.keys).all(axis=1)).nonzero()[0]
        return [f"row {snapshot.ids[number]}: the key contains NaN or infinity" for number in broken]

    def _erased(self) -> None:
        """Something was forgotten: remove what the backend still holds of it in logs."""
        return

    def _compact(self) -> None:
        return

    # --- shared -----------------------------------------------------------------------------------

    @contextmanager
    def _using(self, writing: bool = False) -> Iterator[None]:
        if os.getpid() != self._process:
            raise StoreError(f"memory {self.name!r} was opened by the process that forked this one: open it anew here")
        with self._lock:
            if self._closed:
                raise StoreError(f"memory {self.name!r} is closed")
            if writing and self.read_only:
                raise StoreError(f"memory {self.name!r} was opened for reading only")
            with self._plain_errors():
                yield

    def _delete(self, ids: list[int], names: tuple[str, ...] | None = None) -> list[int]:
        while ids:
            try:
                self._write(Write(remove=ids, erase=names))
            except RowChanged:
                # Another process has deleted some of them in the meantime.
                ids = self._existing(ids)
                continue
            self._erased()
            return ids
        return []

    def _with_ids(self, rows: list[NewRow]) -> list[NewRow]:
        """Every row with an id of its own."""
        if without := sum(row.id is None for row in rows):
            new = iter(self.reserve(without))
            rows = [row if row.id is not None else replace(row, id=next(new)) for row in rows]
        ids = [row.id for row in rows]
        if len(set(ids)) < len(ids) or not self._reserved.issuperset(ids):
            raise StoreError("rows must have ids of their own, from `reserve`; nothing was written")
        return rows


def agree(info: MemoryInfo, fingerprint: str | None, width: int | None, keep_sources: bool | None) -> None:
    """Refuse a memory whose keys another encoder made. None asks for nothing."""
    if fingerprint is not None and fingerprint != info.fingerprint:
        raise FingerprintMismatch(info.name, info.fingerprint, fingerprint)
    if width is not None and width != info.width:
        raise StoreError(f"the keys of memory {info.name!r} have {info.width} numbers, this encoder makes {width}")
    if keep_sources is not None and keep_sources != info.keep_sources:
        raise StoreError(f"memory {info.name!r} was made with keep_sources={info.keep_sources}: that cannot change")


def require_creatable(where: str, name: str, fingerprint: str | None, width: int | None, read_only: bool) -> None:
    """A new memory needs the name and width of its encoder, and the right to write."""
    if read_only or fingerprint is None or width is None:
        raise NoSuchMemory(f"there is no memory named {name!r} in {where}")


def require_rows(touched: Sequence[int], found: Mapping[int, Row], seen: Mapping[int, int]) -> None:
    """Refuse a write to rows that do not exist, or that have changed since they were read."""
    for id in touched:
        if id not in found:
            raise RowChanged(f"there is no row {id} to replace; nothing was written")
        if seen.get(id, found[id].generation) != found[id].generation:
            raise RowChanged(f"row {id} has been changed by another process; nothing was written")


def _required(source: str | None) -> str:
    if source is None:
        raise TypeError("a source is text, got NoneType")
    return source
