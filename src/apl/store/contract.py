"""The contract that every lasting memory keeps, wherever it lives.

- A write is one transaction: all of it happens or none of it, and when the call returns it is durable and
  visible to the next read. Ids count up from 1 and are never reused.
- Rows may be added, removed and updated in the same transaction, settings with them. An id can be reserved before its
  row is written, so that what is written beside it can name it.
- A row may stand for several examples (`count`). What they were is kept apart (`merged`), is not loaded with the rows,
  and goes with its row.
- One writer at a time. Opening a memory for writing that somebody else is writing raises `StoreBusy` (after
  `timeout` seconds), so a writer's copy in RAM cannot go stale. Any number may read; a reader compares
  `generation()` with that of its `Snapshot`, and asks for the `changes` when they differ.
- A store may be used from several threads; calls take turns.

A home for memories implements the methods that begin with an underscore; checks, locking and the public
verbs are written once, here.
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
    SCHEMA_VERSION,
    Changes,
    Label,
    LabelTotal,
    MemoryInfo,
    MergedExample,
    Nearest,
    NewRow,
    Recalled,
    Row,
    RowUpdate,
    Snapshot,
    Totals,
    Write,
    checked_key,
    checked_label,
    checked_rows,
    checked_source,
    checked_updates,
    label_text,
    snapshot_of,
)

ROWS_PER_BLOCK = 512
"""Rows fetched at a time by `rows()`, so that payloads of a large memory need not fit into RAM."""


SPARE = 8
"""Rows that a search returns beyond those asked for, so that no server's rounding decides who is among the nearest."""
METRIC_SETTING = "engine metric"
"""Under this name a memory on a server keeps the metric of its totals."""
RECEIPTS_KEPT = 10_000
"""Each new receipt takes the place of the oldest."""
NESTED_AT_MOST = 50
"""How deep lists and dictionaries of a setting may be nested: JSON is read by recursion."""
_JSON = json.JSONEncoder(allow_nan=False)
_inherited: list["Store"] = []
"""Stores of the parent process, kept so that Python does not close their connections in a forked child."""


