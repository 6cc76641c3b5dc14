"""Memories in one SQLite file, the default: several named memories, nothing to install, nothing to run.

The file is the system of record, in WAL mode with `synchronous=FULL`: a write has reached the disk when it returns, and a
process killed in the middle of one leaves no trace of it. A writer holds a `WriterLock` on its memory; one that comes
around the lock is refused by the generation of the memory's record. Two files appear beside an open memory (`-wal`,
`-shm`) and go when it is closed. Whatever is read is compared with its checksum. Deleted content is overwritten.
A memory in RAM is the same without a file.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from apl.store.answers import MemoryInfo, Record
from apl.store.errors import StoreBusy, StoreError
from apl.store.opening import LISTING, RECORD, RECORDS, Options, as_record
from apl.store.reading import Query, Run
from apl.store.rows import checksum
from apl.store.schema import TABLES
from apl.store.sqlite_file import SqliteFile, explained, plain_errors
from apl.store.writing import Store

RAM = ""
"""The place of memories that end with the process."""
LOCK_RETRY_SECONDS = 0.02


class WriterLock:
    """One writer per memory of a file: a lock that dies with its process. Held from construction until `release`.

    SQLite's own locks cover a whole file and one transaction; this one covers a single memory for as long as it is open. It
    locks a file beside the memory's, never the memory's own file: closing any handle of that would drop SQLite's locks.
    `file` is the memory's file without symbolic links in its path.
    """

    def __init__(self, file: Path, name: str, timeout: float) -> None:
        self._path = file.with_name(f"{file.name}-{name}.lock")
        # Not shared between threads: each store that is opened is a writer of its own.
        self._lock = FileLock(self._path, mode=0o600, thread_local=False)
        try:
            self._lock.acquire(timeout=max(timeout, 0.0), poll_interval=LOCK_RETRY_SECONDS)
        except Timeout:
            holder = "another process"
            with suppress(OSError, ValueError):
                holder = f"process {int(self._path.read_text())}"
            raise StoreBusy(
                f"memory {name!r} in {file} is open for writing elsewhere ({holder}): "
                "close it there, or open it here for reading only"
            ) from None
        with suppress(OSError):  # a full disk: the lock holds, its holder is not named
            self._path.write_text(str(os.getpid()))

    def release(self) -> None:
        # Unlinked while still locked: a process that waits for it sees that its name is gone, and begins anew.
        self._path.unlink(missing_ok=True)
        self._lock.release()


class SqliteStore(Store):
    """One memory of a SQLite file, or in RAM."""

    one_of = "IN (SELECT value FROM json_each(?))"
    driver_errors = (sqlite3.Error, OSError)

    def __init__(self, file: SqliteFile, lock: WriterLock | None, record: Record, read_only: bool) -> None:
        super().__init__(record, read_only)
        self.path = file.path
        self._file = file
        self._writer_lock = lock
        self._record_now = self._record_next = record
        """As this store last wrote it: only the one writer may rely on that. And as the transaction under way writes it."""
        self._next_id = record.next_id

    @classmethod
    def open(cls, place: str, name: str, options: Options) -> SqliteStore:
        creating = not options.read_only and options.fingerprint is not None and options.width is not None
        path = None if place == RAM else Path(place)
        file, lock = SqliteFile(path, create=creating, read_only=options.read_only), None
        try:
            with plain_errors(path):
                if path is not None and not options.read_only:
                    lock = WriterLock(file.real, name, options.timeout)
                [found] = file.ask([(f"{RECORDS} WHERE name = ?", (name,))])
                record = as_record(found[0], place) if found else _insert(file, options, place or "RAM", name)
                store = cls(file, lock, record, options.read_only)
                options.require_same(record)
            return store
        except BaseException:
            file.close()
            if lock is not None:
                lock.release()
            raise

    @classmethod
    def listing(cls, place: str) -> list[MemoryInfo]:
        if place == RAM:
            return []
        with SqliteFile(Path(place), create=False, read_only=True) as file, plain_errors(file.path):
            [found] = file.ask([(LISTING, ())])
            return [as_record(record, place).info(rows) for *record, rows in found]

    # --- transactions -----------------------------------------------------------------------------

    def _ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        with self._using():
            if self.write_behind is not None:
                self.write_behind()
            return self._file.ask(queries)

    @contextmanager
    def _writing(self, reads_first: bool = False) -> Iterator[Run]:
        with self._using(writing=True):
            if self.write_behind is not None:
                self.write_behind()
            self._record_next = self._record_now
            with self._file.transaction() as run:
                yield run
            self._record_now = self._record_next

    def _advance(self, run: Run, state: str | None, queries: Mapping[str, Query]) -> tuple[int, dict[str, list[Any]]]:
        now = self._record_now
        self._record_next = now = replace(
            now,
            next_id=self._next_id,
            generation=now.generation + 1,
            state=now.state if state is None else state,
        )
        moved = run.execute(
            "UPDATE memories SET next_id = ?, generation = ?, state = ?, checksum = ?"
            " WHERE id = ? AND generation = ? RETURNING generation",
            (now.next_id, now.generation, now.state, checksum(*vars(now).values()), now.id, now.generation - 1),
        ).fetchone()
        if moved is None:
            # Deleted, or written around the lock.
            self._as_state(run.execute(*self._state_query).fetchall())
            raise StoreBusy(
                f"memory {self.name!r} in {self.path} was written by another process meanwhile; nothing was written: "
                "open it anew"
            )
        answers = {}
        for name, query in queries.items():
            answers[name] = run.execute(*query).fetchall()
        return now.generation, answers

    def _reserve(self, count: int) -> int:
        self._next_id += count
        return self._next_id - count

    # --- how values travel ------------------------------------------------------------------------

    def _list(self, values: Sequence[int] | Sequence[str]) -> object:
        return json.dumps(values)

    def _keys(self, cells: Sequence[bytes]) -> np.ndarray:
        size = self.width * 4
        for cell in cells:
            if not isinstance(cell, bytes) or len(cell) != size:
                raise self._damaged(f"a key has not {size} bytes")
        # Copied, because an array over bytes would be read-only.
        return np.frombuffer(b"".join(cells), "<f4").reshape(-1, self.width).astype(np.float32)

    def _sum(self, cell: bytes) -> np.ndarray:
        if len(cell) != self.width * 8:
            raise self._damaged(f"the sum of a class has {len(cell)} bytes")
        return np.frombuffer(cell, "<f8").astype(np.float64)

    def _place(self) -> str:
        return "RAM" if self.path is None else str(self.path)

    # --- looking after the file -------------------------------------------------------------------

    def file_problems(self) -> list[str]:
        [found] = self._ask([("PRAGMA integrity_check", ())])
        return [line for (line,) in found if line != "ok"]

    def drop(self) -> None:
        with self._writing() as run:
            for table in TABLES[1:]:
                run.execute(f"DELETE FROM {table} WHERE memory = ?", (self._memory,))
            run.execute("DELETE FROM memories WHERE id = ?", (self._memory,))
        self._erased()

    def compact(self) -> None:
        with self._using(writing=True):
            self._file.vacuum()

    def _erased(self) -> None:
        self._file.truncate_log()

    def _explained(self, error: Exception) -> StoreError:
        return explained(self.path, error)

    def _close(self) -> None:
        with plain_errors(self.path):
            try:
                self._file.close()
            finally:
                if self._writer_lock is not None:
                    self._writer_lock.release()


def _insert(file: SqliteFile, options: Options, place: str, name: str) -> Record:
    record = options.new_record(place, name)
    with file.transaction() as run:
        (last,) = run.execute("SELECT COALESCE(MAX(id), 0) FROM memories").fetchone()
        record = replace(record, id=last + 1)
        cells = (*vars(record).values(), checksum(*vars(record).values()))
        run.execute(f"INSERT INTO memories ({RECORD}, checksum) VALUES ({', '.join('?' * len(cells))})", cells)
    file.checkpoint()
    return record
