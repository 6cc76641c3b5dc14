"""A memory as one file, out and in: the same archive that `apl memory export` and `import` know."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from apl.service.guard import Refused
from apl.store import FingerprintMismatch, Store, StoreError
from apl.store.archive import TooLarge
from apl.store.transfer import export_memory, import_memory, read_exported

MEDIA_TYPE = "application/zip"


def pack(store: Store) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "memory.zip"
        export_memory(store, archive)
        return archive.read_bytes()


def take_in(content: bytes, store: Store, most_bytes: int, most_rows: int) -> dict[str, Any]:
    """Copy an exported memory into this one; rows that it has already are left out."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "memory.zip"
        archive.write_bytes(content)
        try:
            exported = read_exported(archive, most_bytes)
            if len(exported.rows) + store.count() > most_rows:
                raise Refused(409, "memory_full", f"a memory holds {most_rows:,} rows, these do not fit")
            copied = import_memory(exported, store)
        except FingerprintMismatch as error:
            raise Refused(409, "other_model", str(error)) from None
        except TooLarge as error:
            raise Refused(413, "too_large", str(error)) from None
        except (StoreError, ValueError, TypeError, KeyError, OverflowError) as error:
            message = str(error).replace(str(archive), "the archive")
            raise Refused(422, "invalid", message[:500]) from None
    return vars(copied)
