"""A SQLite file of memories: opening it, its transactions, and its errors in plain words.

Only SQLite itself opens the file: closing any other handle of it would drop the locks that SQLite holds for all
connections of this process. What must be known beforehand is asked of an `immutable` connection, which takes no locks and
leaves nothing beside the file. The schema must be exactly ours: a file from elsewhere can hold views and triggers.

A file is followed by its path. One that was deleted or replaced while open is noticed at the next call, where SQLite would
go on writing to a file without a name. The write-ahead log is brought into the file about once a second, so that a plain
copy of the file is a memory, too.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from apl.durable_file import replace_durably
from apl.store.errors import NoSuchMemory, StoreBusy, StoreDamaged, StoreError
from apl.store.schema import SCHEMA_VERSION, SQLITE_SCHEMA, other_schema
from apl.store.sql import Answer, Run

APPLICATION_ID = 0x41504C6D
"""Written into the file's header: "APLm"."""
PAGE_BYTES = 8192
"""Keys of some hundred numbers fill such pages better than SQLite's default of 4096."""
TRANSACTION_WAIT_SECONDS = 10.0
"""How long a write waits while another memory of the same file is being written."""
CHECKPOINT_SECONDS = 1.0
"""How soon after a write the write-ahead log is brought into the file."""
LOOKED_AT_AGAIN_SECONDS = (0.02, 0.1, 0.3)
"""Waits before a file is called damaged."""
ROLES_CHANGE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
"""What a reader without the right to write meets while a writer opens or closes the file."""
SMALLEST_PAGE = 512
"""SQLite takes a file of a few bytes for an empty one, and would write over it."""


