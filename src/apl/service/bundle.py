"""A memory as one file: a zip archive of the two files that `apl.store.transfer` exports."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from apl.service.guard import Refused
from apl.service.history import is_ours
from apl.store import FingerprintMismatch, Store, StoreError
from apl.store.transfer import DESCRIPTION, ROWS, export_memory, import_memory, read_exported

MEDIA_TYPE = "application/zip"


def pack(store: Store) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "memory"
        export_memory(store, directory)
        description = json.loads((directory / DESCRIPTION).read_text(encoding="utf-8"))
        # Answers to this service's clients concern nobody else.
        description["settings"] = {k: v for k, v in description["settings"].items() if not is_ours(k)}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(DESCRIPTION, json.dumps(description, ensure_ascii=False, indent=1))
            archive.write(directory / ROWS, ROWS)
    return buffer.getvalue()


def unpack(content: bytes, directory: Path, most_bytes: int) -> None:
    """Only the two files we know, by their exact names, and never more than was announced and allowed."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            if set(entries) != {DESCRIPTION, ROWS}:
                raise Refused(422, "invalid", f"the archive must hold {DESCRIPTION} and {ROWS}, and nothing else")
            if sum(entry.file_size for entry in entries.values()) > most_bytes:
                raise Refused(413, "too_large", f"the unpacked archive must not exceed {most_bytes:,} bytes")
            for name, entry in entries.items():
                with archive.open(entry) as packed:
                    data = packed.read(entry.file_size + 1)
                if len(data) > entry.file_size:
                    raise Refused(422, "invalid", "the archive is damaged: a file is larger than announced")
                (directory / name).write_bytes(data)
    except Refused:
        raise
    except Exception:
        # zipfile and zlib meet damaged archives with errors of many kinds.
        raise Refused(422, "invalid", "the body is not a zip archive that can be read") from None


def take_in(content: bytes, store: Store, most_bytes: int, most_rows: int) -> dict[str, Any]:
    """Copy an exported memory into this one; rows that it has already are left out."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        unpack(content, directory, most_bytes)
        try:
            exported = read_exported(directory)
            if len(exported.rows) + store.count() > most_rows:
                raise Refused(409, "memory_full", f"a memory holds {most_rows:,} rows, these do not fit")
            copied = import_memory(directory, store)
        except FingerprintMismatch as error:
            raise Refused(409, "other_model", str(error)) from None
        except (StoreError, ValueError, TypeError, KeyError, OverflowError) as error:
            message = str(error).replace(str(directory), "the archive")
            raise Refused(422, "invalid", message[:500]) from None
    return {"written": copied.written, "already_there": copied.already_there}
