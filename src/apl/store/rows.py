"""What a lasting memory holds: rows, as they are given, as they are kept, and as they are loaded in bulk."""

from __future__ import annotations

import math
import operator
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Label = str | int

SCHEMA_VERSION = 1
"""Raise it when the tables change in a way that this version of the code could not read."""
TEXT_LIMIT_BYTES = 8192
"""Longest label or source, in UTF-8. It holds the longest path of any file system and fits every database."""

LONGEST_KEY = 1e18
"""The square of the distance between two keys must fit into 32 bits."""
YEAR_9999 = 253_370_764_800.0


@dataclass(frozen=True)
class NewRow:
    """A row to be written. The store gives it its id."""

    label: Label
    """Text or a 64-bit integer; 7 and "7" are different classes."""
    key: np.ndarray
    surprise_nats: float = 0.0
    """Surprise at the moment of writing; infinity is allowed (the true class had no probability at all)."""
    written_at: float | None = None
    """Unix time; now if not given."""
    source: str | None = None
    """Where the example came from, such as a file's path. Rows can be deleted by it."""
    payload: bytes | None = None
    """Whatever allows the key to be computed anew, such as a PNG of the image."""


@dataclass(frozen=True)
class Row:
    """A row as the store keeps it."""

    id: int
    """Counts up from 1 in every memory and is never given twice, not even after a deletion."""
    label: Label
    key: np.ndarray
    surprise_nats: float
    written_at: float
    source: str | None
    payload: bytes | None


@dataclass(frozen=True)
class Snapshot:
    """All rows of a memory at one moment, oldest first, without their payloads."""

    ids: np.ndarray
    keys: np.ndarray
    labels: list[Label]
    surprise_nats: np.ndarray
    written_at: np.ndarray
    sources: list[str | None]
    generation: int
    """Compare with `Store.generation()` to learn whether the memory has changed since."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Nearest:
    """The rows nearest to one key by euclidean distance, nearest first, the older first among equals."""

    ids: np.ndarray
    distances: np.ndarray


@dataclass(frozen=True)
class MemoryInfo:
    """What a memory says of itself."""

    name: str
    fingerprint: str
    """The encoder that made the keys."""
    width: int
    created: float
    schema_version: int
    rows: int


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise ValueError(f"a memory's name is 1 to 64 letters, digits, dots, dashes and underscores; got {name!r}")
    return name


def checked_label(label: Label) -> Label:
    """The label as plain `str` or `int`."""
    if isinstance(label, str):
        return _checked_text(label, "label")
    if isinstance(label, (bool, np.bool_)):
        raise TypeError(f"a label is text or an integer, got the truth value {label!r}: use str(label) or int(label)")
    try:
        number = operator.index(label)
    except TypeError:
        raise TypeError(f"a label is text or an integer, got {type(label).__name__} {label!r}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"an integer label must fit into 64 bits, got {number}")
    return number


def checked_source(source: str | None) -> str | None:
    if source is None:
        return None
    if not isinstance(source, str):
        raise TypeError(f"a source is text, got {type(source).__name__}")
    return _checked_text(source, "source")


def checked_key(key: np.ndarray, width: int) -> np.ndarray:
    # A copy: the caller's array may be a view of something that goes on changing.
    key = np.array(key, dtype=np.float32)
    if key.shape != (width,):
        raise ValueError(f"a key of this memory has {width} numbers, got an array of shape {list(key.shape)}")
    if not np.isfinite(key).all():
        raise ValueError("the key contains NaN or infinity")
    if float(np.linalg.norm(key.astype(np.float64))) > LONGEST_KEY:
        raise ValueError(f"the key is longer than {LONGEST_KEY:g}: distances to it could not be computed")
    return key


def checked_rows(rows: Sequence[NewRow], width: int) -> list[NewRow]:
    """The rows in plain types and with their time filled in, or an error before anything is written."""
    now = time.time()
    checked = []
    for number, row in enumerate(rows):
        try:
            checked.append(_checked_row(row, width, now))
        except (TypeError, ValueError) as error:
            raise type(error)(f"row {number} of {len(rows)}: {error}; nothing was written") from None
    return checked


def _checked_row(row: NewRow, width: int, now: float) -> NewRow:
    surprise = float(row.surprise_nats)
    written_at = now if row.written_at is None else float(row.written_at)
    if math.isnan(surprise) or surprise == -math.inf:
        raise ValueError("surprise_nats is NaN or minus infinity")
    if not 0 <= written_at < YEAR_9999:
        raise ValueError(f"written_at must be a unix time, got {written_at}")
    if row.payload is not None and not isinstance(row.payload, (bytes, bytearray, memoryview)):
        raise TypeError(f"a payload is bytes, got {type(row.payload).__name__}")
    return NewRow(
        label=checked_label(row.label),
        key=checked_key(row.key, width),
        surprise_nats=surprise,
        written_at=written_at,
        source=checked_source(row.source),
        payload=None if row.payload is None else bytes(row.payload),
    )


def _checked_text(text: str, what: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"the {what} {text!r} cannot be written as UTF-8") from None
    if size > TEXT_LIMIT_BYTES:
        raise ValueError(f"the {what} has {size} bytes, the most is {TEXT_LIMIT_BYTES}")
    if "\0" in text:
        raise ValueError(f"the {what} {text!r} contains a zero character")
    return str(text)
