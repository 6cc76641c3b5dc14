"""A SQLite file of memories: opening it, its transactions, its write-ahead log, and its errors in plain words.

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
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from apl.durable_file import replace_durably
from apl.store.errors import NoSuchMemory, StoreBusy, StoreDamaged, StoreError
from apl.store.reading import Query
from apl.store.schema import SCHEMA_VERSION, SQLITE_SCHEMA, other_schema

APPLICATION_ID = 0x41504C6D
"""Written into the file's header: "APLm"."""
TRANSACTION_WAIT_SECONDS = 10.0
"""How long a write waits while another memory of the same file is being written."""
PAGE_BYTES = 8192
"""Keys of some hundred numbers fill such pages better than SQLite's default of 4096."""
LOG_PAGES = 256
"""The write-ahead log is brought into the file when it has grown to this size: 2 MB. One that a large write left longer is cut."""
SMALLEST_PAGE = 512
"""SQLite takes a file of a few bytes for an empty one, and would write over it."""
CHECKPOINT_SECONDS = 1.0
"""How soon after a write the write-ahead log is brought into the file."""
STATEMENTS = [statement.strip() for statement in SQLITE_SCHEMA.split(";") if statement.strip()]


def add_sums(one: bytes, other: bytes) -> bytes:
    """The sum of two sums of a class, as a function of the database."""
    total: np.ndarray = np.frombuffer(one, "<f8") + np.frombuffer(other, "<f8")
    return total.tobytes()


