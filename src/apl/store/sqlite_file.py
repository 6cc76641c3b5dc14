"""Opening a SQLite file as a home of memories: its tables, its version, and its errors in plain words."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apl.store.errors import NewerSchema, StoreBusy, StoreDamaged, StoreError
from apl.store.rows import SCHEMA_VERSION

APPLICATION_ID = 0x41504C6D
"""Written into the file's header: "APLm"."""
TRANSACTION_WAIT_SECONDS = 10.0
"""How long a write waits while another memory of the same file is being written."""

# Payloads have a table of their own, so that loading all keys does not read past all pictures.
# `label ANY` in a STRICT table keeps 7 and "7" apart.
SCHEMA = (
    """CREATE TABLE memories (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, fingerprint TEXT NOT NULL, width INTEGER NOT NULL,
        created REAL NOT NULL, next_id INTEGER NOT NULL, generation INTEGER NOT NULL) STRICT""",
    """CREATE TABLE rows (
        memory INTEGER NOT NULL, id INTEGER NOT NULL, label ANY NOT NULL, surprise_nats REAL NOT NULL,
        written_at REAL NOT NULL, source TEXT, key BLOB NOT NULL, PRIMARY KEY (memory, id)) STRICT""",
    """CREATE TABLE payloads (
        memory INTEGER NOT NULL, id INTEGER NOT NULL, payload BLOB NOT NULL,
        PRIMARY KEY (memory, id)) STRICT""",
    """CREATE TABLE settings (
        memory INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (memory, key)) STRICT""",
)


def connect(path: Path, *, create: bool, read_only: bool) -> sqlite3.Connection:
    """A connection to the file, after making sure that it is ours and of a version we know."""
    if sqlite3.sqlite_version_info < (3, 38):
        raise StoreError(f"memories in a file need SQLite 3.38, this Python has {sqlite3.sqlite_version}")
    _look_before_touching(path, create)
    with plain_errors(path):
        connection = _connect(path, create, read_only)
        try:
            with plain_errors(path):
                _prepare(connection, path, read_only)
        except BaseException:
            connection.close()
            raise
    return connection


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


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # Some errors, such as a full disk, have already rolled it back.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _look_before_touching(path: Path, create: bool) -> None:
    """Refuse a foreign or a newer file by its first bytes, before SQLite puts as much as a lock beside it."""
    if path.is_dir():
        raise StoreError(f"{path} is a directory, not a memory's file")
    if not path.exists():
        if not create:
            raise StoreError(f"{path} does not exist")
        if not path.absolute().parent.is_dir():
            raise StoreError(f"{path} cannot be made: the directory {path.absolute().parent} does not exist")
        return
    with plain_errors(path), path.open("rb") as file:
        header = file.read(100)
    if not header:
        return
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise StoreDamaged(f"{path} is not a memory: it is no SQLite file, or its beginning is damaged")
    version, application = struct.unpack(">i", header[60:64])[0], struct.unpack(">i", header[68:72])[0]
    _check_identity(path, version, application)
    _check_length(path, header)


def _check_length(path: Path, header: bytes) -> None:
    """SQLite itself does not notice when the last page has lost its end."""
    for log in ("-wal", "-journal"):
        # With a log beside it, the file alone need not be whole.
        if path.with_name(path.name + log).exists():
            return
    page_size, pages = struct.unpack(">H", header[16:18])[0], struct.unpack(">I", header[28:32])[0]
    expected, size = pages * (65536 if page_size == 1 else page_size), path.stat().st_size
    if size < expected:
        raise StoreDamaged(f"{path} was cut short ({size} of {expected} bytes): restore it from a copy")


def _check_identity(path: Path, version: int, application: int) -> None:
    if application not in (0, APPLICATION_ID):
        raise StoreDamaged(f"{path} is not a memory: it is the SQLite file of another program")
    if application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise NewerSchema(
            f"{path} was written by a later version of apl (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}): upgrade apl; the file was not touched"
        )


def _connect(path: Path, create: bool, read_only: bool) -> sqlite3.Connection:
    exists, folder = path.exists(), path.absolute().parent
    writable = os.access(folder, os.W_OK) and (not exists or os.access(path, os.W_OK))
    if not read_only and not writable:
        what = path if exists and not os.access(path, os.W_OK) else folder
        raise StoreError(f"{what} is read-only: open the memory for reading only, or give the right to write")
    mode = "mode=rwc" if create else "mode=rw"
    if not writable:
        # Without a write-ahead log beside it the file is complete, and reading it needs no lock files.
        wal = path.with_name(path.name + "-wal")
        mode = "mode=ro" if wal.exists() and wal.stat().st_size else "mode=ro&immutable=1"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=TRANSACTION_WAIT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
    # A file from elsewhere must not be able to run functions through its schema.
    connection.execute("PRAGMA trusted_schema=OFF")
    ours = _is_ours(connection, path)
    if read_only:
        connection.execute("PRAGMA query_only=ON")
        if not ours:
            raise StoreError(f"{path} holds no memories")
        return
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA fullfsync=ON")
    if not ours:
        with transaction(connection):
            # Somebody else may have made the tables in the meantime.
            if not _is_ours(connection, path):
                for statement in SCHEMA:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def _is_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """True for a file of memories, False for an empty one; any other is refused."""
    application = _pragma(connection, "application_id")
    _check_identity(path, _pragma(connection, "user_version"), application)
    if application == APPLICATION_ID:
        return True
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise StoreDamaged(f"{path} is not a memory: it is the SQLite file of another program")
    return False


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


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