class SqliteRun:
    """A connection that takes `%s` for values, as the statements of `SqlStore` have them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self.connection.execute(statement.replace("%s", "?"), tuple(values))

    def executemany(self, statement: str, records: Sequence[Sequence[object]]) -> None:
        self.connection.executemany(statement.replace("%s", "?"), records)

    def settle(self) -> None:
        pass


def add_sums(one: bytes, other: bytes) -> bytes:
    """The sum of two sums of a class, as a function of the database."""
    total: np.ndarray = np.frombuffer(one, "<f8") + np.frombuffer(other, "<f8")
    return total.tobytes()


class SqliteFile:
    """A connection to a file that is ours, of a version we know, and still where it was."""

    def __init__(self, path: Path, *, create: bool, read_only: bool) -> None:
        if sqlite3.sqlite_version_info < (3, 38):
            raise StoreError(f"memories in a file need SQLite 3.38, this Python has {sqlite3.sqlite_version}")
        self.path = path
        # Writers that come by a symbolic link must meet at the same lock.
        self.real = path.resolve()
        self.read_only = read_only
        self._turn = threading.RLock()
        self._timer: threading.Timer | None = None
        self._erase = False
        with plain_errors(path):
            _refuse_foreign_patiently(path, self.real, create)
            self._may_write = _may_write(path, self.real, read_only)
            if create:
                with suppress(FileExistsError):
                    os.close(os.open(self.real, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            self._connect()

    def _connect(self) -> None:
        self._open()
        try:
            self._prepare_patiently()
            self._identity = _identity(self.real)
        except BaseException:
            self.connection.close()
            raise

    def _open(self) -> None:
        mode = "mode=rw"
        self._immutable = False
        if not self._may_write:
            # Without a write-ahead log beside it the file is complete, and nothing has to be written to read it.
            self._immutable = not _size(_beside(self.real, "-wal"))
            mode = "mode=ro&immutable=1" if self._immutable else "mode=ro"
        self._seen = self._state()
        self.connection = _open(self.real, mode)

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
        version = self._version_now()
        if self.read_only:
            run.execute("PRAGMA query_only=ON")
            if version is None:
                raise NoSuchMemory(f"{self.path} holds no memories")
            return
        run.create_function("add_sums", 2, add_sums, deterministic=True)
        if version is None:
            run.execute(f"PRAGMA page_size={PAGE_BYTES}")
        run.execute("PRAGMA journal_mode=WAL")
        run.execute("PRAGMA synchronous=FULL")
        run.execute("PRAGMA fullfsync=ON")
        # What is forgotten is overwritten.
        run.execute("PRAGMA secure_delete=ON")
        if version is None:
            with self._begun("BEGIN IMMEDIATE"):
                # Another process may have made the tables in the meantime.
                if self._version() is None:
                    _create_tables(run)

    def _version_now(self) -> int | None:
        with self._begun("BEGIN"):
            return self._version()

    def _version(self) -> int | None:
        """The version of the tables, None in an empty file; any other file is refused. Within a transaction, because
        another process may be making the tables at this moment."""
        version = self.connection.execute("PRAGMA user_version").fetchone()[0]
        application = self.connection.execute("PRAGMA application_id").fetchone()[0]
        _check_version(self.path, version, application)
        query = "SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
        found = sorted(str(sql) for (sql,) in self.connection.execute(query))
        if application != APPLICATION_ID:
            if found:
                raise StoreDamaged(f"{self.path} is not a memory: it is the SQLite file of another program")
            return None
        if found != sorted(_statements()):
            raise StoreDamaged(f"{self.path} is not a memory as apl makes it: its tables are others; it was not opened")
        return int(version)

    # --- transactions -----------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """All that is written within happens, or nothing; it is on the disk afterwards."""
        with self._turn:
            self._require_still_there()
            with self._begun("BEGIN IMMEDIATE"):
                yield SqliteRun(self.connection)
            self._require_still_there()
            self._checkpoint_soon()

    def read(self, ask: Callable[[Run], Answer]) -> Answer:
        """The answer to questions about one and the same state of the file."""
        with self._turn:
            while True:
                self._require_still_there()
                if self._immutable and self._state() != self._seen:
                    self.connection.close()
                    self._connect()
                try:
                    with self._begun("BEGIN"):
                        answer = ask(SqliteRun(self.connection))
                except (sqlite3.Error, StoreError):
                    if self._may_write or self._state() == self._seen:
                        raise
                    # The writer has closed the file, or opened it, in the meantime.
                    self.connection.close()
                    self._connect()
                    continue
                # Without locks, another process may have written in the meantime.
                if not self._immutable or self._state() == self._seen:
                    return answer

    @contextmanager
    def _begun(self, begin: str) -> Iterator[None]:
        run = self.connection
        if run.in_transaction:
            # Left over from a call that was interrupted: calls take turns.
            run.execute("ROLLBACK")
        try:
            run.execute(begin)
            yield
            run.execute("COMMIT")
        except BaseException:
            # Some errors, such as a full disk, have already rolled it back.
            if run.in_transaction:
                run.execute("ROLLBACK")
            raise

    def _state(self) -> tuple[object, ...]:
        """Changes with every write."""
        found: list[tuple[int, ...] | None] = []
        for path in (self.real, _beside(self.real, "-wal")):
            try:
                stat = os.stat(path)
                found.append((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
            except FileNotFoundError:
                found.append(None)
        return tuple(found)

    def _require_still_there(self) -> None:
        try:
            same = _identity(self.real) == self._identity
        except FileNotFoundError:
            same = False
        if not same:
            raise StoreError(
                f"{self.path} was deleted or replaced while it was open; nothing was written: open the memory anew"
            )

    # --- the write-ahead log ----------------------------------------------------------------------

    def _checkpoint_soon(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(CHECKPOINT_SECONDS, self.checkpoint)
            self._timer.daemon = True
            self._timer.start()

    def checkpoint(self) -> None:
        with self._turn:
            self._timer, mode = None, "TRUNCATE" if self._erase else "PASSIVE"
            # What was written is safe in the log; SQLite tries again when the log is long, and at the end.
            with suppress(sqlite3.Error):
                busy, _, _ = self.connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
                self._erase = self._erase and bool(busy)

    def truncate_log(self) -> None:
        """Empty the write-ahead log, which still holds what was deleted; as soon as no reader needs it."""
        with self._turn:
            self._erase = True
            self.connection.execute("PRAGMA busy_timeout=100")
            try:
                self.checkpoint()
            finally:
                self.connection.execute(f"PRAGMA busy_timeout={int(TRANSACTION_WAIT_SECONDS * 1000)}")
            if self._erase:
                self._checkpoint_soon()

    def vacuum(self) -> None:
        """Make the file as small as its content."""
        with self._turn:
            self._require_still_there()
            self.connection.execute("VACUUM")
            self.truncate_log()

    def backup(self, target: Path) -> None:
        """A copy of the whole file as it is at this moment, complete and durable when this returns."""
        part = target.with_name(f".{target.name}.part")
        part.unlink(missing_ok=True)
        try:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            copy = sqlite3.connect(part)
            try:
                self._copy_to(copy)
                # One file, with nothing beside it.
                copy.execute("PRAGMA journal_mode=DELETE")
            finally:
                copy.close()
            replace_durably(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def _copy_to(self, copy: sqlite3.Connection) -> None:
        self.read(lambda _: self.connection.backup(copy))

    def close(self) -> None:
        with self._turn:
            if self._timer is not None:
                self._timer.cancel()
                self.checkpoint()
            self.connection.close()


def _statements() -> list[str]:
    return [statement.strip() for statement in SQLITE_SCHEMA.split(";") if statement.strip()]


def _create_tables(run: sqlite3.Connection) -> None:
    for statement in _statements():
        run.execute(statement)
    run.execute(f"PRAGMA application_id={APPLICATION_ID}")
    run.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _explained(path, error) from error
    except PermissionError as error:
        raise StoreError(f"{error.filename or path} must not be written by this user; nothing was written") from error
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror}") from error


def _open(real: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{real.as_uri()}?{mode}",
        uri=True,
        timeout=TRANSACTION_WAIT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )


def _refuse_foreign_patiently(path: Path, real: Path, create: bool) -> None:
    """Read without locks, a file into which another process brings the log may seem cut: it is read again."""
    for wait in (*LOOKED_AT_AGAIN_SECONDS, None):
        try:
            return _refuse_foreign(path, real, create)
        except StoreDamaged:
            if wait is None:
                raise
        time.sleep(wait)


def _refuse_foreign(path: Path, real: Path, create: bool) -> None:
    """Refuse a foreign, a newer or a cut file before SQLite puts as much as a lock beside it."""
    if real.is_dir():
        raise StoreError(f"{path} is a directory, not a memory's file")
    if not real.exists():
        if not create:
            raise NoSuchMemory(f"{path} does not exist")
        if not real.parent.is_dir():
            raise StoreError(f"{path} cannot be made: the directory {path.absolute().parent} does not exist")
        return
    size = _size(real)
    if not size:
        return
    if size < SMALLEST_PAGE:
        raise StoreDamaged(f"{path} is not a memory: it is no SQLite file, or its beginning is damaged")
    look = _open(real, "mode=ro&immutable=1")
    try:
        version, application, pages, page_size = (
            look.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("user_version", "application_id", "page_count", "page_size")
        )
    except sqlite3.DatabaseError as error:
        if _in_the_making(real):
            return
        kind = getattr(error, "sqlite_errorname", "") or ""
        if kind.startswith("SQLITE_CORRUPT"):
            raise StoreDamaged(f"{path} was cut short or its beginning is damaged: restore it from a copy") from error
        if kind.startswith("SQLITE_NOTADB"):
            raise StoreDamaged(f"{path} is not a memory: it is no SQLite file, or its beginning is damaged") from error
        raise
    finally:
        look.close()
    _check_version(path, version, application)
    # SQLite itself does not notice when the last page has lost its end.
    if size < pages * page_size and not _in_the_making(real):
        raise StoreDamaged(f"{path} was cut short ({size} of {pages * page_size} bytes): restore it from a copy")


def _in_the_making(real: Path) -> bool:
    """With a log beside it, the file alone need not be whole."""
    return any(_beside(real, log).exists() for log in ("-wal", "-journal"))


def _check_version(path: Path, version: int, application: int) -> None:
    if application not in (0, APPLICATION_ID):
        raise StoreDamaged(f"{path} is not a memory: it is the SQLite file of another program")
    if application == APPLICATION_ID and version < 1:
        raise StoreDamaged(f"{path} has lost its version: its beginning is damaged, restore it from a copy")
    if application == APPLICATION_ID and version != SCHEMA_VERSION:
        raise other_schema(str(path), version)


def _may_write(path: Path, real: Path, read_only: bool) -> bool:
    exists = real.exists()
    may_write = os.access(real.parent, os.W_OK) and (not exists or os.access(real, os.W_OK))
    if not read_only and not may_write:
        what = path if exists and not os.access(real, os.W_OK) else path.absolute().parent
        raise StoreError(f"{what} is read-only: open the memory for reading only, or give the right to write")
    return may_write


def _beside(real: Path, ending: str) -> Path:
    return real.with_name(real.name + ending)


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _identity(real: Path) -> tuple[int, int]:
    stat = os.stat(real)
    return stat.st_dev, stat.st_ino


def _explained(path: Path, error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith("SQLITE_FULL") or code in ("SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"):
        return StoreError(f"{path} could not grow, the disk is full; nothing of this write was kept, all before it was")
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or code == "SQLITE_IOERR_SHORT_READ":
        return StoreDamaged(f"{path} is damaged or was cut short ({error}): restore it from a copy")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(f"{path} is being written by another process; nothing was written, try again")
    if code.startswith(("SQLITE_READONLY", "SQLITE_PERM")):
        return StoreError(f"{path} is read-only; nothing was written")
    if code.startswith("SQLITE_CANTOPEN"):
        return StoreError(f"{path} or the lock files beside it cannot be opened by this user")
    return StoreError(f"{path}: {error}")