class SqliteFile:
    """A connection to a file that is ours, of a version we know, and still where it was. Without a path, memories in RAM."""

    def __init__(self, path: Path | None, *, create: bool = True, read_only: bool = False) -> None:
        if sqlite3.sqlite_version_info < (3, 38):
            raise StoreError(f"memories need SQLite 3.38, this Python has {sqlite3.sqlite_version}")
        self.path = path
        # Writers that come by a symbolic link must meet at the same lock.
        self.real = path.resolve() if path is not None else Path(os.devnull)
        self.read_only = read_only
        self.turn = threading.RLock()
        self._may_write = True
        self._identity: tuple[int, int] | None = None
        self._timer: threading.Timer | None = None
        self._erase = False
        with plain_errors(path):
            if path is not None:
                self._require_usable(path, create)
            self._connect()

    # --- opening ----------------------------------------------------------------------------------

    def _require_usable(self, path: Path, create: bool) -> None:
        """Refuse a path that cannot hold a memory, before SQLite puts as much as a lock beside it."""
        real, exists = self.real, self.real.exists()
        if real.is_dir():
            raise StoreError(f"{path} is a directory, not a memory's file")
        if exists and not real.is_file():
            raise StoreError(f"{path} is not a file: a memory needs one of its own")
        if not exists and not create:
            raise NoSuchMemory(f"{path} does not exist")
        if not exists and not real.parent.is_dir():
            raise StoreError(f"{path} cannot be made: the directory {path.absolute().parent} does not exist")
        if exists and 0 < real.stat().st_size < SMALLEST_PAGE:
            raise StoreDamaged(f"{path} is not a memory: it is no SQLite file, or its beginning is damaged")
        closed = next((one for one in (real, real.parent) if one.exists() and not os.access(one, os.W_OK)), None)
        self._may_write = closed is None
        if closed is not None and not self.read_only:
            raise StoreError(
                f"{path if closed == real else path.absolute().parent} is read-only: open the memory for reading only, or give "
                "the right to write"
            )
        if create:
            with suppress(FileExistsError):
                os.close(os.open(real, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))

    def _connect(self) -> None:
        if self.path is None:
            self.connection = _connected(":memory:")
            self._create_tables()
            return
        self.connection = _connected(f"{self.real.as_uri()}?mode=rw") if self._may_write else self._copied()
        try:
            self._prepare_patiently()
            stat = os.stat(self.real)
            self._identity = (stat.st_dev, stat.st_ino)
        except BaseException:
            self.connection.close()
            raise

    def _copied(self) -> sqlite3.Connection:
        """A copy in RAM of a file that cannot be written, as it is now: without the right to write there are no locks."""
        if self._log_bytes():
            raise StoreBusy(f"{self.path} is read-only, and open elsewhere for writing: try again when it is closed")
        copy = _connected(":memory:")
        with closing(_connected(f"{self.real.as_uri()}?mode=ro&immutable=1")) as source:
            source.backup(copy)
        return copy

    def _prepare_patiently(self) -> None:
        """SQLite does not wait by itself for a process that switches the file to its write-ahead log at this moment."""
        until = time.monotonic() + TRANSACTION_WAIT_SECONDS
        while True:
            try:
                return self._prepare()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
            time.sleep(0.01)

    def _prepare(self) -> None:
        run = self.connection
        # A file from elsewhere must not be able to run functions through its schema.
        run.execute("PRAGMA trusted_schema=OFF")
        # Within a transaction, because another process may be making the tables at this moment.
        with self.transaction("BEGIN"):
            empty = self._is_empty()
        if self.read_only:
            run.execute("PRAGMA query_only=ON")
            if empty:
                raise NoSuchMemory(f"{self.path} holds no memories")
            return
        if empty:
            run.execute(f"PRAGMA page_size={PAGE_BYTES}")
        # What is forgotten is overwritten.
        for setting in ("journal_mode=WAL", "synchronous=FULL", "fullfsync=ON", "secure_delete=ON"):
            run.execute(f"PRAGMA {setting}")
        run.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")
        if empty:
            with self.transaction():
                if self._is_empty():
                    self._create_tables()

    def _is_empty(self) -> bool:
        """Whether the file has no tables yet; a file that is not ours, not of this version or not whole is refused."""
        version, application, pages, page_size = (
            int(self.connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("user_version", "application_id", "page_count", "page_size")
        )
        query = "SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
        found = sorted(str(sql) for (sql,) in self.connection.execute(query))
        if application != APPLICATION_ID:
            if application or found:
                raise StoreDamaged(f"{self.path} is not a memory: it is the SQLite file of another program")
            return True
        if version < 1:
            raise StoreDamaged(f"{self.path} has lost its version: its beginning is damaged, restore it from a copy")
        if version != SCHEMA_VERSION:
            raise other_schema(str(self.path), version)
        if found != sorted(STATEMENTS):
            raise StoreDamaged(f"{self.path} is not a memory as apl makes it: its tables are others; it was not opened")
        # SQLite itself does not notice when the last page has lost its end. With a log, the file alone need not be whole.
        if not self._log_bytes() and (size := self.real.stat().st_size) < pages * page_size:
            raise StoreDamaged(
                f"{self.path} was cut short ({size} of {pages * page_size} bytes): restore it from a copy"
            )
        return False

    def _create_tables(self) -> None:
        for statement in STATEMENTS:
            self.connection.execute(statement)
        self.connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        self.connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def _log_bytes(self) -> int:
        with suppress(FileNotFoundError):
            return beside(self.real, "-wal").stat().st_size
        return 0

    # --- transactions -----------------------------------------------------------------------------

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """All that is written within happens, or nothing; it is on the disk afterwards."""
        with self.turn:
            self._require_still_there()
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
            self._require_still_there()
            if begin == "BEGIN IMMEDIATE" and self._timer is None and self.path is not None:
                self._checkpoint_soon()

    def ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        """The answers to queries about one state."""
        with self.transaction("BEGIN") as run:
            return [run.execute(*query).fetchall() for query in queries]

    def _require_still_there(self) -> None:
        if self._identity is None:
            return
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
        """Bring what was written from the log into the file."""
        with self.turn:
            self._timer, longest = None, (LOG_PAGES + 8) * PAGE_BYTES
            mode = "TRUNCATE" if self._erase or self._log_bytes() > longest else "PASSIVE"
            # What was written is safe in the log; SQLite tries again when the log is long, and at the end.
            with suppress(sqlite3.Error):
                self._wait_at_most(0.1)
                busy, _, _ = self.connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
                self._erase = self._erase and bool(busy)
                self._wait_at_most(TRANSACTION_WAIT_SECONDS)
            if self._erase:
                self._checkpoint_soon()

    def truncate_log(self) -> None:
        """Empty the write-ahead log, which still holds what was deleted; as soon as no reader needs it."""
        with self.turn:
            self._erase = self.path is not None
            self.checkpoint()

    def _wait_at_most(self, seconds: float) -> None:
        self.connection.execute(f"PRAGMA busy_timeout={int(seconds * 1000)}")

    def vacuum(self) -> None:
        """Make the file as small as its content."""
        with self.turn:
            self._require_still_there()
            self.connection.execute("VACUUM")
            self.truncate_log()

    def backup(self, target: Path) -> None:
        """A copy of the whole file as it is at this moment, complete and durable when this returns."""
        if target.exists():
            raise StoreError(f"{target} is there already: back up to a new file")
        if not target.absolute().parent.is_dir():
            raise StoreError(f"{target} cannot be made: the directory {target.absolute().parent} does not exist")
        part = target.with_name(f".{target.name}.part")
        part.unlink(missing_ok=True)
        try:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            copy = sqlite3.connect(part)
            try:
                with self.transaction("BEGIN") as run:
                    run.backup(copy)
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
            if self._timer is not None:  # readers still need the log
                self._timer.cancel()
            self.connection.close()

    def __enter__(self) -> SqliteFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connected(uri: str) -> sqlite3.Connection:
    run = sqlite3.connect(uri, TRANSACTION_WAIT_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    run.create_function("add_sums", 2, add_sums, deterministic=True)
    return run


def beside(real: Path, ending: str) -> Path:
    return real.with_name(real.name + ending)


@contextmanager
def plain_errors(path: Path | None) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise explained(path, error) from error


def explained(path: Path | None, error: Exception) -> StoreError:
    """An error of SQLite or of the system in plain words."""
    if isinstance(error, PermissionError):
        return StoreError(f"{error.filename or path} must not be written by this user; nothing was written")
    if isinstance(error, OSError):
        return StoreError(f"{error.filename or path}: {error.strerror}")
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith("SQLITE_FULL") or code in ("SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"):
        return StoreError(f"{path} could not grow, the disk is full; nothing of this write was kept, all before it was")
    if code.startswith("SQLITE_NOTADB"):
        return StoreDamaged(f"{path} is not a memory: it is no SQLite file, or its beginning is damaged")
    if code.startswith("SQLITE_CORRUPT") or code == "SQLITE_IOERR_SHORT_READ":
        return StoreDamaged(f"{path} is damaged, was cut short or its beginning is damaged: restore it from a copy")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(f"{path} is being written by another process; nothing was written, try again")
    if code.startswith(("SQLITE_READONLY", "SQLITE_PERM")):
        return StoreError(f"{path} is read-only; nothing was written")
    if code.startswith("SQLITE_CANTOPEN"):
        return StoreError(f"{path} or the lock files beside it cannot be opened by this user")
    return StoreError(f"{path}: {error}")
