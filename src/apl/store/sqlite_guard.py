"""What is refused before SQLite touches a file: one that is no memory, no whole one or not ours to write, and a second writer.

What must be known beforehand is asked of an `immutable` connection, which takes no locks and leaves nothing beside the file.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from apl.store.errors import NoSuchMemory, StoreBusy, StoreDamaged, StoreError
from apl.store.schema import SCHEMA_VERSION, other_schema

APPLICATION_ID = 0x41504C6D
"""Written into the file's header: "APLm"."""
TRANSACTION_WAIT_SECONDS = 10.0
"""How long a write waits while another memory of the same file is being written."""
LOOKED_AT_AGAIN_SECONDS = (0.02, 0.1, 0.3)
"""Waits before a file is called damaged."""
LOCK_RETRY_SECONDS = 0.02
SMALLEST_PAGE = 512
"""SQLite takes a file of a few bytes for an empty one, and would write over it."""


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
            raise StoreBusy(
                f"memory {name!r} in {file} is open for writing elsewhere ({self._holder()}): "
                "close it there, or open it here for reading only"
            ) from None
        with suppress(OSError):  # a full disk: the lock holds, its holder is not named
            self._path.write_text(str(os.getpid()))

    def release(self) -> None:
        # Unlinked while still locked: a process that waits for it sees that its name is gone, and begins anew.
        self._path.unlink(missing_ok=True)
        self._lock.release()

    def _holder(self) -> str:
        try:
            return f"process {int(self._path.read_text())}"
        except (OSError, ValueError):
            return "another process"


@contextmanager
def plain_errors(path: Path | None) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise explained(path, error) from error


def open_uri(real: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{real.as_uri()}?{mode}",
        timeout=TRANSACTION_WAIT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
    )


def pragma(run: sqlite3.Connection, name: str) -> int:
    return int(run.execute(f"PRAGMA {name}").fetchone()[0])


def refuse_foreign(path: Path, real: Path, create: bool) -> None:
    """Read without locks, a file into which another process brings the log may seem cut: it is read again."""
    for wait in (*LOOKED_AT_AGAIN_SECONDS, None):
        try:
            return _refuse_now(path, real, create)
        except StoreDamaged:
            if wait is None:
                raise
        time.sleep(wait)


def _refuse_now(path: Path, real: Path, create: bool) -> None:
    """Refuse a foreign, a newer or a cut file before SQLite puts as much as a lock beside it."""
    if real.is_dir():
        raise StoreError(f"{path} is a directory, not a memory's file")
    if not real.exists():
        if not create:
            raise NoSuchMemory(f"{path} does not exist")
        if not real.parent.is_dir():
            raise StoreError(f"{path} cannot be made: the directory {path.absolute().parent} does not exist")
        return
    size = real.stat().st_size
    if not size:
        return
    if size < SMALLEST_PAGE:
        raise StoreDamaged(f"{path} is not a memory: it is no SQLite file, or its beginning is damaged")
    # With a log beside it, the file alone need not be whole.
    in_the_making = any(beside(real, log).exists() for log in ("-wal", "-journal"))
    look = open_uri(real, "mode=ro&immutable=1")
    try:
        version, application, pages, page_size = (
            pragma(look, name) for name in ("user_version", "application_id", "page_count", "page_size")
        )
    except sqlite3.DatabaseError as error:
        if in_the_making:
            return
        raise explained(path, error) from error
    finally:
        look.close()
    check_version(path, version, application)
    # SQLite itself does not notice when the last page has lost its end.
    if size < pages * page_size and not in_the_making:
        raise StoreDamaged(f"{path} was cut short ({size} of {pages * page_size} bytes): restore it from a copy")


def check_version(path: Path, version: int, application: int) -> None:
    if application not in (0, APPLICATION_ID):
        raise StoreDamaged(f"{path} is not a memory: it is the SQLite file of another program")
    if application == APPLICATION_ID and version < 1:
        raise StoreDamaged(f"{path} has lost its version: its beginning is damaged, restore it from a copy")
    if application == APPLICATION_ID and version != SCHEMA_VERSION:
        raise other_schema(str(path), version)


def may_write(path: Path, real: Path, read_only: bool) -> bool:
    exists = real.exists()
    may_write = os.access(real.parent, os.W_OK) and (not exists or os.access(real, os.W_OK))
    if not read_only and not may_write:
        what = path if exists and not os.access(real, os.W_OK) else path.absolute().parent
        raise StoreError(f"{what} is read-only: open the memory for reading only, or give the right to write")
    return may_write


def beside(real: Path, ending: str) -> Path:
    return real.with_name(real.name + ending)


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
