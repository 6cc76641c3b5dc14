"""One writer per memory of a file: a lock that dies with its process.

SQLite's own locks cover a whole file and one transaction; this one covers a single memory for as long as
it is open. It locks a file beside the memory's, never the memory's own file: closing any handle of that would drop
SQLite's locks. The operating system drops it when the process ends, however it ends.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from apl.store.errors import StoreBusy

RETRY_SECONDS = 0.02


class WriterLock:
    """Held from construction until `release`. `file` is the memory's file without symbolic links in its path."""

    def __init__(self, file: Path, name: str, timeout: float) -> None:
        self._path = file.with_name(f"{file.name}-{name}.lock")
        # Not shared between threads: each store that is opened is a writer of its own.
        self._lock = FileLock(self._path, mode=0o600, thread_local=False)
        try:
            self._lock.acquire(timeout=max(timeout, 0.0), poll_interval=RETRY_SECONDS)
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
