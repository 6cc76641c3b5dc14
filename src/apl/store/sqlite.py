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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from apl.config import Metric
from apl.store.errors import StoreBusy, StoreDamaged, StoreError
from apl.store.rows import MemoryInfo
from apl.store.schema import TABLES, checksum, new_identity
from apl.store.sqlite_file import SqliteFile, explained, plain_errors
from apl.store.tables import GENERATIONS_FOLLOWED, Answer, Options, Query, Run
from apl.store.writing import Store

RAM = ""
"""The place of memories that end with the process."""
LOCK_RETRY_SECONDS = 0.02
RECORD = (
    "id, name, identity, fingerprint, width, metric, keep_sources, created, next_id, generation, known_since, state"
)
Record = tuple[Any, ...]
"""The cells of a memory's record, as `RECORD` names them."""


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
        super().__init__(_info(record), record[0], record[5], read_only)
        self.path = file.path
        self._file = file
        self._writer_lock = lock
        self._record_now = self._record_next = record
        """As this store last wrote it: only the one writer may rely on that. And as the transaction under way writes it."""
        self._next_id: int = record[8]

    @classmethod
    def open(cls, place: str, name: str, options: Options) -> SqliteStore:
        creating = not options.read_only and options.fingerprint is not None and options.width is not None
        path = None if place == RAM else Path(place)
        file, lock = SqliteFile(path, create=creating, read_only=options.read_only), None
        try:
            with plain_errors(path):
                if path is not None and not options.read_only:
                    lock = WriterLock(file.real, name, options.timeout)
                query = f"SELECT {RECORD}, checksum FROM memories WHERE name = ?"
                found = file.read(lambda run: run.execute(query, (name,)).fetchone())
                if found is None:
                    options.require_creatable(place or "RAM", name)
                    with file.transaction() as run:
                        record = _insert(run, name, options)
                    file.checkpoint()
                else:
                    record = _unsealed(found, place)
                store = cls(file, lock, record, options.read_only)
                options.require_same(_info(record))
                store._use_metric(options.metric)
            return store
        except BaseException:
            file.close()
            if lock is not None:
                lock.release()
            raise

    @classmethod
    def listing(cls, place: str) -> list[MemoryInfo]:
        def ask(run: Run) -> list[MemoryInfo]:
            records = run.execute(f"SELECT {RECORD}, checksum FROM memories ORDER BY name").fetchall()
            rows = dict(run.execute("SELECT memory, SUM(rows) FROM classes GROUP BY memory").fetchall())
            found = [_unsealed(record, place) for record in records]
            return [_info(record, rows.get(record[0], 0)) for record in found]

        if place == RAM:
            return []
        with _reading(Path(place)) as file:
            return file.read(ask)

    # --- transactions -----------------------------------------------------------------------------

    def _read(self, ask: Callable[[Run], Answer]) -> Answer:
        with self._using():
            if self.write_behind is not None:
                self.write_behind()
            return self._file.read(ask)

    def _ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        return self._read(lambda run: [run.execute(*query).fetchall() for query in queries])

    @contextmanager
    def _writing(self, reads_first: bool = False) -> Iterator[Run]:
        with self._using(writing=True):
            if self.write_behind is not None:
                self.write_behind()
            self._record_next = self._record_now
            with self._file.transaction() as run:
                yield run
            self._record_now = self._record_next

    def _advance(
        self, run: Run, state: str | None, queries: Mapping[str, Query], metric: Metric | None = None
    ) -> tuple[int, dict[str, list[Any]]]:
        *head, metric_now, keep_sources, created, _, generation, known_since, state_now = self._record_now
        known_since = max(known_since, generation + 1 - GENERATIONS_FOLLOWED)
        cells = (self._next_id, generation + 1, known_since, state_now if state is None else state)
        self._record_next = (*head, metric or metric_now, keep_sources, created, *cells)
        seal = checksum(*self._record_next)
        moved = run.execute(
            "UPDATE memories SET metric = ?, next_id = ?, generation = ?, known_since = ?, state = ?, checksum = ?"
            " WHERE id = ? AND generation = ? RETURNING generation",
            (metric or metric_now, *cells, seal, self._memory, generation),
        ).fetchone()
        if moved is None:
            # Deleted, or written around the lock.
            self._state(run)
            raise StoreBusy(
                f"memory {self.name!r} in {self.path} was written by another process meanwhile; nothing was written: "
                "open it anew"
            )
        answers = {}
        for name, query in queries.items():
            answers[name] = run.execute(*query).fetchall()
        return generation + 1, answers

    def _reserve(self, count: int) -> int:
        self._next_id += count
        return self._next_id - count

    def _state_query(self) -> Query:
        return f"SELECT {RECORD}, checksum FROM memories WHERE id = ?", (self._memory,)

    def _as_state(self, records: Sequence[Any]) -> tuple[int, int, str | None]:
        found = _unsealed(records[0], self._place()) if records else None
        # A memory made anew may have the number of one that was deleted.
        if found is None or found[2] != self.identity:
            raise self._deleted()
        _, generation, known_since, state = found[8:]
        return generation, known_since, state

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

    def problems(self) -> list[str]:
        [found] = self._ask([("PRAGMA integrity_check", ())])
        return [line for (line,) in found if line != "ok"] or super().problems()

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


def backup_sqlite(path: Path, target: Path) -> None:
    with _reading(path) as file, plain_errors(target):
        if target.exists():
            raise StoreError(f"{target} is there already: back up to a new file")
        if not target.absolute().parent.is_dir():
            raise StoreError(f"{target} cannot be made: the directory {target.absolute().parent} does not exist")
        file.backup(target)


@contextmanager
def _reading(path: Path) -> Iterator[SqliteFile]:
    file = SqliteFile(path, create=False, read_only=True)
    try:
        with plain_errors(path):
            yield file
    finally:
        file.close()


def _unsealed(found: Sequence[Any], place: str) -> Record:
    """A memory's record, compared with its checksum."""
    *cells, seal = found
    if checksum(*cells) != seal:
        raise StoreDamaged(
            f"memory {cells[1]!r} in {place} is damaged (its own record is not as it was written): see "
            "`apl memory verify`, restore it from a copy"
        )
    return tuple(cells)


def _info(record: Record, rows: int = 0) -> MemoryInfo:
    _, name, identity, fingerprint, width, _, keep_sources, created, *_ = record
    return MemoryInfo(name, fingerprint, width, created, rows, identity, bool(keep_sources))


def _insert(run: Run, name: str, options: Options) -> Record:
    (last,) = run.execute("SELECT COALESCE(MAX(id), 0) FROM memories").fetchone()
    head = (last + 1, name, options.identity or new_identity(), options.fingerprint, options.width)
    tail = (options.metric or "euclidean", int(options.keep_sources is not False), time.time(), 1, 0, 0, None)
    record = (*head, *tail)
    places = ", ".join(["?"] * (len(record) + 1))
    run.execute(f"INSERT INTO memories ({RECORD}, checksum) VALUES ({places})", (*record, checksum(*record)))
    return record
