"""The contract of every stored memory, whatever its database.

- A write is one transaction: all of it happens or none of it, and when the call returns it is durable and visible to the
  next read. Ids count up from 1 and are never reused.
- Rows may be added, removed and updated in the same transaction, settings with them. An id can be reserved before its
  row is written, so that what is written beside it can name it.
- A row may be the mean of several examples (`count`). What named sources contributed is kept as one sum and count per row
  and source (`apl.store.rows`); nothing is kept of merged examples without a source.
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
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from apl.store.answers import Forgotten, MemoryInfo
from apl.store.checks import checked_ids, checked_label, checked_rows, checked_source, checked_updates, encoded
from apl.store.errors import AlreadyAnswered, RowChanged, StoreError
from apl.store.reading import (
    CLASS_GONE,
    GENERATIONS_FOLLOWED,
    ROW_CELLS,
    STATE_SETTING,
    Options,
    Query,
    Reading,
    Run,
    Shares,
)
from apl.store.rows import (
    KEEP,
    Label,
    NewRow,
    Row,
    RowUpdate,
    Write,
    added_shares,
    by_source,
    checksum,
    kept_shares,
    label_text,
    payload_checksum,
    row_checksum,
    share_checksum,
    source_of,
    source_text,
    total_bytes,
    total_changes,
)
from apl.store.schema import receipt_name

RECEIPTS_KEPT = 10_000
"""Each new receipt replaces the oldest."""
ERASED = "{}"
"""The value of a receipt that named something forgotten."""
PUT_ROWS = (
    f"INSERT INTO rows (memory, {ROW_CELLS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (memory, id) DO UPDATE SET"
    " label = excluded.label, source = excluded.source, key = excluded.key, count = excluded.count,"
    " has_shares = excluded.has_shares, generation = excluded.generation, checksum = excluded.checksum"
)
PUT_CLASSES = (
    "INSERT INTO classes (memory, label, rows, examples, total, first_id, generation) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (memory, label) DO UPDATE SET rows = classes.rows + excluded.rows,"
    " examples = classes.examples + excluded.examples, total = add_sums(classes.total, excluded.total),"
    " generation = excluded.generation"
)
PUT_SHARES = (
    "INSERT INTO shares (memory, id, source, total, count, checksum) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT"
    " (memory, id, source) DO UPDATE SET total = excluded.total, count = excluded.count, checksum = excluded.checksum"
)
PUT_PAYLOADS = (
    "INSERT INTO payloads (memory, id, payload, checksum) VALUES (?, ?, ?, ?) ON CONFLICT (memory, id)"
    " DO UPDATE SET payload = excluded.payload, checksum = excluded.checksum"
)
PUT_SETTINGS = (
    "INSERT INTO settings (memory, name, value, checksum) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (memory, name) DO UPDATE SET value = excluded.value, checksum = excluded.checksum"
)
PUT_RECEIPTS = "INSERT INTO receipts (memory, name, value, generation, checksum) VALUES (?, ?, ?, ?, ?)"
_inherited: list[Store] = []
"""Stores of the parent process, kept so that Python does not close their connections in a forked child."""


class Store(Reading):
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
                with self._writing() as run:
                    self._write_in(run, write)
            self._reserved.difference_update(ids)
        if renamed:
            self._erased()
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
            for row in self._rows_in(run, f"AND id {self.one_of}", (self._list(ids),)) if ids else []:
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
            if share_checksum(row.id, one, total, examples) != seal:
                raise self._damaged(f"what a source contributed to row {row.id} is not as it was written")
            if one != own:
                others.append(one)
                count += examples
                parts[len(total) // self.width].append(total)
        if not count:
            return None, 0
        sums = [np.frombuffer(b"".join(part), f"<f{size}").reshape(-1, self.width) for size, part in parts.items()]
        key = (np.sum([part.sum(0, np.float64) for part in sums], axis=0) / count).astype(np.float32)
        if row.source != source:
            return RowUpdate(row.id, key=key, count=count), len(others)
        # The payload is that of the row's first example.
        return RowUpdate(row.id, key=key, count=count, source=source_of(others[0]), payload=None), len(others)

    # --- the transaction ---------------------------------------------------------------------------

    def _write_in(self, run: Run, write: Write) -> None:
        """Move the memory's record on to a new generation, read what will change, and write. The questions come before the first
        change, so that a connection that pipelines needs two round trips."""
        settings, queries, receipts = dict(write.settings), dict[str, Query](), dict[str, str]()
        if write.remove or write.update:
            queries["rows"] = self._rows_query(f"AND id {self.one_of}", (self._list(write.touched),))
        if write.receipts:
            receipts = {receipt_name(key): value for key, value in write.receipts.items()}
            query = f"SELECT name FROM receipts WHERE memory = ? AND name {self.one_of}"
            queries["answered"] = query, (self._memory, self._list(list(receipts)))
        now, found = self._advance(run, settings.pop(STATE_SETTING, None), queries)
        self.written = now
        if answered := found.get("answered"):
            raise AlreadyAnswered(next(key for key in write.receipts if receipt_name(key) == answered[0][0]))
        before, after, shares, payloads = dict[int, Row](), list[Row](), Shares(), bool(write.update)
        for row in write.add:
            after.append(row.written(now))
            if row.shares:
                shares[after[-1].id] = list(row.shares)
            payloads = payloads or row.payload is not None
        if "rows" in found:
            before = {row.id: row for row in self._as_rows(found["rows"])}
            _require_unchanged(write, before)
            after += self._updated(run, write, before, now)
        if write.remove:
            self._remove(run, write.remove, now)
        if after:
            run.executemany(PUT_ROWS, list(map(self._record, after)))
        if payloads:
            self._put_payloads(run, write)
        if shares:
            self._put_shares(run, shares)
        emptied = self._put_classes(run, before.values(), after, now)
        if settings:
            records = [(self._memory, name, value, checksum(name, value)) for name, value in settings.items()]
            run.executemany(PUT_SETTINGS, records)
        if receipts:
            self._put_receipts(run, receipts, now)
        if write.erase is not None:
            self._erase_receipts(run, [*write.erase, *(label[1:] for label in emptied if label[0] == "t")])

    def _record(self, row: Row) -> tuple[object, ...]:
        head = (row.id, label_text(row.label), row.surprise_nats, row.written_at, row.source)
        tail = (row.count, int(row.has_shares), row.generation)
        key = row.key.astype("<f4").tobytes()
        return (self._memory, *head, key if self.takes_bytes else row.key, *tail, row_checksum(*head, key, *tail))

    def _remove(self, run: Run, ids: Sequence[int], generation: int) -> None:
        for table in ("rows", "payloads", "shares"):
            self._delete_of(run, table, ids)
        run.executemany("INSERT INTO removed VALUES (?, ?, ?)", [(self._memory, generation, id) for id in ids])
        forgotten = generation - GENERATIONS_FOLLOWED
        run.execute("DELETE FROM removed WHERE memory = ? AND generation <= ?", (self._memory, forgotten))

    def _delete_of(self, run: Run, table: str, ids: Sequence[int]) -> None:
        if ids:
            run.execute(f"DELETE FROM {table} WHERE memory = ? AND id {self.one_of}", (self._memory, self._list(ids)))

    def _put_payloads(self, run: Run, write: Write) -> None:
        records, rows = [], list[NewRow | RowUpdate](write.add)
        rows += write.update
        for row in rows:
            if isinstance(row.payload, bytes):
                records.append((self._memory, row.id, row.payload, payload_checksum(row.id or 0, row.payload)))
        if write.update:
            self._delete_of(run, "payloads", [change.id for change in write.update if change.payload is None])
        if records:
            run.executemany(PUT_PAYLOADS, records)

    # --- updated rows, and the shares of their sources --------------------------------------------

    def _updated(self, run: Run, write: Write, before: Mapping[int, Row], now: int) -> list[Row]:
        """The updated rows. What sources contribute to them is written."""
        known = self._shares_to_add_to(run, write, before)
        new: Shares = {}
        stale, rows = [], []
        for change in write.update:
            old = before[change.id]
            row, has_shares = change.applied(old, now), old.has_shares
            if write.left is not None:
                has_shares = write.left[row.id] > 1
                stale += [] if has_shares else [row.id]
            elif change.rebuilt:
                new[row.id] = kept_shares(change.shares, row.source)
                has_shares = bool(new[row.id])
                stale.append(row.id)
            elif row.count != old.count and self.keep_sources:
                added = added_shares(old, row, change)
                touched = {share.source for share in added}
                joined = by_source([*known.get(row.id, []), *added]).values()
                new[row.id] = [share for share in joined if share.source in touched]
                has_shares = old.has_shares or bool(added)
            rows.append(row if has_shares == row.has_shares else replace(row, has_shares=has_shares))
        self._delete_of(run, "shares", stale)
        self._put_shares(run, new)
        return rows

    def _shares_to_add_to(self, run: Run, write: Write, before: Mapping[int, Row]) -> Shares:
        """Of the rows that gain examples, the stored shares of those sources that may be among these."""
        if write.left is not None:
            return {}
        growing = [change for change in write.update if before[change.id].has_shares and not change.rebuilt]
        sources = {share.source for change in growing for share in change.shares} | {None}
        ids = [change.id for change in growing]
        return self._as_shares(run.execute(*self._shares_query(ids, list(sources))).fetchall()) if ids else {}

    def _put_shares(self, run: Run, shares: Shares) -> None:
        records = []
        for id, some in shares.items():
            for share in some:
                cells = (id, source_text(share.source), total_bytes(share.total, share.count), share.count)
                records.append((self._memory, *cells, share_checksum(*cells)))
        if records:
            run.executemany(PUT_SHARES, records)

    # --- classes ----------------------------------------------------------------------------------

    def _put_classes(self, run: Run, before: Iterable[Row], after: Iterable[Row], generation: int) -> list[str]:
        """Keep counters and sums of the classes. Returns the labels that no row has any more."""
        records, fewer = [], False
        for label, change in total_changes(before, after, self.metric).items():
            total = change.total.astype("<f8").tobytes() if self.takes_bytes else change.total.tolist()
            records.append((self._memory, label, change.rows, change.examples, total, change.first_id, generation))
            fewer = fewer or change.rows < 0
        if records:
            run.executemany(PUT_CLASSES, records)
        if not fewer:
            return []
        empty = "FROM classes WHERE memory = ? AND rows = 0"
        emptied = [label for (label,) in run.execute(f"SELECT label {empty}", (self._memory,)).fetchall()]
        if emptied:
            run.execute("INSERT INTO removed VALUES (?, ?, ?)", (self._memory, generation, CLASS_GONE))
            run.execute(f"DELETE {empty}", (self._memory,))
        return emptied

    # --- receipts ---------------------------------------------------------------------------------

    def _put_receipts(self, run: Run, receipts: Mapping[str, str], generation: int) -> None:
        cells = [(self._memory, name, value, generation, checksum(name, value)) for name, value in receipts.items()]
        run.executemany(PUT_RECEIPTS, cells)
        # Receipts beyond the limit are those of the generations before that of the oldest one kept.
        run.execute(
            "DELETE FROM receipts WHERE memory = ? AND generation < (SELECT generation FROM receipts"
            " WHERE memory = ? ORDER BY generation DESC LIMIT 1 OFFSET ?)",
            (self._memory, self._memory, RECEIPTS_KEPT - 1),
        )

    def _erase_receipts(self, run: Run, names: Iterable[str]) -> None:
        """Empty the receipts in which a name stands. They stay, so that what they stand for does not happen again."""
        erased = list[tuple[object, ...]]()
        for name in filter(None, names):
            # As the name stands within JSON.
            pattern = "".join(f"^{letter}" if letter in "^%_" else letter for letter in json.dumps(name)[1:-1])
            query = "SELECT name FROM receipts WHERE memory = ? AND value LIKE ? ESCAPE '^'"
            for (key,) in run.execute(query, (self._memory, f"%{pattern}%")).fetchall():
                erased.append((ERASED, checksum(key, ERASED), self._memory, key))
        if erased:
            run.executemany("UPDATE receipts SET value = ?, checksum = ? WHERE memory = ? AND name = ?", erased)

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


def _require_unchanged(write: Write, found: Mapping[int, Row]) -> None:
    """Refuse a write to rows that do not exist, or that have changed since they were read."""
    for id in write.touched:
        if id not in found:
            raise RowChanged(f"there is no row {id} to replace; nothing was written")
    for change in write.update:
        if change.seen_generation not in (None, found[change.id].generation):
            raise RowChanged(f"row {change.id} has been changed by another process; nothing was written")
