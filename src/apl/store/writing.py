"""The contract of every stored memory, whatever its database.

- A write is one transaction: all of it happens or none of it, and when the call returns it is durable and visible to the
  next read. Ids count up from 1 and are never reused.
- Rows may be added, removed and updated in the same transaction, settings with them. An id can be reserved before its
  row is written, so that what is written beside it can name it.
- A row may be the mean of several examples (`count`). What named sources contributed is kept as one sum and count per row
  and source (`apl.store.rows`); nothing is kept of merged examples without a source.
- A memory in a file has one writer: opening one that another process writes raises `StoreBusy` (after `timeout` seconds). On a
  server any number of processes write. Any number may read; a reader compares `generation()` with that of its `Snapshot`,
  and asks for the `changes` when they differ.
- A store may be used from several threads; calls take turns.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from apl.store.answers import Forgotten, MemoryInfo, Record
from apl.store.checks import checked_ids, checked_rows, checked_source, checked_updates, encoded
from apl.store.errors import StoreError
from apl.store.opening import Options
from apl.store.reading import Run
from apl.store.rows import (
    KEEP,
    Label,
    NewRow,
    Row,
    RowUpdate,
    Write,
    checked_label,
    label_text,
    source_of,
    source_text,
)
from apl.store.transaction import Writing

_inherited: list[Store] = []
"""Stores of the parent process, kept so that Python does not close their connections in a forked child."""


class Store(Writing):
    """One named memory, open. Use it in a `with` statement, or close it."""

    driver_errors: tuple[type[Exception], ...] = ()
    """Errors that `_explained` turns into those of `apl.store.errors`."""

    def __init__(self, record: Record, read_only: bool) -> None:
        super().__init__(record, read_only)
        self._reserved: set[int] = set()
        """Ids that were reserved and not yet written."""

    @classmethod
    @abstractmethod
    def open(cls, place: str, name: str, options: Options) -> Store:
        """Open the memory of this name, or make it."""

    @classmethod
    @abstractmethod
    def listing(cls, place: str) -> list[MemoryInfo]:
        """The memories that live there, by name."""

    @abstractmethod
    def drop(self) -> None:
        """Delete the whole memory."""

    @abstractmethod
    def compact(self) -> None:
        """Give the space of deleted rows back to the system."""

    def reindex(self) -> int:
        """Build the index anew from the rows; returns their number."""
        raise StoreError(f"memory {self.name!r} was opened without an index: give index=")

    @abstractmethod
    def _explained(self, error: Exception) -> StoreError: ...

    @contextmanager
    def _using(self, writing: bool = False) -> Iterator[None]:
        """Calls take turns. Errors of the database's driver become those of `apl.store.errors`."""
        if os.getpid() != self._process:
            raise StoreError(f"memory {self.name!r} was opened by the process that forked this one: open it anew here")
        with self.turn:
            if self._closed:
                raise StoreError(f"memory {self.name!r} is closed")
            if writing and self.read_only:
                raise StoreError(f"memory {self.name!r} was opened for reading only")
            try:
                yield
            except self.driver_errors as error:
                raise self._explained(error) from error

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

    def update_settings(self, values: Mapping[str, Any]) -> None:
        """Set some of the memory's settings (anything JSON can hold), leaving the others as they are."""
        self.replace((), (), settings=values)

    def replace(
        self,
        remove: Collection[int],
        add: Sequence[NewRow],
        *,
        update: Collection[RowUpdate] = (),
        settings: Mapping[str, Any] | None = None,
        receipts: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Remove some rows, write others and update yet others in one transaction; returns the new ids in order.

        Nothing at all happens if a row to be removed or updated does not exist or has another generation than the update
        has seen (`RowChanged`), or if a receipt of this key exists (`AlreadyAnswered`): what a receipt stands for happens
        once.
        """
        rows, changes = checked_rows(add, self.width), checked_updates(update, self.width) if update else []
        gone = checked_ids(remove) if remove else []
        renamed = False
        if not self.keep_sources:
            rows = [replace(row, source=None, shares=()) for row in rows]
        for change in changes:
            renamed = renamed or change.label is not KEEP
            if change.id in gone:
                raise StoreError(f"row {change.id} is to be removed and updated at once; nothing was written")
        with self._using(writing=True):
            ids = self._give_ids(rows) if rows else []
            write = Write(gone, rows, changes, encoded(settings), encoded(receipts), erase=() if renamed else None)
            if rows or changes or gone or write.settings or write.receipts:
                self.commit(write)
        if renamed:
            self._erased()
        return ids

    def commit(self, write: Write) -> None:
        """`replace` without its checks: of plain types, and of rows whose ids were reserved."""
        with self._writing() as run:
            self._write_in(run, write)
        for row in write.add:
            self._reserved.discard(row.id or 0)

    def _give_ids(self, rows: list[NewRow]) -> list[int]:
        """Give each row that has no id one; returns them all."""
        ids, without = list[int](), list[int]()
        for at, row in enumerate(rows):
            ids.append(row.id or 0)
            if row.id is None:
                without.append(at)
        if without:
            for at, id in zip(without, self.reserve(len(without)), strict=True):
                rows[at], ids[at] = replace(rows[at], id=id), id
        if len(set(ids)) < len(ids) or not self._reserved.issuperset(ids):
            raise StoreError("rows must have ids of their own, from `reserve`; nothing was written")
        return ids

    def delete(self, ids: Iterable[int]) -> list[int]:
        """Forget these rows, ignoring ids that do not exist. Returns the ids removed."""
        return self._delete(f"id {self.one_of}", self._list(checked_ids(ids)))

    def delete_label(self, label: Label) -> list[int]:
        """Forget a class. Returns the ids removed."""
        return self._delete("label = ?", label_text(checked_label(label)), (str(label),))

    def _delete(self, which: str, value: object, names: tuple[str, ...] | None = None) -> list[int]:
        with self._writing(reads_first=True) as run:
            query = f"SELECT id FROM rows WHERE memory = ? AND {which} ORDER BY id"
            ids = [id for (id,) in run.execute(query, (self._memory, value)).fetchall()]
            if ids:
                self._write_in(run, Write(remove=ids, erase=names))
        if ids:
            self._erased()
        return ids

    def forget_source(self, source: str, *, settings: Mapping[str, Any] | None = None) -> Forgotten:
        """Leave no trace of a source, in one transaction: rows of it alone go, others become the mean of the rest."""
        if not self.keep_sources:
            raise StoreError(f"memory {self.name!r} keeps no sources: nothing can be forgotten by source")
        values, source = encoded(settings), checked_source(source)
        gone, rebuilt, left = list[int](), list[RowUpdate](), dict[int, int]()
        with self._writing(reads_first=True) as run:
            ids = [id for (id,) in run.execute(*self._source_ids(source)).fetchall()]
            for row in self._as_rows(run.execute(*self._rows_of(ids)).fetchall()):
                change, left[row.id] = self._without_source(run, row, source)
                if change is None:
                    gone.append(row.id)
                else:
                    rebuilt.append(change)
            if ids:
                run.execute("DELETE FROM shares WHERE memory = ? AND source = ?", (self._memory, source_text(source)))
                self._write_in(run, Write(gone, [], rebuilt, values, erase=(source,), left=left))
        if ids:
            self._erased()
        return Forgotten(gone, [change.id for change in rebuilt])

    def _without_source(self, run: Run, row: Row, source: str) -> tuple[RowUpdate | None, int]:
        """The update that makes a row the mean of what the other sources contributed, None if nothing is left; and the
        number of other sources. Summed without an object for each of them."""
        own, others, count, parts = source_text(source), list[str](), 0, {4: list[bytes](), 8: list[bytes]()}
        for _, one, total, examples, seal in run.execute(*self._shares_query([row.id])).fetchall():
            self._require_share(row.id, one, total, examples, seal)
            if one != own:
                others.append(one)
                count += examples
                parts[len(total) // self.width].append(total)
        if not count:
            return None, 0
        sums = [np.frombuffer(b"".join(part), f"<f{size}").reshape(-1, self.width) for size, part in parts.items()]
        key = (np.sum([part.sum(0, np.float64) for part in sums], axis=0) / count).astype(np.float32)
        self._require_finite(row.id, key)
        if row.source != source:
            return RowUpdate(row.id, key=key, count=count), len(others)
        # The payload is that of the row's first example.
        return RowUpdate(row.id, key=key, count=count, source=source_of(others[0]), payload=None), len(others)

    # --- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        if os.getpid() != self._process:
            # What a forked child inherits belongs to its parent: closing it here would close it there.
            _inherited.append(self)
            return
        with self.turn:
            if not self._closed:
                self._closed = True
                self._close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
