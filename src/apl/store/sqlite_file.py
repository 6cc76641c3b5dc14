"""A SQLite file of memories: opening it, its transactions, and its errors in plain words.

Only SQLite itself opens the file: closing any other handle of it would drop the locks that SQLite holds for all
connections of this process. The schema must be exactly ours: a file from elsewhere can hold views and triggers.

A file is followed by its path. One that was deleted or replaced while open is noticed at the next call, where SQLite would
go on writing to a file without a name. The write-ahead log is brought into the file about once a second, so that a plain
copy of the file is a memory, too.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from apl.durable_file import replace_durably
from apl.store.errors import NoSuchMemory, StoreDamaged, StoreError
from apl.store.schema import SCHEMA_VERSION, SQLITE_SCHEMA
from apl.store.sqlite_guard import (
    APPLICATION_ID,
    TRANSACTION_WAIT_SECONDS,
    beside,
    check_version,
    may_write,
    open_uri,
    plain_errors,
    pragma,
    refuse_foreign,
)
from apl.store.tables import Answer

PAGE_BYTES = 8192
"""Keys of some hundred numbers fill such pages better than SQLite's default of 4096."""
CHECKPOINT_SECONDS = 1.0
"""How soon after a write the write-ahead log is brought into the file."""
ROLES_CHANGE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
"""What a reader without the right to write meets while a writer opens or closes the file."""
STATEMENTS = [statement.strip() for statement in SQLITE_SCHEMA.split(";") if statement.strip()]


def add_sums(one: bytes, other: bytes) -> bytes:
    """The sum of two sums of a class, as a function of the database."""
    total: np.ndarray = np.frombuffer(one, "<f8") + np.frombuffer(other, "<f8")
    return total.tobytes()