class Store(ABC):
    """One named memory, open. Use it in a `with` statement, or close it."""

    shared = False
    """Whether others may write at the same time."""
    metric: Metric = "euclidean"
    """By which rows are near and classes are summed (`open_store`)."""
    tells_generation = False
    """Whether `recall` says of which generation its answer is."""

    def __init__(self, name: str, fingerprint: str, width: int, created: float, read_only: bool) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.width = width
        self.created = created
        self.read_only = read_only
        self._lock = threading.RLock()
        self._closed = False
        self._process = os.getpid()
        self._reserved: set[int] = set()
        """Ids that were reserved and not yet written."""
        self._reserve_from = 0

    # --- writing ----------------------------------------------------------------------------------

    def reserve(self, count: int = 1) -> list[int]:
        """Ids for rows that are about to be written; nobody else will get them."""
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

        A row to be removed or updated that is not there is an error, and then nothing happens at all. So is one behind which
        other than the `seen` number of examples stand (`RowChanged`; an update may say it itself), where others write too,
        and a receipt whose key has one already (`AlreadyAnswered`): whatever a receipt stands for happens once.
        """
        add, remove = checked_rows(add, self.width), _checked_ids(remove)
        update, encoded = checked_updates(update, self.width), encoded_settings(settings)
        with self._using(writing=True):
            touched = sorted({*remove, *(change.id for change in update)})
            # With several writers only their transaction can tell.
            if not self.shared and (missing := sorted(set(touched) - set(self._existing(touched)))):
                raise RowChanged(f"memory {self.name!r} has no row {missing[0]} to replace; nothing was written")
            if both := set(remove) & {change.id for change in update}:
                raise StoreError(f"row {min(both)} is to be removed and updated at once; nothing was written")
            seen = {**(seen or {}), **{c.id: c.seen_count for c in update if c.seen_count is not None}}
            write = Write(remove, self._with_ids(add), update, encoded, encoded_settings(receipts), seen)
            if not write.is_empty:
                self._write(write)
            ids = [row.id for row in write.add]
            self._reserved.difference_update(ids)
            return ids

    def delete(self, ids: Iterable[int]) -> list[int]:
        """Forget these rows, ignoring ids that are not there. All deletions return the ids removed."""
        with self._using(writing=True):
            return self._delete(self._existing(_checked_ids(ids)))

    def delete_label(self, label: Label) -> list[int]:
        label = checked_label(label)
        with self._using(writing=True):
            return self._delete(self._labelled(label))

    def delete_source(self, source: str) -> list[int]:
        source = checked_source(source)
        with self._using(writing=True):
            return self._delete(self._from_source(source))

    def update_settings(self, values: Mapping[str, Any]) -> None:
        """Set some of the memory's settings (anything JSON can hold), leaving the others as they are."""
        self.replace((), (), settings=values)

    # --- reading ----------------------------------------------------------------------------------

    def load(self) -> Snapshot:
        """Everything but the payloads, in arrays: what the search in RAM is filled from."""
        with self._using():
            return self._load()

    def oldest(self, most: int) -> Snapshot:
        """As `load`, but of so many rows at most."""
        with self._using():
            return self._oldest(most)

    def rows(self) -> Iterator[Row]:
        """Every row with its payload, oldest first. A row deleted while this runs may be left out."""
        with self._using():
            ids = self._ids()
        for start in range(0, len(ids), ROWS_PER_BLOCK):
            with self._using():
                block = self._fetch(ids[start : start + ROWS_PER_BLOCK])
            yield from block

    def changes(self, since: int) -> Changes | None:
        """What happened after that generation; None if it is too long ago, and everything has to be loaded."""
        with self._using():
            return self._changes(int(since))

    def merged(self, id: int) -> list[MergedExample]:
        """The examples behind a row, in the order in which they were merged; none are kept for a row of one example."""
        return self.merged_into([id]).get(int(id), [])

    def merged_into(self, ids: Iterable[int]) -> dict[int, list[MergedExample]]:
        """The examples behind each of these rows that has any."""
        with self._using():
            return self._merged(_checked_ids(ids))

    def merged_from(self, source: str) -> list[int]:
        """The rows that examples of this source were merged into."""
        source = checked_source(source)
        with self._using():
            return self._merged_from(source)

    def row(self, id: int) -> Row:
        with self._using():
            found = self._fetch([int(id)])
        if not found:
            raise StoreError(f"memory {self.name!r} has no row {id}")
        return found[0]

    def some_rows(self, ids: Iterable[int]) -> list[Row]:
        """Those of these rows that are there."""
        with self._using():
            return self._fetch(_checked_ids(ids))

    def payload(self, id: int) -> bytes | None:
        """The payload of a row, None if it was written without one."""
        return self.row(id).payload

    def nearest(self, key: np.ndarray, k: int) -> Nearest:
        """The k nearest rows, by id and distance alone."""
        found = self.recall(key[None], k)
        return Nearest(found.ids[0, found.mask[0]], found.distances[0, found.mask[0]])

    def recall(self, keys: np.ndarray, k: int) -> Recalled:
        """The k nearest rows of each of these keys, whole but for their payloads. A server searches itself: only what is
        recalled travels."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        asked = np.array([checked_key(key, self.width) for key in keys], np.float32).reshape(len(keys), self.width)
        with self._using():
            found = self._recall(asked, k + SPARE) if len(asked) else []
            generation = self._recalled_at() if len(asked) else None
        return replace(Recalled.of(found, asked, k, self.metric), generation=generation)

    def index_recall(self, k: int = 16, questions: int = 20) -> float | None:
        """What share of the k nearest rows the approximate index finds, asked about some rows of the memory itself, which
        are not counted; None if there is no such index."""
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
        """How many rows and examples each class has, and the sum of its keys: of all classes, or, where the store can
        tell, of those that changed after a generation."""
        with self._using():
            return self._totals(since)

    def class_counts(self) -> dict[Label, tuple[int, int]]:
        """How many rows and examples each class has, in the order in which the classes came."""
        with self._using():
            return self._class_counts()

    def ids(self, after: int = 0, most: int | None = None) -> list[int]:
        """Of all rows, oldest first, or of the first so many beyond an id."""
        with self._using():
            return self._ids(after, most)

    def existing(self, ids: Iterable[int]) -> list[int]:
        """Those of these ids that rows have."""
        with self._using():
            return self._existing(_checked_ids(ids))

    def ids_of_label(self, label: Label) -> list[int]:
        label = checked_label(label)
        with self._using():
            return self._labelled(label)

    def ids_of_source(self, source: str) -> list[int]:
        source = checked_source(source)
        with self._using():
            return self._from_source(source)

    def settings(self) -> dict[str, Any]:
        with self._using():
            return {key: json.loads(value) for key, value in self._settings().items()}

    def setting(self, key: str) -> Any | None:
        """One of them, without the others; None if it is not there."""
        with self._using():
            found = self._settings(key).get(key)
        return None if found is None else json.loads(found)

    def receipt(self, key: str) -> Any | None:
        """What was written under this key by `replace(receipts=…)`; the latest some thousand are kept."""
        with self._using():
            found = self._receipt(str(key))
        return None if found is None else json.loads(found)

    def count(self) -> int:
        with self._using():
            return self._count()

    def generation(self) -> int:
        """A number that grows with every write to this memory, by whomever."""
        with self._using():
            return self._generation()

    @property
    def info(self) -> MemoryInfo:
        return MemoryInfo(self.name, self.fingerprint, self.width, self.created, SCHEMA_VERSION, self.count())

    def problems(self) -> list[str]:
        """What is wrong with the memory as stored; empty if nothing is."""
        with self._using():
            return self._problems()

    def close(self) -> None:
        if os.getpid() != self._process:
            # What a forked child inherits belongs to its parent: letting go of it here would let go of it there.
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

    # --- what a home implements -------------------------------------------------------------------

    @abstractmethod
    def _write(self, write: Write) -> None:
        """The one transaction. Rows to be removed or updated exist."""

    @abstractmethod
    def _next_id(self) -> int:
        """The smallest id that no row ever had."""

    @abstractmethod
    def _receipt(self, key: str) -> str | None: ...

    @abstractmethod
    def _changes(self, since: int) -> Changes | None: ...

    @abstractmethod
    def _merged(self, ids: list[int]) -> dict[int, list[MergedExample]]: ...

    @abstractmethod
    def _merged_from(self, source: str) -> list[int]: ...

    @abstractmethod
    def _existing(self, ids: list[int]) -> list[int]: ...

    @abstractmethod
    def _labelled(self, label: Label) -> list[int]: ...

    @abstractmethod
    def _from_source(self, source: str) -> list[int]: ...

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
    def _count(self) -> int: ...

    @abstractmethod
    def _generation(self) -> int: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _plain_errors(self) -> AbstractContextManager[None]:
        """Turns the errors of a database driver into `StoreError`s."""

    def _reserve(self, count: int) -> int:
        """The first of so many ids. The one writer of a memory counts in RAM."""
        first = max(self._reserve_from, self._next_id())
        self._reserve_from = first + count
        return first

    def _recall(self, keys: np.ndarray, k: int) -> list[list[Row]]:
        """At least the k nearest rows of each key, if there are so many, in any order."""
        snapshot = self._load()
        rows = measured(snapshot.keys, self.metric).astype(np.float64)
        distances = [np.square(rows - key).sum(1) for key in measured(keys, self.metric)]
        return [self._fetch(snapshot.ids[np.argsort(far, kind="stable")[:k]].tolist()) for far in distances]

    def _recalled_at(self) -> int | None:
        """The generation at the time of the last `_recall`, if that has found it out."""
        return None

    def _has_index(self) -> bool:
        return False

    def _compared(self, key: np.ndarray, k: int) -> tuple[list[Row], list[Row]]:
        """The k nearest rows by a search that misses none, and by the approximate index."""
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

    def _oldest(self, most: int) -> Snapshot:
        return snapshot_of(self._fetch(self._ids(most=most)), self.width, self._generation())

    def _class_counts(self) -> dict[Label, tuple[int, int]]:
        return {total.label: (total.rows, total.examples) for total in self._totals(None).classes}

    def _problems(self) -> list[str]:
        snapshot = self._load()
        repeated = [] if (np.diff(snapshot.ids) > 0).all() else ["some rows have the same id"]
        return repeated + key_problems(snapshot.ids.tolist(), snapshot.keys)

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

    def _delete(self, ids: list[int]) -> list[int]:
        if ids:
            self._write(Write(ids, [], [], {}, {}))
        return ids

    def _with_ids(self, rows: list[NewRow]) -> list[NewRow]:
        """Every row with an id of its own."""
        if without := sum(row.id is None for row in rows):
            new = iter(self.reserve(without))
            rows = [row if row.id is not None else replace(row, id=next(new)) for row in rows]
        ids = [row.id for row in rows]
        if len(set(ids)) < len(ids) or not self._reserved.issuperset(ids):
            raise StoreError("rows must have ids of their own, from `reserve`; nothing was written")
        return rows


def agree(info: MemoryInfo, fingerprint: str | None, width: int | None) -> None:
    """Refuse a memory whose keys another encoder made. None asks for nothing."""
    if fingerprint is not None and fingerprint != info.fingerprint:
        raise FingerprintMismatch(info.name, info.fingerprint, fingerprint)
    if width is not None and width != info.width:
        raise StoreError(f"the keys of memory {info.name!r} have {info.width} numbers, this encoder makes {width}")


def require_creatable(where: str, name: str, fingerprint: str | None, width: int | None, read_only: bool) -> None:
    """A memory that is not there yet can be made only by somebody who knows its encoder and may write."""
    if read_only or fingerprint is None or width is None:
        raise NoSuchMemory(f"there is no memory named {name!r} in {where}")


def key_problems(ids: Sequence[int], keys: np.ndarray) -> list[str]:
    broken = (~np.isfinite(keys).all(axis=1)).nonzero()[0]
    return [f"row {ids[number]}: the key contains NaN or infinity" for number in broken]


def _checked_ids(ids: Iterable[int]) -> list[int]:
    return sorted({int(id) for id in ids})


def encoded_settings(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """Each value as JSON; what JSON cannot hold, or could not be read back from anywhere, is refused."""
    for value in (settings or {}).values():
        if isinstance(value, (dict, list, tuple)):
            _refuse_deep(value, NESTED_AT_MOST - 1)
    return {str(key): _JSON.encode(value) for key, value in (settings or {}).items()}


def _refuse_deep(value: object, left: int) -> None:
    if not left:
        raise ValueError(f"a setting is nested more than {NESTED_AT_MOST} deep; nothing was written")
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list, tuple)):
            _refuse_deep(inner, left - 1)
