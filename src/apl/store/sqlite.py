"""Memories in one SQLite file, the default home: several named memories, nothing to install, nothing to run.

The file is the source of truth, in WAL mode with `synchronous=FULL`: a write has reached the disk when it
returns, and a process killed in the middle of one leaves no trace of it. A writer holds a `WriterLock` on
its memory. Two files appear beside an open memory (`-wal`, `-shm`) and go when it is closed.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from apl.store.contract import Store, agree, key_problems, require_creatable
from apl.store.errors import NoSuchMemory, StoreDamaged
from apl.store.rows import SCHEMA_VERSION, Label, MemoryInfo, NewRow, Row, Snapshot, checked_name
from apl.store.sqlite_file import connect, plain_errors, transaction
from apl.store.writer_lock import WriterLock

MEMORIES = """SELECT name, fingerprint, width, created,
              (SELECT count(*) FROM rows WHERE memory = memories.id), id FROM memories"""
LIST = "(SELECT value FROM json_each(?))"
"""Any number of ids as a single parameter, a JSON list."""
KEY_DTYPE = np.dtype("<f4")


def open_sqlite(
    path: Path, name: str, fingerprint: str | None, width: int | None, read_only: bool, timeout: float
) -> SqliteStore:
    creating = not read_only and fingerprint is not None and width is not None
    connection = connect(path, create=creating, read_only=read_only)
    lock = None
    try:
        with plain_errors(path):
            if not read_only:
                lock = WriterLock(path, name, timeout)
            found = _find(connection, name)
            if found is None:
                require_creatable(str(path), name, fingerprint, width, read_only)
                with transaction(connection):
                    connection.execute(
                        "INSERT INTO memories (name, fingerprint, width, created, next_id, generation)"
                        " VALUES (?, ?, ?, ?, 1, 0)",
                        (name, fingerprint, width, time.time()),
                    )
                found = _find(connection, name)
            info, memory = found
            agree(info, fingerprint, width)
        return SqliteStore(path, connection, lock, info, memory, read_only)
    except BaseException:
        connection.close()
        if lock is not None:
            lock.release()
        raise


def list_sqlite(path: Path) -> list[MemoryInfo]:
    connection = connect(path, create=False, read_only=True)
    try:
        with plain_errors(path):
            return [_info(record) for record in connection.execute(f"{MEMORIES} ORDER BY name")]
    finally:
        connection.close()


def delete_sqlite(path: Path, name: str) -> None:
    with open_sqlite(path, name, None, None, read_only=False, timeout=0.0) as store:
        store._drop()


def _find(connection: sqlite3.Connection, name: str) -> tuple[MemoryInfo, int] | None:
    record = connection.execute(f"{MEMORIES} WHERE name = ?", (checked_name(name),)).fetchone()
    return record and (_info(record), record[-1])


def _info(record: tuple[Any, ...]) -> MemoryInfo:
    name, fingerprint, width, created, rows, _ = record
    return MemoryInfo(name, fingerprint, width, created, SCHEMA_VERSION, rows)


class SqliteStore(Store):
    """One memory of a SQLite file."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        lock: WriterLock | None,
        info: MemoryInfo,
        memory: int,
        read_only: bool,
    ) -> None:
        super().__init__(info.name, info.fingerprint, info.width, info.created, read_only)
        self.path = path
        self._connection = connection
        self._writer_lock = lock
        self._memory = memory

    def _write(self, remove: list[int], add: list[NewRow], settings: dict[str, str]) -> list[int]:
        memory, run = self._memory, self._connection
        with transaction(run):
            (first,) = self._one("SELECT next_id FROM memories WHERE id = ?", memory)
            ids = list(range(first, first + len(add)))
            gone = [(memory, id) for id in remove]
            run.executemany("DELETE FROM rows WHERE memory = ? AND id = ?", gone)
            run.executemany("DELETE FROM payloads WHERE memory = ? AND id = ?", gone)
            run.executemany(
                "INSERT INTO rows (memory, id, label, surprise_nats, written_at, source, key)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        memory,
                        id,
                        r.label,
                        r.surprise_nats,
                        r.written_at,
                        r.source,
                        r.key.astype(KEY_DTYPE).tobytes(),
                    )
                    for id, r in zip(ids, add, strict=True)
                ),
            )
            run.executemany(
                "INSERT INTO payloads (memory, id, payload) VALUES (?, ?, ?)",
                ((memory, id, r.payload) for id, r in zip(ids, add, strict=True) if r.payload is not None),
            )
            run.executemany(
                "INSERT INTO settings (memory, key, value) VALUES (?, ?, ?)"
                " ON CONFLICT (memory, key) DO UPDATE SET value = excluded.value",
                ((memory, key, value) for key, value in settings.items()),
            )
            run.execute(
                "UPDATE memories SET next_id = ?, generation = generation + 1 WHERE id = ?",
                (first + len(add), memory),
            )
        return ids

    def _existing(self, ids: list[int]) -> list[int]:
        query = f"SELECT id FROM rows WHERE memory = ? AND id IN {LIST} ORDER BY id"
        return self._column(query, json.dumps(ids))

    def _labelled(self, label: Label) -> list[int]:
        return self._column("SELECT id FROM rows WHERE memory = ? AND label = ? ORDER BY id", label)

    def _from_source(self, source: str) -> list[int]:
        return self._column("SELECT id FROM rows WHERE memory = ? AND source = ? ORDER BY id", source)

    def _load(self) -> Snapshot:
        # One read transaction, so that the generation belongs to these very rows.
        with transaction(self._connection, "BEGIN"):
            generation = self._generation()
            records = self._connection.execute(
                "SELECT id, label, surprise_nats, written_at, source, key FROM rows WHERE memory = ? ORDER BY id",
                (self._memory,),
            ).fetchall()
        ids, labels, surprise, written_at, sources, keys = zip(*records, strict=True) if records else [()] * 6
        return Snapshot(
            ids=np.array(ids, np.int64),
            keys=self._keys(ids, keys),
            labels=list(labels),
            surprise_nats=np.array(surprise, np.float64),
            written_at=np.array(written_at, np.float64),
            sources=list(sources),
            generation=generation,
        )

    def _ids(self) -> list[int]:
        return self._column("SELECT id FROM rows WHERE memory = ? ORDER BY id")

    def _fetch(self, ids: list[int]) -> list[Row]:
        records = self._connection.execute(
            "SELECT rows.id, label, key, surprise_nats, written_at, source, payload FROM rows"
            " LEFT JOIN payloads ON payloads.memory = rows.memory AND payloads.id = rows.id"
            f" WHERE rows.memory = ? AND rows.id IN {LIST} ORDER BY rows.id",
            (self._memory, json.dumps(ids)),
        ).fetchall()
        keys = self._keys([record[0] for record in records], [record[2] for record in records])
        return [Row(record[0], record[1], key, *record[3:]) for record, key in zip(records, keys, strict=True)]

    def _settings(self) -> dict[str, str]:
        return dict(self._connection.execute("SELECT key, value FROM settings WHERE memory = ?", (self._memory,)))

    def _count(self) -> int:
        return self._one("SELECT count(*) FROM rows WHERE memory = ?", self._memory)[0]

    def _generation(self) -> int:
        return self._one("SELECT generation FROM memories WHERE id = ?", self._memory)[0]

    def _problems(self) -> list[str]:
        found = [line for (line,) in self._connection.execute("PRAGMA integrity_check") if line != "ok"]
        if found:
            return found
        wrong = self._connection.execute(
            "SELECT id, length(key) FROM rows WHERE memory = ? AND length(key) != ? ORDER BY id",
            (self._memory, self.width * KEY_DTYPE.itemsize),
        ).fetchall()
        found += [f"row {id}: the key has {size} bytes instead of {self.width * 4}" for id, size in wrong]
        found += [
            f"row {id}: the label is neither text nor an integer"
            for id in self._column("SELECT id FROM rows WHERE memory = ? AND typeof(label) NOT IN ('text', 'integer')")
        ]
        found += [
            f"row {id}: its id was never given out"
            for id in self._column(
                "SELECT rows.id FROM rows JOIN memories ON memories.id = memory"
                " WHERE memory = ? AND (rows.id < 1 OR rows.id >= next_id) ORDER BY rows.id"
            )
        ]
        found += [
            f"payload {id} belongs to no row"
            for id in self._column(
                "SELECT id FROM payloads AS p WHERE memory = ?"
                " AND NOT EXISTS (SELECT 1 FROM rows WHERE memory = p.memory AND id = p.id)"
            )
        ]
        if not wrong:
            query = "SELECT id, key FROM rows WHERE memory = ? ORDER BY id"
            records = self._connection.execute(query, (self._memory,)).fetchall()
            ids = [id for id, _ in records]
            found += key_problems(ids, self._keys(ids, [key for _, key in records]))
        return found

    def _drop(self) -> None:
        with self._using(writing=True), transaction(self._connection):
            for table in ("rows", "payloads", "settings"):
                self._connection.execute(f"DELETE FROM {table} WHERE memory = ?", (self._memory,))
            self._connection.execute("DELETE FROM memories WHERE id = ?", (self._memory,))

    def _close(self) -> None:
        with plain_errors(self.path):
            try:
                self._connection.close()
            finally:
                if self._writer_lock is not None:
                    self._writer_lock.release()

    def _plain_errors(self) -> AbstractContextManager[None]:
        return plain_errors(self.path)

    def _one(self, query: str, *values: object) -> tuple[Any, ...]:
        record = self._connection.execute(query, values).fetchone()
        if record is None:
            raise NoSuchMemory(f"memory {self.name!r} has been deleted from {self.path}")
        return record

    def _column(self, query: str, *values: object) -> list[int]:
        return [id for (id,) in self._connection.execute(query, (self._memory, *values))]

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
