"""Memories in one SQLite file, the default home: several named memories, nothing to install, nothing to run.

The file is the source of truth, in WAL mode with `synchronous=FULL`: a write has reached the disk when it
returns, and a process killed in the middle of one leaves no trace of it. A writer holds a `WriterLock` on
its memory. Two files appear beside an open memory (`-wal`, `-shm`) and go when it is closed. Whatever is read is
compared with its checksum.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from apl.store.contract import RECEIPTS_KEPT, Store, agree, require_creatable
from apl.store.errors import AlreadyAnswered, NoSuchMemory, StoreDamaged, StoreError
from apl.store.rows import (
    KEEP,
    Changes,
    Label,
    MemoryInfo,
    MergedExample,
    NewRow,
    Row,
    RowUpdate,
    Snapshot,
    Write,
    checked_name,
    key_bytes,
    key_of,
    updated_row,
)
from apl.store.sqlite_file import SqliteFile, plain_errors
from apl.store.sqlite_schema import FILE_SCHEMA, MEMORY_CONTENT, ROW_CONTENT, checksum, row_checksum
from apl.store.sqlite_verify import KEY_DTYPE, holds, sqlite_problems
from apl.store.writer_lock import WriterLock

MEMORIES = """SELECT name, fingerprint, width, created,
              (SELECT count(*) FROM rows WHERE memory = memories.id), id FROM memories"""
GENERATIONS_FOLLOWED = 10_000
"""A copy that is further behind has to be loaded anew."""
LIST = "(SELECT value FROM json_each(?))"
"""Any number of ids as a single parameter, a JSON list."""


def open_sqlite(
    path: Path, name: str, fingerprint: str | None, width: int | None, read_only: bool, timeout: float
) -> SqliteStore:
    creating = not read_only and fingerprint is not None and width is not None
    file = SqliteFile(path, create=creating, read_only=read_only)
    lock = None
    try:
        with plain_errors(path):
            if not read_only:
                lock = WriterLock(file.real, name, timeout)
            found = _find(file, name)
            if found is None:
                require_creatable(str(path), name, fingerprint, width, read_only)
                with file.transaction() as run:
                    run.execute(
                        "INSERT INTO memories (name, fingerprint, width, created, next_id, generation)"
                        " VALUES (?, ?, ?, ?, 1, 0)",
                        (name, fingerprint, width, time.time()),
                    )
                    seal(run, name)
                found = _find(file, name)
            info, memory = found
            agree(info, fingerprint, width)
        return SqliteStore(file, lock, info, memory, read_only)
    except BaseException:
        file.close()
        if lock is not None:
            lock.release()
        raise


def list_sqlite(path: Path) -> list[MemoryInfo]:
    file = SqliteFile(path, create=False, read_only=True)
    try:
        with plain_errors(path):
            return [
                _info(record) for record in file.read(lambda run: run.execute(f"{MEMORIES} ORDER BY name").fetchall())
            ]
    finally:
        file.close()


def delete_sqlite(path: Path, name: str) -> None:
    with open_sqlite(path, name, None, None, read_only=False, timeout=0.0) as store:
        store._drop()


def backup_sqlite(path: Path, target: Path) -> None:
    file = SqliteFile(path, create=False, read_only=True)
    try:
        with plain_errors(target):
            if target.exists():
                raise StoreError(f"{target} is there already: back up to a new file")
            if not target.absolute().parent.is_dir():
                raise StoreError(f"{target} cannot be made: the directory {target.absolute().parent} does not exist")
            file.backup(target)
    finally:
        file.close()


def _find(file: SqliteFile, name: str) -> tuple[MemoryInfo, int] | None:
    record = file.read(lambda run: run.execute(f"{MEMORIES} WHERE name = ?", (checked_name(name),)).fetchone())
    return record and (_info(record), record[-1])


def _info(record: tuple[Any, ...]) -> MemoryInfo:
    name, fingerprint, width, created, rows, _ = record
    return MemoryInfo(name, fingerprint, width, created, FILE_SCHEMA, rows)


def seal(run: sqlite3.Connection, name: str) -> None:
    """Give the record of a memory, which has just changed, its checksum."""
    record = run.execute(f"SELECT {MEMORY_CONTENT} FROM memories WHERE name = ?", (name,)).fetchone()
    run.execute("UPDATE memories SET checksum = ? WHERE name = ?", (checksum(*record), name))


class SqliteStore(Store):
    """One memory of a SQLite file."""

    def __init__(
        self, file: SqliteFile, lock: WriterLock | None, info: MemoryInfo, memory: int, read_only: bool
    ) -> None:
        super().__init__(info.name, info.fingerprint, info.width, info.created, read_only)
        self.path = file.path
        self._file = file
        self._writer_lock = lock
        self._memory = memory

    def _write(self, write: Write) -> None:
        memory = self._memory
        with self._file.transaction() as run:
            (generation,) = self._one(run, "SELECT generation + 1 FROM memories WHERE id = ?", memory)
            gone = [(memory, id) for id in write.remove]
            for table in ("rows", "payloads", "merged"):
                run.executemany(f"DELETE FROM {table} WHERE memory = ? AND id = ?", gone)
            run.executemany("INSERT INTO removed VALUES (?, ?, ?)", ((memory, generation, id) for _, id in gone))
            self._put_rows(run, write.add, generation)
            if write.update:
                changes = {change.id: change for change in write.update}
                current = self._fetched(run, list(changes), with_payloads=False)
                self._put_rows(run, [updated_row(row, changes[row.id]) for row in current], generation)
                self._put_payloads(run, changes)
            self._put_merged(run, write)
            run.executemany(
                "INSERT INTO settings (memory, key, value, checksum) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (memory, key) DO UPDATE SET value = excluded.value, checksum = excluded.checksum",
                ((memory, key, value, checksum(key, value)) for key, value in write.settings.items()),
            )
            self._put_receipts(run, write.receipts, generation)
            forgotten = generation - GENERATIONS_FOLLOWED
            run.execute("DELETE FROM removed WHERE memory = ? AND generation <= ?", (memory, forgotten))
            run.execute(
                "UPDATE memories SET next_id = max(next_id, ?), generation = ?, rows = rows + ?,"
                " known_since = max(known_since, ?) WHERE id = ?",
                (
                    max((row.id + 1 for row in write.add), default=1),
                    generation,
                    len(write.add) - len(write.remove),
                    forgotten,
                    memory,
                ),
            )
            seal(run, self.name)

    def _put_rows(self, run: sqlite3.Connection, rows: Sequence[NewRow | Row], generation: int) -> None:
        records = [
            (
                *(row.id, row.label, row.surprise_nats, row.written_at, row.source),
                *(row.key.astype(KEY_DTYPE).tobytes(), row.count, row.extra, generation),
            )
            for row in rows
        ]
        run.executemany(
            f"INSERT OR REPLACE INTO rows (memory, {ROW_CONTENT}, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            ((self._memory, *record, row_checksum(*record)) for record in records),
        )
        self._put_payloads(run, {row.id: row for row in rows if isinstance(row, NewRow)})

    def _put_payloads(self, run: sqlite3.Connection, rows: Mapping[int, NewRow | RowUpdate]) -> None:
        payloads = {id: row.payload for id, row in rows.items() if row.payload is not KEEP}
        run.executemany(
            "DELETE FROM payloads WHERE memory = ? AND id = ?",
            ((self._memory, id) for id, payload in payloads.items() if payload is None),
        )
        run.executemany(
            "INSERT OR REPLACE INTO payloads (memory, id, payload, checksum) VALUES (?, ?, ?, ?)",
            (
                (self._memory, id, payload, checksum(id, payload))
                for id, payload in payloads.items()
                if payload is not None
            ),
        )

    def _put_receipts(self, run: sqlite3.Connection, receipts: Mapping[str, str], generation: int) -> None:
        for key, value in receipts.items():
            try:
                run.execute(
                    "INSERT INTO receipts (memory, key, value, generation, checksum) VALUES (?, ?, ?, ?, ?)",
                    (self._memory, key, value, generation, checksum(key, value)),
                )
            except sqlite3.IntegrityError:
                raise AlreadyAnswered(key) from None
        if receipts:
            run.execute(
                "DELETE FROM receipts WHERE memory = ?1 AND key IN (SELECT key FROM receipts WHERE memory = ?1"
                " ORDER BY generation DESC LIMIT -1 OFFSET ?2)",
                (self._memory, RECEIPTS_KEPT),
            )

    def _receipt(self, key: str) -> str | None:
        def ask(run: sqlite3.Connection) -> str | None:
            query = "SELECT value, checksum FROM receipts WHERE memory = ? AND key = ?"
            found = run.execute(query, (self._memory, key)).fetchone() if self._is_sealed(run) else None
            if found is not None and checksum(key, found[0]) != found[1]:
                raise self._damaged(f"the receipt {key!r} is not as it was written")
            return None if found is None else found[0]

        return self._file.read(ask)

    def _put_merged(self, run: sqlite3.Connection, write: Write) -> None:
        for change in write.update:
            if change.rebuilt:
                run.execute("DELETE FROM merged WHERE memory = ? AND id = ?", (self._memory, change.id))
        for row in (*write.add, *write.update):
            query = "SELECT count(*) FROM merged WHERE memory = ? AND id = ?"
            first = run.execute(query, (self._memory, row.id)).fetchone()[0] if row.merged else 0
            for number, example in enumerate(row.merged, first):
                record = (row.id, number, example.source, key_bytes(example.key))
                run.execute(
                    "INSERT INTO merged (memory, id, number, source, key, checksum) VALUES (?, ?, ?, ?, ?, ?)",
                    (self._memory, *record, checksum(*record)),
                )

    def _next_id(self) -> int:
        if self._reserve_from:
            # This is the one writer, and it has counted since it asked the file.
            return self._reserve_from
        query = "SELECT next_id FROM memories WHERE id = ?"
        return self._file.read(lambda run: self._one(run, query, self._memory)[0])

    def _merged(self, ids: list[int]) -> dict[int, list[MergedExample]]:
        query = f"SELECT id, number, source, key, checksum FROM merged WHERE memory = ? AND id IN {LIST} ORDER BY id, number"

        def ask(run: sqlite3.Connection) -> dict[int, list[MergedExample]]:
            found: dict[int, list[MergedExample]] = {}
            for *record, written in run.execute(query, (self._memory, json.dumps(ids))) if self._is_sealed(run) else ():
                id, number, source, key = record
                if checksum(*record) != written:
                    raise self._damaged(f"example {number} of row {id} is not as it was written")
                found.setdefault(id, []).append(MergedExample(source, key_of(key, self.width)))
            return found

        return self._file.read(ask)

    def _merged_from(self, source: str) -> list[int]:
        query = "SELECT DISTINCT id FROM merged WHERE memory = ? AND source = ? ORDER BY id"
        return self._file.read(
            lambda run: [id for (id,) in run.execute(query, (self._memory, source))] if self._is_sealed(run) else []
        )

    def _changes(self, since: int) -> Changes | None:
        def ask(run: sqlite3.Connection) -> Changes | None:
            generation = self._generation_in(run)
            if not self._is_sealed(run):
                return None
            (known_since,) = self._one(run, "SELECT known_since FROM memories WHERE id = ?", self._memory)
            if since < known_since:
                return None
            query = "SELECT DISTINCT id FROM removed WHERE memory = ? AND generation > ? ORDER BY id"
            removed = [id for (id,) in run.execute(query, (self._memory, since))]
            return Changes(self._snapshot(self._records(run, "AND generation > ?", (since,)), generation), removed)

        return self._file.read(ask)

    def _existing(self, ids: list[int]) -> list[int]:
        query = f"SELECT id FROM rows WHERE memory = ? AND id IN {LIST} ORDER BY id"
        return self._column(query, json.dumps(ids))

    def _labelled(self, label: Label) -> list[int]:
        return self._column("SELECT id FROM rows WHERE memory = ? AND label = ? ORDER BY id", label)

    def _from_source(self, source: str) -> list[int]:
        return self._column("SELECT id FROM rows WHERE memory = ? AND source = ? ORDER BY id", source)

    def _load(self) -> Snapshot:
        return self._file.read(self._loaded)

    def _loaded(self, run: sqlite3.Connection) -> Snapshot:
        generation = self._generation_in(run)
        records = self._records(run, "", ())
        if self._is_sealed(run):
            (expected,) = self._one(run, "SELECT rows FROM memories WHERE id = ?", self._memory)
            if len(records) != expected:
                raise self._damaged(f"{len(records)} rows are left of {expected}")
        return self._snapshot(records, generation)

    def _snapshot(self, records: list[tuple[Any, ...]], generation: int) -> Snapshot:
        columns = zip(*records, strict=True) if records else [()] * 9
        ids, labels, surprise, written_at, sources, keys, counts, extras, _ = columns
        return Snapshot(
            ids=np.array(ids, np.int64),
            keys=self._keys(ids, keys),
            labels=list(labels),
            surprise_nats=np.array(surprise, np.float64),
            written_at=np.array(written_at, np.float64),
            sources=list(sources),
            counts=np.array(counts, np.int64),
            extras=list(extras),
            generation=generation,
        )

    def _ids(self, after: int = 0, most: int | None = None) -> list[int]:
        limit = -1 if most is None else most
        return self._column("SELECT id FROM rows WHERE memory = ? AND id > ? ORDER BY id LIMIT ?", after, limit)

    def _fetch(self, ids: list[int]) -> list[Row]:
        return self._file.read(lambda run: self._fetched(run, ids))

    def _fetched(self, run: sqlite3.Connection, ids: list[int], with_payloads: bool = True) -> list[Row]:
        records = self._records(run, f"AND id IN {LIST}", (json.dumps(ids),))
        payloads = self._payloads(run, f"AND id IN {LIST}", (json.dumps(ids),)) if with_payloads else {}
        keys = self._keys([record[0] for record in records], [record[5] for record in records])
        return [
            Row(id, label, key, surprise, written_at, source, payloads.get(id), count, extra)
            for (id, label, surprise, written_at, source, _, count, extra, _), key in zip(records, keys, strict=True)
        ]

    def _records(self, run: sqlite3.Connection, which: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """Rows as they are stored, each compared with its checksum."""
        if not self._is_sealed(run):
            content = ROW_CONTENT.replace("count, extra, generation", "1, NULL, 0")
            query = f"SELECT {content} FROM rows WHERE memory = ? {which} ORDER BY id"
            return run.execute(query, (self._memory, *values)).fetchall()
        query = f"SELECT {ROW_CONTENT}, checksum FROM rows WHERE memory = ? {which} ORDER BY id"
        found = run.execute(query, (self._memory, *values)).fetchall()
        for record in found:
            if not holds(record):
                raise self._damaged(f"row {record[0]} is not as it was written")
        return [record[:-1] for record in found]

    def _payloads(self, run: sqlite3.Connection, which: str, values: tuple[object, ...]) -> dict[int, bytes]:
        kept = "checksum" if self._is_sealed(run) else "NULL"
        query = f"SELECT id, payload, {kept} FROM payloads WHERE memory = ? {which}"
        found = run.execute(query, (self._memory, *values)).fetchall()
        if kept == "checksum":
            for id, payload, written in found:
                if checksum(id, payload) != written:
                    raise self._damaged(f"the payload of row {id} is not as it was written")
        return {id: payload for id, payload, _ in found}

    def _settings(self, key: str | None = None) -> dict[str, str]:
        def ask(run: sqlite3.Connection) -> dict[str, str]:
            if not self._is_sealed(run):
                return dict(run.execute("SELECT key, value FROM settings WHERE memory = ?", (self._memory,)))
            query = "SELECT key, value, checksum FROM settings WHERE memory = ?"
            found = run.execute(query, (self._memory,)).fetchall()
            for key, value, written in found:
                if checksum(key, value) != written:
                    raise self._damaged(f"the setting {key!r} is not as it was written")
            return {key: value for key, value, _ in found}

        return self._file.read(ask)

    def _count(self) -> int:
        query = "SELECT count(*) FROM rows WHERE memory = ?"
        return self._file.read(lambda run: self._one(run, query, self._memory)[0])

    def _generation(self) -> int:
        return self._file.read(self._generation_in)

    def _generation_in(self, run: sqlite3.Connection) -> int:
        if not self._is_sealed(run):
            return self._one(run, "SELECT generation FROM memories WHERE id = ?", self._memory)[0]
        record = self._one(run, f"SELECT {MEMORY_CONTENT}, checksum FROM memories WHERE id = ?", self._memory)
        if checksum(*record[:-1]) != record[-1]:
            raise self._damaged("its own record is not as it was written")
        return record[6]

    def _is_sealed(self, run: sqlite3.Connection) -> bool:
        """Whether the file has checksums: not if it is of version 1 and nobody has opened it for writing since."""
        return run.execute("PRAGMA user_version").fetchone()[0] >= 2

    def _problems(self) -> list[str]:
        return self._file.read(lambda run: sqlite_problems(run, self._memory, self.width, self._is_sealed(run)))

    def _drop(self) -> None:
        with self._using(writing=True), self._file.transaction() as run:
            for table in ("rows", "payloads", "settings", "merged", "removed", "receipts"):
                run.execute(f"DELETE FROM {table} WHERE memory = ?", (self._memory,))
            run.execute("DELETE FROM memories WHERE id = ?", (self._memory,))

    def _close(self) -> None:
        with plain_errors(self.path):
            try:
                self._file.close()
            finally:
                if self._writer_lock is not None:
                    self._writer_lock.release()

    def _plain_errors(self) -> AbstractContextManager[None]:
        return plain_errors(self.path)

    def _one(self, run: sqlite3.Connection, query: str, *values: object) -> tuple[Any, ...]:
        record = run.execute(query, values).fetchone()
        if record is None:
            raise NoSuchMemory(f"memory {self.name!r} has been deleted from {self.path}")
        return record

    def _column(self, query: str, *values: object) -> list[int]:
        return self._file.read(lambda run: [id for (id,) in run.execute(query, (self._memory, *values))])

    def _damaged(self, what: str) -> StoreDamaged:
        return StoreDamaged(
            f"memory {self.name!r} in {self.path} is damaged ({what}): see `apl memory verify`, restore it from a copy"
        )

    def _keys(self, ids: Sequence[int], keys: Sequence[bytes]) -> np.ndarray:
        size = self.width * KEY_DTYPE.itemsize
        for id, key in zip(ids, keys, strict=True):
            if len(key) != size:
                raise StoreDamaged(
                    f"row {id} of memory {self.name!r} has a key of {len(key)} bytes instead of {size}: "
                    f"see `apl memory verify`"
                )
        # Copied, because an array over bytes would be read-only.
        return np.frombuffer(b"".join(keys), KEY_DTYPE).reshape(-1, self.width).astype(np.float32)
