"""One writer per memory of a file: a lock that dies with its process.

SQLite's own locks cover a whole file and one transaction; this one covers a single memory for as long as
it is open. The operating system drops it when the process ends in whatever way, so none is ever left behind.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from apl.store.errors import StoreBusy, StoreError

RETRY_SECONDS = 0.02


class WriterLock:
    """Held from construction until `release`."""

    def __init__(self, file: Path, name: str, timeout: float) -> None:
        self._path = file.with_name(f"{file.name}-{name}.lock")
        deadline = time.monotonic() + timeout
        while (handle := self._try()) is None:
            if time.monotonic() >= deadline:
                raise StoreBusy(
                    f"memory {name!r} in {file} is open for writing elsewhere ({self._holder()}): "
                    "close it there, or open it here for reading only"
                )
            time.sleep(RETRY_SECONDS)
        self._handle = handle
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        # Unlinked while still locked: whoever was waiting for it sees that its name is gone, and begins anew.
        self._path.unlink(missing_ok=True)
        os.close(self._handle)

    def _try(self) -> int | None:
        try:
            import fcntl
        except ModuleNotFoundError:
            raise StoreError("memories in a file need a POSIX system (Linux, macOS); use ram: or a server") from None
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(self._path)):
                return handle
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(handle)
        return None

    def _holder(self) -> str:
        try:
            return f"process {int(self._path.read_text())}"
        except (OSError, ValueError):
            return "another process"
