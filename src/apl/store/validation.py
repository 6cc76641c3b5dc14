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

from apl.store.rows import KEEP, Label, NewRow, RowUpdate, SourceShare
from apl.store.sources import kept_shares

TEXT_LIMIT_BYTES = 2000
"""Longest label, source or key of a receipt, in UTF-8: an entry of a database index is at most about 2,700 bytes."""
LONGEST_KEY = 1e18
"""The square of the distance between two keys must fit into 32 bits."""
LARGEST_COUNT = 2**53
YEAR_9999 = 253_370_764_800.0
NESTED_AT_MOST = 50
"""How deep lists and dictionaries of a setting may be nested: JSON is read by recursion."""
_JSON = json.JSONEncoder(allow_nan=False)


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise ValueError(f"a memory's name is 1 to 64 letters, digits, dots, dashes and underscores; got {name!r}")
    return name


def checked_label(label: Label) -> Label:
    """The label as plain `str` or `int`."""
    if isinstance(label, str):
        return checked_text(label, "label")
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
    count, source = _checked_count(row.count), checked_source(row.source)
    shares = _checked_shares(row.shares, width)
    if shares and sum(share.count for share in shares) != count:
        raise ValueError("the counts of the shares do not add up to the row's")
    return NewRow(
        label=checked_label(row.label),
        key=checked_key(row.key, width),
        surprise_nats=surprise,
        written_at=written_at,
        source=source,
        payload=_checked_payload(row.payload),
        count=count,
        shares=tuple(kept_shares(shares, source)),
        id=None if row.id is None else operator.index(row.id),
    )


def checked_updates(updates: Iterable[RowUpdate], width: int) -> list[RowUpdate]:
    """The updates in plain types and in the order of their ids, at most one for each row."""
    checked: dict[int, RowUpdate] = {}
    for update in updates:
        try:
            if update.id in checked:
                raise ValueError("it is updated twice")
            checked[int(update.id)] = _checked_update(update, width)
        except (TypeError, ValueError) as error:
            raise type(error)(f"update of row {update.id}: {error}; nothing was written") from None
    return [checked[id] for id in sorted(checked)]


def _checked_update(update: RowUpdate, width: int) -> RowUpdate:
    checks: dict[str, Any] = {
        "label": checked_label,
        "key": lambda key: checked_key(key, width),
        "count": _checked_count,
        "source": checked_source,
        "payload": _checked_payload,
    }
    given = {name: value for name in checks if (value := getattr(update, name)) is not KEEP}
    cells = {name: checks[name](value) for name, value in given.items()}
    return replace(update, id=int(update.id), shares=tuple(_checked_shares(update.shares, width)), **cells)


def _checked_count(count: int) -> int:
    number = operator.index(count)
    if not 1 <= number <= LARGEST_COUNT:
        raise ValueError(f"a row stands for at least one example, got {number}")
    return number


def _checked_payload(payload: object) -> bytes | None:
    if payload is None:
        return None
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise TypeError(f"a payload is bytes, got {type(payload).__name__}")
    return bytes(payload)


def _checked_shares(shares: Sequence[SourceShare], width: int) -> list[SourceShare]:
    checked = []
    for share in shares:
        total = np.array(share.total, np.float64)
        if total.shape != (width,) or not np.isfinite(total).all():
            raise ValueError(f"the total of a share has {width} finite numbers")
        checked.append(SourceShare(checked_source(share.source), total, _checked_count(share.count)))
    return checked


def checked_ids(ids: Iterable[int]) -> list[int]:
    """Sorted, each once; what cannot be an id is left out."""
    return [id for id in sorted({int(id) for id in ids}) if 0 < id < 2**63]


def checked_text(text: str, what: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"the {what} {text!r} cannot be written as UTF-8") from None
    if size > TEXT_LIMIT_BYTES:
        raise ValueError(f"the {what} has {size} bytes, the most is {TEXT_LIMIT_BYTES}")
    if "\0" in text:
        raise ValueError(f"the {what} {text!r} contains a zero character")
    return str(text)


def encoded(values: Mapping[str, Any] | None) -> dict[str, str]:
    """Each value as JSON; what JSON cannot hold, or could not be read back from anywhere, is refused."""
    for value in (values or {}).values():
        if isinstance(value, (dict, list, tuple)):
            _refuse_deep(value, NESTED_AT_MOST - 1)
    return {checked_text(str(key), "key"): _JSON.encode(value) for key, value in (values or {}).items()}


def _refuse_deep(value: dict[Any, Any] | list[Any] | tuple[Any, ...], left: int) -> None:
    if not left:
        raise ValueError(f"a setting is nested more than {NESTED_AT_MOST} deep; nothing was written")
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list, tuple)):
            _refuse_deep(inner, left - 1)
