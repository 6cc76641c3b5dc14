"""An exported memory as one file: a zip archive of the same two files, as the service's page gives and takes it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

from apl.store.errors import StoreDamaged, StoreError


def pack(directory: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(directory.iterdir()):
            packed.write(file, file.name)


def unpack(archive: Path, directory: Path, names: Iterable[str], most_bytes: int | None = None) -> None:
    """Only the files we know, by their exact names, and never more than was announced and allowed."""
    try:
        with zipfile.ZipFile(archive) as packed:
            entries = {entry.filename: entry for entry in packed.infolist()}
            if set(entries) != set(names):
                raise StoreDamaged(f"the archive must hold {' and '.join(sorted(names))}, and nothing else")
            if most_bytes is not None and sum(entry.file_size for entry in entries.values()) > most_bytes:
                raise TooLarge(f"the unpacked archive must not exceed {most_bytes:,} bytes")
            for name, entry in entries.items():
                with packed.open(entry) as file:
                    data = file.read(entry.file_size + 1)
                if len(data) > entry.file_size:
                    raise StoreDamaged("the archive is damaged: a file is larger than announced")
                (directory / name).write_bytes(data)
    except StoreError:
        raise
    except Exception:
        # zipfile and zlib meet damaged archives with errors of many kinds.
        raise StoreDamaged(f"{archive.name} is not a zip archive that can be read") from None


class TooLarge(StoreError):
    """More than the reader is willing to unpack."""
