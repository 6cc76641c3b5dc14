"""The contract of every stored memory, whatever its database.

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
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from apl.store.errors import StoreDamaged, StoreError
from apl.store.rows import (
    Changes,
    Forgotten,
    Label,
    LabelTotal,
    MemoryInfo,
    NewRow,
    Recalled,
    Row,
    RowUpdate,
    Snapshot,
    SourceShare,
    Totals,
    Write,
    label_of,
    label_text,
    total_changes,
)
from apl.store.tables import Options, Run
from apl.store.validation import (
    checked_ids,
    checked_key,
    checked_label,
    checked_rows,
    checked_source,
    checked_updates,
    encoded,
)
from apl.store.writing import CLASS_GONE, ROWS_PER_BLOCK, Writing

SPARE = 8
"""Rows that a search returns beyond those asked for, so that a server's rounding does not decide which are nearest."""
_inherited: list["Store"] = []
"""Stores of the parent process, kept so that Python does not close their connections in a forked child."""


class Store(Writing):
    """One named memory, open. Use it in a `with` statement, or close it."""

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
        write = Write(checked_ids(remove) if remove else [], rows, changes, encoded(settings), encoded(receipts))
        if not self.keep_sources:
            write = write.without_sources()
        for change in changes:
            if change.id in write.remove:
                raise StoreError(f"row {change.id} is to be removed and updated at once; nothing was written")
        with self._using(writing=True):
            ids = self._give_ids(write.add)
            if rows or changes or write.remove or write.settings or write.receipts:
                self._write(write)
            self._reserved.difference_update(ids)
            return ids

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
        with self._writing() as run:
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
        with self._writing() as run:
            forgotten = self._forget_source(run, source, values)
        if forgotten.gone or forgotten.rebuilt:
            self._erased()
        return forgotten

    def update_settings(self, values: Mapping[str, Any]) -> None:
        """Set some of the memory's settings (anything JSON can hold), leaving the others as they are."""
        self.replace((), (), settings=values)

    # --- reading ----------------------------------------------------------------------------------

    def load(self, most: int | None = None) -> Snapshot:
        """Everything but the payloads, in arrays: what the search in RAM is filled from. `most`: of the oldest rows."""

        def ask(run: Run) -> Snapshot:
            generation, rows = self._state(run)[0], self._rows_in(run, most=most)
            if most is None and len(rows) != (expected := self._counted(run)):
                raise self._damaged(f"{len(rows)} rows are left of {expected}")
            return Snapshot.of(rows, self.width, generation)

        return self._read(ask)

    def rows(self) -> Iterator[Row]:
        """Every row with its payload, oldest first. A row deleted while this runs may be left out."""
        for ids in self._blocks():
            yield from self._whole_rows(ids)

    def new_rows(self) -> Iterator[NewRow]:
        """Every row with its payload and its shares, to be written elsewhere."""
        for ids in self._blocks():
            yield from self.as_new(self._whole_rows(ids))

    def _blocks(self) -> Iterator[list[int]]:
        ids = self.ids()
        for start in range(0, len(ids), ROWS_PER_BLOCK):
            yield ids[start : start + ROWS_PER_BLOCK]

    def as_new(self, rows: Sequence[Row]) -> list[NewRow]:
        """Rows of this store with their shares, to be written elsewhere."""
        shares = self.shares([row.id for row in rows if row.has_shares])
        return [row.as_new(shares=tuple(shares.get(row.id, ()))) for row in rows]

    def changes(self, since: int) -> Changes | None:
        """What happened after that generation; None if it is too long ago, and everything has to be loaded."""

        def ask(run: Run) -> Changes | None:
            generation, known_since, _ = self._state(run)
            if since < known_since:
                return None
            query = "SELECT DISTINCT id FROM removed WHERE memory = ? AND generation > ? AND id > ? ORDER BY id"
            removed = [id for (id,) in run.execute(query, (self._memory, since, CLASS_GONE)).fetchall()]
            rows = self._rows_in(run, "AND generation > ?", (since,))
            return Changes(Snapshot.of(rows, self.width, generation), removed)

        return self._read(ask)

    def shares(self, ids: Iterable[int]) -> dict[int, list[SourceShare]]:
        """What each source contributed to those of these rows that consist of several sources."""
        [found] = self._ask([self._shares_query(checked_ids(ids))])
        return self._as_shares(found)

    def rows_of_source(self, source: str) -> list[int]:
        """Ids of the rows that an example of this source began, or was merged into."""
        query, values = self._source_ids(checked_source(source))
        return self._column(query, *values)

    def sources(self) -> list[tuple[str, Label]]:
        """Every named source in the memory, with the label of a row that it contributed to."""
        query = (
            "SELECT source, label FROM rows WHERE memory = ? AND source IS NOT NULL UNION"
            " SELECT SUBSTR(s.source, 2), label FROM shares AS s JOIN rows AS r ON r.memory = s.memory AND r.id = s.id"
            " WHERE s.memory = ? AND s.source <> ''"
        )
        [found] = self._ask([(query, (self._memory, self._memory))])
        return [(source, label_of(label)) for source, label in found]

    def row(self, id: int) -> Row:
        found = self.some_rows([id])
        if not found:
            raise StoreError(f"memory {self.name!r} has no row {id}")
        return found[0]

    def some_rows(self, ids: Iterable[int]) -> list[Row]:
        """Those of these rows that exist, in the order of their ids."""
        return self._whole_rows(checked_ids(ids))

    def payload(self, id: int) -> bytes | None:
        """The payload of a row, None if it was written without one."""
        return self.row(id).payload

    def recall(self, keys: np.ndarray, k: int) -> Recalled:
        """The k nearest rows of each of these keys, without payloads. A server searches its rows itself."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        asked = np.array([checked_key(key, self.width) for key in keys], np.float32).reshape(len(keys), self.width)
        found, generation = self._recall(asked, k + SPARE)
        return Recalled.of(found, asked, k, self.metric, generation)

    def _recall(self, keys: np.ndarray, k: int) -> tuple[list[list[Row]], int]:
        """At least the k nearest rows of each key, if there are as many, in any order; and the memory's generation."""
        rows, generation = self._read(lambda run: (self._rows_in(run), self._state(run)[0]))
        return [rows] * len(keys), generation

    def totals(self, since: int | None = None) -> Totals:
        """Rows, examples and sum of keys of all classes, or of those that changed after a generation, where that is enough
        to bring a copy up to date."""
        if self.metric != self._kept_metric:
            return self._totals_of_rows()
        after = -1 if since is None else since
        gone = "SELECT 1 FROM removed WHERE memory = ? AND generation > ? AND id = ? LIMIT 1"
        changed = f"SELECT label, rows, examples, {self.sum_cell} FROM classes WHERE memory = ? AND generation > ?"
        state, lost, found = self._ask(
            [
                self._state_query(),
                (gone, (self._memory, after, CLASS_GONE)),
                (f"{changed} ORDER BY first_id, label", (self._memory, after)),
            ]
        )
        generation, known_since, kept = self._as_state(state)
        if since is not None and (since < known_since or lost):
            return self.totals()
        classes = [LabelTotal(label_of(label), rows, count, self._sum(cell)) for label, rows, count, cell in found]
        return Totals(generation, classes, since is None, None if kept is None else json.loads(kept))

    def _totals_of_rows(self) -> Totals:
        """By another metric than the stored ones."""
        rows, (generation, _, kept) = self._read(lambda run: (self._rows_in(run), self._state(run)))
        changes = total_changes([], rows, self.metric)
        classes = [LabelTotal(label_of(label), *total[:3]) for label, total in changes.items()]
        return Totals(generation, classes, True, None if kept is None else json.loads(kept))

    def class_counts(self) -> dict[Label, tuple[int, int]]:
        """Rows and examples of each class, in the order in which the classes came."""
        query = "SELECT label, rows, examples FROM classes WHERE memory = ? ORDER BY first_id, label"
        [found] = self._ask([(query, (self._memory,))])
        return {label_of(label): (rows, examples) for label, rows, examples in found}

    def ids(self, after: int = 0, most: int | None = None) -> list[int]:
        """Ids of all rows, oldest first, or of at most `most` beyond an id."""
        limit = "" if most is None else f" LIMIT {most:d}"
        return self._column(f"SELECT id FROM rows WHERE memory = ? AND id > ? ORDER BY id{limit}", self._memory, after)

    def existing(self, ids: Iterable[int]) -> list[int]:
        """Those of these ids that rows have."""
        query = f"SELECT id FROM rows WHERE memory = ? AND id {self.one_of} ORDER BY id"
        return self._column(query, self._memory, self._list(checked_ids(ids)))

    def ids_of_label(self, label: Label) -> list[int]:
        query = "SELECT id FROM rows WHERE memory = ? AND label = ? ORDER BY id"
        return self._column(query, self._memory, label_text(checked_label(label)))

    def settings(self) -> dict[str, Any]:
        return {key: json.loads(value) for key, value in self._settings().items()}

    def setting(self, key: str) -> Any | None:
        """One of the settings, without the others; None if it does not exist."""
        found = self._settings(key).get(key)
        return None if found is None else json.loads(found)

    def receipt(self, key: str) -> Any | None:
        """What was written under this key by `replace(receipts=…)`; the latest 10,000 are kept."""
        query = "SELECT value, checksum FROM receipts WHERE memory = ? AND name = ?"
        [found] = self._ask([(query, (self._memory, str(key)))])
        return json.loads(self._unsealed("receipt", key, *found[0])) if found else None

    def count(self) -> int:
        return self._read(lambda run: (self._state(run), self._counted(run))[1])

    def generation(self) -> int:
        """A number that grows with every write to this memory, by any process."""
        return self._as_state(self._ask([self._state_query()])[0])[0]

    @property
    def info(self) -> MemoryInfo:
        head = (self.name, self.fingerprint, self.width, self.created)
        return MemoryInfo(*head, self.count(), self.identity, self.keep_sources)

    def problems(self) -> list[str]:
        """What is wrong with the memory as stored, a sentence each; empty if nothing is."""
        found = list[str]()
        for ids in self._blocks():
            if self._problem(ids):
                found += [problem for id in ids if (problem := self._problem([id]))]
        for check in (self.settings, self._read_receipts, self.load):
            try:
                check()
            except (StoreDamaged, ValueError, RecursionError) as error:
                found.append(str(error))
        return found + self._strays()

    def _problem(self, ids: list[int]) -> str | None:
        """What is wrong with some of these rows, their payloads or shares."""
        try:
            self.as_new(self._whole_rows(ids))
        except StoreDamaged as error:
            return str(error)
        return None

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
