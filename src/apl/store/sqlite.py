"""Memories in one SQLite file, the default backend: several named memories, nothing to install, nothing to run.

The file is the system of record, in WAL mode with `synchronous=FULL`: a write has reached the disk when it returns, and a
process killed in the middle of one leaves no trace of it. A writer holds a `WriterLock` on its memory; one that comes
around the lock is refused by the generation of the memory's record. Two files appear beside an open memory (`-wal`,
`-shm`) and go when it is closed. Whatever is read is compared with its checksum. Deleted content is overwritten.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from apl.config import Metric
from apl.store.contract import GENERATIONS_FOLLOWED, agree, require_creatable
from apl.store.errors import StoreBusy, StoreDamaged, StoreError
from apl.store.rows import MemoryInfo, Write
from apl.store.schema import TABLES, checksum, new_identity
from apl.store.sql import Answer, Run, SqlStore, info_of
from apl.store.sqlite_file import SqliteFile, plain_errors
from apl.store.sqlite_verify import sqlite_problems
from apl.store.validation import checked_name
from apl.store.writer_lock import WriterLock

RECORD = (
    "id, name, identity, fingerprint, width, metric, keep_sources, created, next_id, generation, known_since, state"
)


def open_sqlite(
    path: Path,
    name: str,
    *,
    fingerprint: str | None,
    width: int | None,
    read_only: bool,
    timeout: float,
    metric: Metric | None,
    keep_sources: bool | None,
    identity: str | None,
) -> SqliteStore:
    creating = not read_only and fingerprint is not None and width is not None
    file = SqliteFile(path, create=creating, read_only=read_only)
    lock = None
    try:
        with plain_errors(path):
            if not read_only:
                lock = WriterLock(file.real, name, timeout)
            record = file.read(lambda run: find(run, path, name))
            if record is None:
                require_creatable(str(path), name, fingerprint, width, read_only)
                kept = int(keep_sources is not False)
                head = (name, identity or new_identity(), fingerprint, width, metric or "euclidean", kept, time.time())
                with file.transaction() as run:
                    _insert(run, head)
                file.checkpoint()
                record = file.read(lambda run: find(run, path, name))
            assert record is not None
            store = SqliteStore(file, lock, record, read_only)
            agree(record.info, fingerprint, width, keep_sources)
            store._use_metric(metric)
        return store
    except BaseException:
        file.close()
        if lock is not None:
            lock.release()
        raise


def list_sqlite(path: Path) -> list[MemoryInfo]:
    def ask(run: Run) -> list[MemoryInfo]:
        records = run.execute(f"SELECT {RECORD}, checksum FROM memories ORDER BY name").fetchall()
        counted = run.execute("SELECT memory, SUM(rows) FROM classes GROUP BY memory").fetchall()
        rows = {memory: number for memory, number in counted}
        found = [Record(record, path) for record in records]
        return [replace(record.info, rows=rows.get(record.id, 0)) for record in found]

    file = SqliteFile(path, create=False, read_only=True)
    try:
        with plain_errors(path):
            return file.read(ask)
    finally:
        file.close()


def delete_sqlite(path: Path, name: str) -> None:
    options: dict[str, Any] = dict.fromkeys(("fingerprint", "width", "metric", "keep_sources", "identity"))
    store = open_sqlite(path, name, read_only=False, timeout=0.0, **options)
    with store:
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


class Record:
    """The record of a memory, compared with its checksum."""

    def __init__(self, record: Sequence[Any], path: Path) -> None:
        *cells, seal = record
        self.id, name, identity, fingerprint, width, metric, kept, created, *moving = cells
        if checksum(*cells) != seal:
            raise StoreDamaged(
                f"memory {name!r} in {path} is damaged (its own record is not as it was written): see "
                "`apl memory verify`, restore it from a copy"
            )
        self.info = info_of((name, fingerprint, width, created, identity, kept), 0)
        self.metric: Metric = metric
        self.fixed = tuple(cells[:8])
        self.next_id, self.generation, self.known_since, self.state = moving


def find(run: Run, path: Path, name: str) -> Record | None:
    query = f"SELECT {RECORD}, checksum FROM memories WHERE name = %s"
    found = run.execute(query, (checked_name(name),)).fetchone()
    return None if found is None else Record(found, path)


def _insert(run: Run, head: Sequence[object]) -> None:
    (last,) = run.execute("SELECT COALESCE(MAX(id), 0) FROM memories").fetchone()
    cells = (last + 1, *head, 1, 0, 0, None)
    places = ", ".join(["%s"] * (len(cells) + 1))
    run.execute(f"INSERT INTO memories ({RECORD}, checksum) VALUES ({places})", (*cells, checksum(*cells)))


class SqliteStore(SqlStore):
    """One memory of a SQLite file."""

    one_of = "IN (SELECT value FROM json_each(%s))"

    def __init__(self, file: SqliteFile, lock: WriterLock | None, record: Record, read_only: bool) -> None:
        super().__init__(record.info, read_only)
        self.path = file.path
        self.metric = self._kept_metric = record.metric
        self._file = file
        self._writer_lock = lock
        self._memory = record.id
        self._record_now = record
        """As this store last wrote it. Only its one writer may rely on that."""
        self._next_id: int = record.next_id
        self._moving: tuple[int, int, int, str | None] | None = None

    # --- the memory's record ----------------------------------------------------------------------

    def _advance(self, run: Run, next_id: int, state: str | None) -> Callable[[], int]:
        known = self._record_now
        generation = known.generation + 1
        known_since = max(known.known_since, generation - GENERATIONS_FOLLOWED)
        state = known.state if state is None else state
        moving = (max(known.next_id, next_id), generation, known_since, state)
        changed = run.execute(
            "UPDATE memories SET next_id = %s, generation = %s, known_since = %s, state = %s, checksum = %s"
            " WHERE id = %s AND generation = %s RETURNING id",
            (*moving, checksum(*known.fixed, *moving), self._memory, known.generation),
        ).fetchone()
        if changed is None:
            self._state(run)
            raise StoreBusy(
                f"memory {self.name!r} in {self.path} was written by another process meanwhile; nothing was written: "
                "open it anew"
            )
        self._moving = moving
        return lambda: generation

    @contextmanager
    def _writing(self, write: Write | None = None) -> Iterator[Run]:
        self._moving = None
        with self._file.transaction() as run:
            yield run
        if self._moving is not None:
            now = self._record_now
            now.next_id, now.generation, now.known_since, now.state = self._moving

    def _read(self, ask: Callable[[Run], Answer], snapshot: bool = True) -> Answer:
        return self._file.read(ask)

    def _ask(self, queries: Sequence[tuple[str, Sequence[object]]]) -> list[list[Any]]:
        return self._file.read(lambda run: [run.execute(*query).fetchall() for query in queries])

    def _state_query(self) -> tuple[str, tuple[object, ...]]:
        return f"SELECT {RECORD}, checksum FROM memories WHERE id = %s", (self._memory,)

    def _as_state(self, record: Any) -> tuple[int, int, str | None]:
        found = Record(self._found(record), self.path)
        # A memory made anew may have the number of one that was deleted.
        if found.info.identity != self.identity:
            self._found(None)
        return found.generation, found.known_since, found.state

    def _reserve(self, count: int) -> int:
        self._next_id += count
        return self._next_id - count

    def _use_metric(self, metric: Metric | None) -> None:
        if metric is None or metric == self.metric:
            return
        if not self.read_only:
            known = self._record_now
            known.fixed = (*known.fixed[:5], metric, *known.fixed[6:])
            with self._writing() as run:
                generation = self._advance(run, 1, None)()
                run.execute("UPDATE memories SET metric = %s WHERE id = %s", (metric, self._memory))
                self._sum_anew(run, metric, generation)
            self._kept_metric = metric
        self.metric = metric

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
        return str(self.path)

    # --- looking after the file -------------------------------------------------------------------

    def _problems(self) -> list[str]:
        return self._file.read(lambda run: sqlite_problems(run, self._memory, self.width))

    def _drop(self) -> None:
        with self._using(writing=True):
            with self._file.transaction() as run:
                for table in TABLES[1:]:
                    run.execute(f"DELETE FROM {table} WHERE memory = %s", (self._memory,))
                run.execute("DELETE FROM memories WHERE id = %s", (self._memory,))
            self._erased()

    def _erased(self) -> None:
        self._file.truncate_log()

    def _compact(self) -> None:
        self._file.vacuum()

    def _close(self) -> None:
        with plain_errors(self.path):
            try:
                self._file.close()
            finally:
                if self._writer_lock is not None:
                    self._writer_lock.release()

    def _plain_errors(self) -> AbstractContextManager[None]:
        return plain_errors(self.path)
