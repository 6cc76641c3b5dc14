"""Checks of everything that enters a store: plain types, finite numbers, bounded texts. Errors come before any write."""

from __future__ import annotations

import json
import math
import operator
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from apl.store.rows import KEEP, NewRow, RowUpdate, SourceShare, checked_label, checked_text, kept_shares

LONGEST_KEY = 1e18
"""The square of the distance between two keys must fit into 32 bits."""
LARGEST_COUNT = 2**53
POSSIBLE_IDS = range(1, 2**63)
YEAR_9999 = 253_370_764_800.0
NESTED_AT_MOST = 50
"""How deep lists and dictionaries of a setting may be nested: JSON is read by recursion."""
_JSON = json.JSONEncoder(allow_nan=False)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PIECE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[^"]++', re.S)
"""A text, or what is between two texts."""


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise ValueError(f"a memory's name is 1 to 64 letters, digits, dots, dashes and underscores; got {name!r}")
    return name


def checked_source(source: str) -> str:
    if not isinstance(source, str):
        raise TypeError(f"a source is text, got {type(source).__name__}")
    return checked_text(source, "source")


def checked_key(key: np.ndarray, width: int) -> np.ndarray:
    # A copy: the caller's array may be a view of something that goes on changing.
    key = np.array(key, dtype=np.float32)
    if key.shape != (width,):
        raise ValueError(f"a key of this memory has {width} numbers, got an array of shape {list(key.shape)}")
    wide = key.astype(np.float64)
    length = math.sqrt(wide @ wide)
    if not math.isfinite(length):
        raise ValueError("the key contains NaN or infinity")
    if length > LONGEST_KEY:
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
    cells = _checked_cells(row, width)
    shares = kept_shares(_checked_shares(row.shares, width), cells["source"]) if row.shares else ()
    if row.shares and sum(share.count for share in row.shares) != cells["count"]:
        raise ValueError("the counts of the shares do not add up to the row's")
    id = None if row.id is None else operator.index(row.id)
    return NewRow(surprise_nats=surprise, written_at=written_at, shares=tuple(shares), id=id, **cells)


def checked_updates(updates: Iterable[RowUpdate], width: int) -> list[RowUpdate]:
    """The updates in plain types and in the order of their ids, at most one for each row."""
    checked: dict[int, RowUpdate] = {}
    for update in updates:
        try:
            if update.id in checked:
                raise ValueError("it is updated twice")
            cells, shares = _checked_cells(update, width), tuple(_checked_shares(update.shares, width))
            checked[int(update.id)] = replace(update, id=int(update.id), shares=shares, **cells)
        except (TypeError, ValueError) as error:
            raise type(error)(f"update of row {update.id}: {error}; nothing was written") from None
    return sorted(checked.values(), key=operator.attrgetter("id"))


def _checked_cells(row: NewRow | RowUpdate, width: int) -> dict[str, Any]:
    """What a row and an update have in common, in plain types. A cell that is to stay as it is does."""
    label, key, count, source, payload = row.label, row.key, row.count, row.source, row.payload
    if payload is not None and payload is not KEEP:
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise TypeError(f"a payload is bytes, got {type(payload).__name__}")
        payload = bytes(payload)
    return {
        "label": label if label is KEEP else checked_label(label),
        "key": key if key is KEEP else checked_key(key, width),
        "count": count
        if count is KEEP or (type(count) is int and 1 <= count <= LARGEST_COUNT)
        else _checked_count(count),
        "source": source if source is None or source is KEEP else checked_source(source),
        "payload": payload,
    }


def _checked_count(count: int) -> int:
    number = operator.index(count)
    if not 1 <= number <= LARGEST_COUNT:
        raise ValueError(f"a row stands for at least one example, got {number}")
    return number


def _checked_shares(shares: Sequence[SourceShare], width: int) -> list[SourceShare]:
    checked = []
    for share in shares:
        total = np.array(share.total, np.float64)
        if total.shape != (width,) or not np.isfinite(total).all():
            raise ValueError(f"the total of a share has {width} finite numbers")
        source = None if share.source is None else checked_source(share.source)
        checked.append(SourceShare(source, total, _checked_count(share.count)))
    return checked


def checked_ids(ids: Iterable[int]) -> list[int]:
    """Sorted, each once; what cannot be an id is left out."""
    return list(filter(POSSIBLE_IDS.__contains__, sorted(set(map(int, ids)))))


def has_more_values(document: bytes, most: int) -> bool:
    """True if JSON text has more than `most` values. It is not parsed: what takes little text can take much memory."""
    values = 0
    for found in _PIECE.finditer(document):
        start, end = found.span()
        values += 1 if document[start] == ord('"') else sum(document.count(sign, start, end) for sign in b"[{,")
        if values > most:
            return True
    return False


def encoded(values: Mapping[str, Any] | None) -> dict[str, str]:
    """Each value as JSON; what JSON cannot hold, or could not be read back from anywhere, is refused."""
    found = {}
    for key, value in (values or {}).items():
        try:
            text = _JSON.encode(value)
        except RecursionError:
            text = "[" * (NESTED_AT_MOST + 1)
        # Fewer brackets than that cannot be nested too deeply.
        if text.count("[") + text.count("{") > NESTED_AT_MOST and _depth(text) > NESTED_AT_MOST:
            raise ValueError(f"a setting is nested more than {NESTED_AT_MOST} deep; nothing was written")
        found[checked_text(str(key), "key")] = text
    return found


def _depth(text: str) -> int:
    """How deep lists and dictionaries are nested in JSON."""
    brackets = np.frombuffer(_STRING.sub("", text).encode(), np.uint8)
    opens, closes = np.isin(brackets, list(b"[{")), np.isin(brackets, list(b"]}"))
    return int((opens.astype(np.int64) - closes).cumsum().max(initial=0))
