"""The contract that every lasting memory keeps, wherever it lives.

- A write is one transaction: all of it happens or none of it, and when the call returns it is durable and
  visible to the next read. Ids count up from 1 and are never reused.
- One writer at a time. Opening a memory for writing that somebody else is writing raises `StoreBusy` (after
  `timeout` seconds), so a writer's copy in RAM cannot go stale. Any number may read; a reader compares
  `generation()` with that of its `Snapshot`, and loads again when they differ.
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
from typing import Any

import numpy as np

from apl.store.errors import FingerprintMismatch, NoSuchMemory, StoreError
from apl.store.rows import (
    SCHEMA_VERSION,
    Label,
    MemoryInfo,
    Nearest,
    NewRow,
    Row,
    Snapshot,
    checked_key,
    checked_label,
    checked_rows,
    checked_source,
)

ROWS_PER_BLOCK = 512
"""Rows fetched at a time by `rows()`, so that payloads of a large memory need not fit into RAM."""


NESTED_AT_MOST = 50
"""How deep lists and dictionaries of a setting may be nested: JSON is read by recursion."""
_inherited: list["Store"] = []
"""Stores of the parent process, kept so that Python does not close their connections in a forked child."""


class Store(ABC):
    """One named memory, open. Use it in a `with` statement, or close it."""

    def __init__(self, name: str, fingerprint: str, width: int, created: float, read_only: bool) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.width = width
        self.created = created
        self.read_only = read_only
        self._lock = threading.RLock()
        self._closed = False
        self._process = os.getpid()

    # --- writing ----------------------------------------------------------------------------------

    def append(self, rows: Sequence[NewRow], *, settings: Mapping[str, Any] | None = None) -> list[int]:
        """Write rows, and settings with them, in one transaction; returns the new ids in order."""
        return self.replace((), rows, settings=settings)

    def replace(
        self, remove: Iterable[int], add: Sequence[NewRow], *, settings: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Remove some rows and write others in one transaction, such as an eviction; returns the new ids.

        A row to be removed that is not there is an error, and then nothing happens at all.
        """
        add, remove = checked_rows(add, self.width), _checked_ids(remove)
        encoded = encoded_settings(settings)
        with self._using(writing=True):
            if missing := sorted(set(remove) - set(self._existing(remove))):
                raise StoreError(f"memory {self.name!r} has no row {missing[0]} to replace; nothing was written")
            return self._write(remove, add, encoded) if remove or add or encoded else []

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

    def rows(self) -> Iterator[Row]:
        """Every row with its payload, oldest first. A row deleted while this runs may be left out."""
        with self._using():
            ids = self._ids()
        for start in range(0, len(ids), ROWS_PER_BLOCK):
            with self._using():
                block = self._fetch(ids[start : start + ROWS_PER_BLOCK])
            yield from block

    def row(self, id: int) -> Row:
        with self._using():
            found = self._fetch([int(id)])
        if not found:
            raise StoreError(f"memory {self.name!r} has no row {id}")
        return found[0]

    def payload(self, id: int) -> bytes | None:
        """The payload of a row, None if it was written without one."""
        return self.row(id).payload

    def nearest(self, key: np.ndarray, k: int) -> Nearest:
        """The k nearest rows by euclidean distance. A server searches itself, without loading the rows."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        key = checked_key(key, self.width)
        with self._using():
            return self._nearest(key, k)

    def settings(self) -> dict[str, Any]:
        with self._using():
            return {key: json.loads(value) for key, value in self._settings().items()}

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
    def _write(self, remove: list[int], add: list[NewRow], settings: dict[str, str]) -> list[int]:
        """The one transaction. `remove` are rows that exist; settings are JSON texts."""

    @abstractmethod
    def _existing(self, ids: list[int]) -> list[int]: ...

    @abstractmethod
    def _labelled(self, label: Label) -> list[int]: ...

    @abstractmethod
    def _from_source(self, source: str) -> list[int]: ...

    @abstractmethod
    def _load(self) -> Snapshot: ...

    @abstractmethod
    def _ids(self) -> list[int]: ...

    @abstractmethod
    def _fetch(self, ids: list[int]) -> list[Row]:
        """Those of these rows that exist, payloads included, in the order of their ids."""

    @abstractmethod
    def _settings(self) -> dict[str, str]: ...

    @abstractmethod
    def _count(self) -> int: ...

    @abstractmethod
    def _generation(self) -> int: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _plain_errors(self) -> AbstractContextManager[None]:
        """Turns the errors of a database driver into `StoreError`s."""

    def _nearest(self, key: np.ndarray, k: int) -> Nearest:
        snapshot = self._load()
        distances = np.linalg.norm(snapshot.keys.astype(np.float64) - key, axis=1).astype(np.float32)
        best = np.argsort(distances, kind="stable")[:k]
        return Nearest(snapshot.ids[best], distances[best])

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
            self._write(ids, [], {})
        return ids


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
    _refuse_deep(dict(settings or {}), NESTED_AT_MOST)
    return {str(key): json.dumps(value, allow_nan=False) for key, value in (settings or {}).items()}


def _refuse_deep(value: object, left: int) -> None:
    if not left:
        raise ValueError(f"a setting is nested more than {NESTED_AT_MOST} deep; nothing was written")
    if isinstance(value, (dict, list, tuple)):
        for inner in value.values() if isinstance(value, dict) else value:
            _refuse_deep(inner, left - 1)
