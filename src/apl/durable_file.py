"""Giving a finished file its name so that it survives a power cut: its content first, then the name."""

from __future__ import annotations

import os
from pathlib import Path


def replace_durably(part: Path, target: Path) -> None:
    """Rename `part` to `target`. Never for a SQLite file that is open: closing a handle of it drops SQLite's locks."""
    sync(part)
    os.replace(part, target)
    sync(target.absolute().parent)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
