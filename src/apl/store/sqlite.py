"""Memories in one SQLite file, the default: several named memories, nothing to install, nothing to run.

The file is the system of record, in WAL mode with `synchronous=FULL`: a write has reached the disk when it returns, and a
process killed in the middle of one leaves no trace of it. A writer holds a `WriterLock` on its memory; one that comes
around the lock is refused by the generation of the memory's record. Two files appear beside an open memory (`-wal`,
`-shm`) and go when it is closed. Whatever is read is compared with its checksum. Deleted content is overwritten.
A memory in RAM is the same without a file.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from apl.config import Metric
from apl.store.contract import Store
from apl.store.errors import StoreBusy, StoreDamaged, StoreError
from apl.store.rows import MemoryInfo
from apl.store.schema import TABLES, checksum, new_identity
from apl.store.sqlite_file import SqliteFile, SqliteRam
from apl.store.sqlite_guard import WriterLock, explained, plain_errors
from apl.store.tables import Answer, Options, Query, Result, Run, info_of
from apl.store.writing import GENERATIONS_FOLLOWED

RAM = ""
"""The place of memories that end with the process."""
RECORD = (
    "id, name, identity, fingerprint, width, metric, keep_sources, created, next_id, generation, known_since, state"
)


@dataclass(frozen=True)
class Record:
    """The record of a memory."""

    fixed: tuple[Any, ...]
    """From `id` to `created`."""
    next_id: int
    generation: int
    known_since: int
    state: str | None

    @staticmethod
    def read(record: Sequence[Any], place: str) -> Record:
        """Compared with its checksum."""
        *cells, seal = record
        if checksum(*cells) != seal:
            raise StoreDamaged(
                f"memory {cells[1]!r} in {place} is damaged (its own record is not as it was written): see "
                "`apl memory verify`, restore it from a copy"
            )
        return Record(tuple(cells[:8]), *cells[8:])

    @property
    def cells(self) -> tuple[Any, ...]:
        return (*self.fixed, self.next_id, self.generation, self.known_since, self.state)

    @property
    def info(self) -> MemoryInfo:
        _, name, identity, fingerprint, width, _, kept, created = self.fixed
        return info_of((name, fingerprint, width, created, identity, kept))


class SqliteStore(Store):
    """One memory of a SQLite file, or in RAM."""

    one_of = "IN (SELECT value FROM json_each(?))"
    driver_errors = (sqlite3.Error, OSError)

    def __init__(self, file: SqliteRam, path: Path | None, lock: WriterLock | None, record: Record, read_only: bool):
        super().__init__(record.info, record.fixed[0], record.fixed[5], read_only)
        self.path = path
        self._file = file
        self._writer_lock = lock
        self._known = record
        """The record as this store last wrote it. Only its one writer may rely on that."""
        self._next: Record | None = None
        self._next_id = record.next_id

    @classmethod
    def open(cls, place: str, name: str, options: Options) -> SqliteStore:
        creating = not options.read_only and options.fingerprint is not None and options.width is not None
        path = Path(place) if place != RAM else None
        file = SqliteRam() if path is None else SqliteFile(path, create=creating, read_only=options.read_only)
        lock = None
        try:
            with plain_errors(path):
                if isinstance(file, SqliteFile) and not options.read_only:
                    lock = WriterLock(file.real, name, options.timeout)
                record = file.read(lambda run: _find(run, place, name))
                if record is None:
                    options.require_creatable(place or "RAM", name)
                    with file.transaction() as run:
                        record = _insert(run, name, options)
                    file.checkpoint()
                store = cls(file, path, lock, record, options.read_only)
                options.require_same(record.info)
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
            found = [Record.read(record, place) for record in records]
            return [replace(record.info, rows=rows.get(record.fixed[0], 0)) for record in found]

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
    def _writing(self, rows: int | None = None) -> Iterator[Run]:
        with self._using(writing=True):
            if self.write_behind is not None:
                self.write_behind()
            self._next = None
            with self._file.transaction() as run:
                yield run
            self._known = self._next or self._known

    def _advance(self, run: Run, state: str | None, metric: Metric | None = None) -> Result:
        known = self._known
        generation = known.generation + 1
        self._next = Record(
            known.fixed if metric is None else (*known.fixed[:5], metric, *known.fixed[6:]),
            self._next_id,
            generation,
            max(known.known_since, generation - GENERATIONS_FOLLOWED),
            known.state if state is None else state,
        )
        cells = self._next.cells
        return run.execute(
            "UPDATE memories SET metric = ?, next_id = ?, generation = ?, known_since = ?, state = ?, checksum = ?"
            " WHERE id = ? AND generation = ? RETURNING generation",
            (cells[5], *cells[8:], checksum(*cells), self._memory, known.generation),
        )

    def _advanced(self, moved: Result) -> int:
        changed = moved.fetchone()
        if changed is None:
            # Deleted, or written around the lock.
            self._as_state(self._file.connection.execute(*self._state_query()).fetchall())
            raise StoreBusy(
                f"memory {self.name!r} in {self.path} was written by another process meanwhile; nothing was written: "
                "open it anew"
            )
        return int(changed[0])

    def _reserve(self, count: int) -> int:
        self._next_id += count
        return self._next_id - count

    def _state_query(self) -> Query:
        return f"SELECT {RECORD}, checksum FROM memories WHERE id = ?", (self._memory,)

    def _as_state(self, records: Sequence[Any]) -> tuple[int, int, str | None]:
        found = Record.read(records[0], self._place()) if records else None
        # A memory made anew may have the number of one that was deleted.
        if found is None or found.info.identity != self.identity:
            raise self._deleted()
        return found.generation, found.known_since, found.state

    # --- how values travel ------------------------------------------------------------------------

    def _list(self, values: Sequence[int] | Sequence[str]) -> object:
        return json.dumps(values)

    def _key_value(self, key: np.ndarray) -> object:
        return key.astype("<f4").tobytes()

    def _sum_value(self, total: np.ndarray) -> object:
        return total.astype("<f8").tobytes()

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


def _find(run: Run, place: str, name: str) -> Record | None:
    found = run.execute(f"SELECT {RECORD}, checksum FROM memories WHERE name = ?", (name,)).fetchone()
    return None if found is None else Record.read(found, place)


def _insert(run: Run, name: str, options: Options) -> Record:
    (last,) = run.execute("SELECT COALESCE(MAX(id), 0) FROM memories").fetchone()
    head = (last + 1, name, options.identity or new_identity(), options.fingerprint, options.width)
    tail = (options.metric or "euclidean", int(options.keep_sources is not False), time.time())
    record = Record((*head, *tail), 1, 0, 0, None)
    places = ", ".join(["?"] * (len(record.cells) + 1))
    run.execute(
        f"INSERT INTO memories ({RECORD}, checksum) VALUES ({places})", (*record.cells, checksum(*record.cells))
    )
    return record