class SqliteRam:
    """Memories in RAM, in the same tables."""

    def __init__(self) -> None:
        if sqlite3.sqlite_version_info < (3, 38):
            raise StoreError(f"memories need SQLite 3.38, this Python has {sqlite3.sqlite_version}")
        self.turn = threading.RLock()
        self._connect()

    def _connect(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.connection.create_function("add_sums", 2, add_sums, deterministic=True)
        self._create_tables()

    def _create_tables(self) -> None:
        for statement in STATEMENTS:
            self.connection.execute(statement)
        self.connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        self.connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """All that is written within happens, or nothing."""
        with self.turn:
            run = self.connection
            if run.in_transaction:
                # Left over from a call that was interrupted: calls take turns.
                run.execute("ROLLBACK")
            try:
                run.execute(begin)
                yield run
                run.execute("COMMIT")
            except BaseException:
                # Some errors, such as a full disk, have already rolled it back.
                if run.in_transaction:
                    run.execute("ROLLBACK")
                raise

    def read(self, ask: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """The answer to questions about one and the same state."""
        with self.transaction("BEGIN") as run:
            return ask(run)

    def checkpoint(self) -> None:
        """Bring what was written from the log into the file."""

    def truncate_log(self) -> None:
        """Remove what was deleted from the log."""

    def vacuum(self) -> None:
        """Make it as small as its content."""
        self.connection.execute("VACUUM")

    def close(self) -> None:
        self.connection.close()


class SqliteFile(SqliteRam):
    """A connection to a file that is ours, of a version we know, and still where it was."""

    def __init__(self, path: Path, *, create: bool, read_only: bool) -> None:
        self.path = path
        # Writers that come by a symbolic link must meet at the same lock.
        self.real = path.resolve()
        self.read_only = read_only
        self._timer: threading.Timer | None = None
        self._erase = False
        with plain_errors(path):
            refuse_foreign(path, self.real, create)
            self._may_write = may_write(path, self.real, read_only)
            if create:
                with suppress(FileExistsError):
                    os.close(os.open(self.real, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            super().__init__()

    def _connect(self) -> None:
        self._open()
        try:
            self._prepare_patiently()
            stat = os.stat(self.real)
            self._identity = (stat.st_dev, stat.st_ino)
        except BaseException:
            self.connection.close()
            raise

    def _open(self) -> None:
        mode = "mode=rw"
        self._immutable = False
        if not self._may_write:
            # Without a write-ahead log beside it the file is complete, and nothing has to be written to read it.
            wal = beside(self.real, "-wal")
            self._immutable = not (wal.exists() and wal.stat().st_size)
            mode = "mode=ro&immutable=1" if self._immutable else "mode=ro"
        self._seen = self._files()
        self.connection = open_uri(self.real, mode)

    def _prepare_patiently(self) -> None:
        """SQLite does not wait by itself for a process that switches the file to its write-ahead log at this moment."""
        until = time.monotonic() + TRANSACTION_WAIT_SECONDS
        while True:
            try:
                return self._prepare()
            except sqlite3.OperationalError as error:
                code = error.sqlite_errorcode & 0xFF
                passing = code == sqlite3.SQLITE_BUSY or (code in ROLES_CHANGE and not self._may_write)
                if not passing or time.monotonic() > until:
                    raise
            time.sleep(0.01)
            if not self._may_write:
                self.connection.close()
                self._open()

    def _prepare(self) -> None:
        run = self.connection
        # A file from elsewhere must not be able to run functions through its schema.
        run.execute("PRAGMA trusted_schema=OFF")
        # Within a transaction, because another process may be making the tables at this moment.
        with super().transaction("BEGIN"):
            empty = self._is_empty()
        if self.read_only:
            run.execute("PRAGMA query_only=ON")
            if empty:
                raise NoSuchMemory(f"{self.path} holds no memories")
            return
        run.create_function("add_sums", 2, add_sums, deterministic=True)
        if empty:
            run.execute(f"PRAGMA page_size={PAGE_BYTES}")
        # What is forgotten is overwritten.
        for setting in ("journal_mode=WAL", "synchronous=FULL", "fullfsync=ON", "secure_delete=ON"):
            run.execute(f"PRAGMA {setting}")
        if empty:
            with super().transaction():
                if self._is_empty():
                    self._create_tables()

    def _is_empty(self) -> bool:
        """Whether the file has no tables yet; any file with other tables than ours is refused."""
        version, application = (pragma(self.connection, name) for name in ("user_version", "application_id"))
        check_version(self.path, version, application)
        query = "SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
        found = sorted(str(sql) for (sql,) in self.connection.execute(query))
        if application != APPLICATION_ID and not found:
            return True
        if application != APPLICATION_ID:
            raise StoreDamaged(f"{self.path} is not a memory: it is the SQLite file of another program")
        if found != sorted(STATEMENTS):
            raise StoreDamaged(f"{self.path} is not a memory as apl makes it: its tables are others; it was not opened")
        return False

    # --- transactions -----------------------------------------------------------------------------

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """All that is written within happens, or nothing; it is on the disk afterwards."""
        with self.turn:
            self._require_still_there()
            with super().transaction(begin) as run:
                yield run
            self._require_still_there()
            if begin == "BEGIN IMMEDIATE" and self._timer is None:
                self._checkpoint_soon()

    def read(self, ask: Callable[[sqlite3.Connection], Answer]) -> Answer:
        with self.turn:
            while True:
                if self._immutable and self._files() != self._seen:
                    self._reconnect()
                try:
                    answer = super().read(ask)
                except (sqlite3.Error, StoreError):
                    if self._may_write or self._files() == self._seen:
                        raise
                    # The writer has closed the file, or opened it, in the meantime.
                    self._reconnect()
                    continue
                # Without locks, another process may have written in the meantime.
                if not self._immutable or self._files() == self._seen:
                    return answer

    def _reconnect(self) -> None:
        self._require_still_there()
        self.connection.close()
        self._connect()

    def _files(self) -> tuple[object, ...]:
        """Changes with every write."""
        found: list[tuple[int, ...] | None] = []
        for path in (self.real, beside(self.real, "-wal")):
            try:
                stat = os.stat(path)
                found.append((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
            except FileNotFoundError:
                found.append(None)
        return tuple(found)

    def _require_still_there(self) -> None:
        try:
            stat = os.stat(self.real)
        except FileNotFoundError:
            stat = None
        if stat is None or (stat.st_dev, stat.st_ino) != self._identity:
            raise StoreError(
                f"{self.path} was deleted or replaced while it was open; nothing was written: open the memory anew"
            )

    # --- the write-ahead log ----------------------------------------------------------------------

    def _checkpoint_soon(self) -> None:
        self._timer = threading.Timer(CHECKPOINT_SECONDS, self.checkpoint)
        self._timer.daemon = True
        self._timer.start()

    def checkpoint(self) -> None:
        with self.turn:
            self._timer, mode = None, "TRUNCATE" if self._erase else "PASSIVE"
            # What was written is safe in the log; SQLite tries again when the log is long, and at the end.
            with suppress(sqlite3.Error):
                busy, _, _ = self.connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
                self._erase = self._erase and bool(busy)

    def truncate_log(self) -> None:
        """Empty the write-ahead log, which still holds what was deleted; as soon as no reader needs it."""
        with self.turn:
            self._erase = True
            self.connection.execute("PRAGMA busy_timeout=100")
            try:
                self.checkpoint()
            finally:
                self.connection.execute(f"PRAGMA busy_timeout={int(TRANSACTION_WAIT_SECONDS * 1000)}")
            if self._erase:
                self._checkpoint_soon()

    def vacuum(self) -> None:
        with self.turn:
            self._require_still_there()
            super().vacuum()
            self.truncate_log()

    def backup(self, target: Path) -> None:
        """A copy of the whole file as it is at this moment, complete and durable when this returns."""
        part = target.with_name(f".{target.name}.part")
        part.unlink(missing_ok=True)
        try:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            copy = sqlite3.connect(part)
            try:
                self.read(lambda run: run.backup(copy))
                # One file, with nothing beside it.
                copy.execute("PRAGMA journal_mode=DELETE")
            finally:
                copy.close()
            replace_durably(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        with self.turn:
            if self._timer is not None:
                self._timer.cancel()
                self.checkpoint()
            super().close()
