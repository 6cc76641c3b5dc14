"""What a lasting memory holds: rows, as they are given, as they are kept, and as they are loaded in bulk."""

from __future__ import annotations

import math
import operator
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from apl.config import Metric
from apl.metric import measured

Label = str | int

SCHEMA_VERSION = 2
"""Raise it when the tables change in a way that this version of the code could not read."""
TEXT_LIMIT_BYTES = 8192
"""Longest label or source, in UTF-8. It holds the longest path of any file system and fits every database."""

LONGEST_KEY = 1e18
"""The square of the distance between two keys must fit into 32 bits."""
EXTRA_LIMIT_BYTES = 4096
LARGEST_COUNT = 2**53
YEAR_9999 = 253_370_764_800.0


class Keep(Enum):
    """Says of a cell that it stays as it is."""

    KEEP = "keep"


KEEP = Keep.KEEP


@dataclass(frozen=True)
class MergedExample:
    """One of the examples that a row is the mean of, kept so that its source can be forgotten exactly."""

    source: str | None = None
    key: np.ndarray | None = None
    """Its own key, in 16 or 32 bits a number as given; None if it is not kept."""


@dataclass(frozen=True)
class NewRow:
    """A row to be written."""

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
    count: int = 1
    """How many examples stand behind the row."""
    extra: bytes | None = None
    """A few bytes that mean something to whoever writes rows, such as their spread."""
    merged: tuple[MergedExample, ...] = ()
    """The examples behind the row, if it is the mean of several."""
    id: int | None = None
    """One of those that `Store.reserve` gave; by default the store chooses it."""


@dataclass(frozen=True)
class RowUpdate:
    """A row that changes in place. What is not given stays as it is."""

    id: int
    label: Label | Keep = KEEP
    key: np.ndarray | Keep = KEEP
    count: int | Keep = KEEP
    extra: bytes | Keep | None = KEEP
    source: str | Keep | None = KEEP
    payload: bytes | Keep | None = KEEP
    merged: tuple[MergedExample, ...] = ()
    """Examples that come to those behind the row ..."""
    rebuilt: bool = False
    """... or, if this is set, take their place."""
    seen_count: int | None = None
    """The count of which this update was computed. If the row has another by now, nothing is written: `RowChanged`."""


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
    count: int = 1
    extra: bytes | None = None

    def as_new(self, **changes: Any) -> NewRow:
        """The same content, to be written under a new id; the examples behind it have to be given with it."""
        content = {name: value for name, value in vars(self).items() if name != "id"}
        return NewRow(**{**content, **changes})


@dataclass(frozen=True)
class Snapshot:
    """Rows of a memory at one moment, oldest first, without their payloads."""

    ids: np.ndarray
    keys: np.ndarray
    labels: list[Label]
    surprise_nats: np.ndarray
    written_at: np.ndarray
    sources: list[str | None]
    counts: np.ndarray
    extras: list[bytes | None]
    generation: int
    """Compare with `Store.generation()` to learn whether the memory has changed since."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Changes:
    """What happened to a memory since an earlier generation: enough to bring a copy of it up to date."""

    rows: Snapshot
    """The rows that were added or updated, as they are now."""
    removed: list[int]
    """Ids that are gone. Some may be of rows that were added in the meantime, too."""

    @property
    def generation(self) -> int:
        return self.rows.generation


@dataclass(frozen=True)
class Write:
    """All that one transaction changes, checked."""

    remove: list[int]
    add: list[NewRow]
    """Each with its id."""
    update: list[RowUpdate]
    settings: dict[str, str]
    """Values as JSON."""
    receipts: dict[str, str]
    """Likewise."""
    seen: dict[int, int] = field(default_factory=dict)
    """How many examples stood behind rows that are to be removed or updated when that was decided."""

    @property
    def is_empty(self) -> bool:
        return not (self.remove or self.add or self.update or self.settings or self.receipts)


@dataclass(frozen=True)
class Nearest:
    """The rows nearest to one key by euclidean distance, nearest first, the older first among equals."""

    ids: np.ndarray
    distances: np.ndarray


@dataclass(frozen=True)
class Recalled:
    """The rows nearest to each of several keys, whole but for their payloads; masked where there are fewer than k."""

    ids: np.ndarray
    """`[query, k]`; -1 where masked."""
    distances: np.ndarray
    keys: np.ndarray
    """`[query, k, width]`"""
    labels: list[list[Label | None]]
    counts: np.ndarray
    sources: list[list[str | None]]
    generation: int | None = None
    """Of the memory when they were asked for, where the store learns that by the way."""

    @property
    def mask(self) -> np.ndarray:
        return self.ids >= 0

    def rows(self, query: int) -> list[Row]:
        """The rows recalled for one key, without times and payloads."""
        return [
            Row(id, self.labels[query][at], self.keys[query, at], 0.0, 0.0, self.sources[query][at], None, count)
            for at, (id, count) in enumerate(zip(self.ids[query].tolist(), self.counts[query].tolist(), strict=True))
            if id >= 0
        ]

    @staticmethod
    def of(found: Sequence[Sequence[Row]], asked: np.ndarray, k: int, metric: Metric) -> Recalled:
        """Rows found for each key, with their true distances: nearest first, the older first among equals."""
        queries, width = asked.shape
        ids, distances = np.full((queries, k), -1, np.int64), np.zeros((queries, k), np.float32)
        keys, counts = np.zeros((queries, k, width), np.float32), np.zeros((queries, k), np.int64)
        labels: list[list[Label | None]] = [[None] * k for _ in range(queries)]
        sources: list[list[str | None]] = [[None] * k for _ in range(queries)]
        for query, rows in enumerate(found):
            if not rows:
                continue
            near = np.array([row.key for row in rows])
            apart = measured(near, metric).astype(np.float64) - measured(asked[query], metric)
            distance = np.sqrt(np.square(apart).sum(1)).astype(np.float32)
            order = np.lexsort(([row.id for row in rows], distance))[:k]
            for place, at in enumerate(order.tolist()):
                row = rows[at]
                ids[query, place], counts[query, place] = row.id, row.count
                labels[query][place], sources[query][place] = row.label, row.source
            keys[query, : len(order)], distances[query, : len(order)] = near[order], distance[order]
        return Recalled(ids, distances, keys, labels, counts, sources)


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


@dataclass(frozen=True)
class LabelTotal:
    """A class as an engine keeps it: enough for its mean, without its rows."""

    label: Label
    rows: int
    examples: int
    total: np.ndarray
    """The sum of the keys of its rows as the metric sees them, each times its count, in 64 bits."""


@dataclass(frozen=True)
class Totals:
    """Classes of a memory at one moment, in the order in which they came."""

    generation: int
    classes: list[LabelTotal]
    complete: bool
    """All there are; otherwise those that changed since an earlier generation, with no rows if they are gone."""


def total_changes(
    before: Iterable[Row], after: Iterable[NewRow | Row], width: int, metric: Metric
) -> dict[str, tuple[int, int, np.ndarray, int]]:
    """How the totals of classes change: rows, examples and sum of keys by label (as text), and the smallest id seen."""
    signed = [(-1, row) for row in before] + [(1, row) for row in after]
    places: dict[str, list[int]] = {}
    for place, (_, row) in enumerate(signed):
        places.setdefault(label_text(row.label), []).append(place)
    sign = np.array([sign for sign, _ in signed], np.int64)
    count = sign * np.array([row.count for _, row in signed], np.int64)
    keys = measured(np.array([row.key for _, row in signed], np.float32).reshape(-1, width), metric)
    return {
        label: (
            int(sign[at].sum()),
            int(count[at].sum()),
            count[at] @ keys[at].astype(np.float64),
            min(signed[place][1].id for place in at),
        )
        for label, at in places.items()
    }


def label_text(label: Label) -> str:
    """A label as text that tells 7 and "7" apart."""
    return f"t{label}" if isinstance(label, str) else f"i{label}"


def label_of(text: str) -> Label:
    return text[1:] if text[0] == "t" else int(text[1:])


def key_bytes(key: np.ndarray | None) -> bytes | None:
    """The key of a merged example as it is stored: its length tells 16 from 32 bits."""
    return None if key is None else key.astype(key.dtype.newbyteorder("<")).tobytes()


def key_of(content: bytes | None, width: int) -> np.ndarray | None:
    if content is None:
        return None
    size = len(content) // width
    return np.frombuffer(content, f"<f{size}").astype(f"f{size}")


def snapshot_of(rows: Sequence[Row], width: int, generation: int) -> Snapshot:
    return Snapshot(
        ids=np.array([row.id for row in rows], np.int64),
        keys=np.array([row.key for row in rows], np.float32).reshape(len(rows), width),
        labels=[row.label for row in rows],
        surprise_nats=np.array([row.surprise_nats for row in rows], np.float64),
        written_at=np.array([row.written_at for row in rows], np.float64),
        sources=[row.source for row in rows],
        counts=np.array([row.count for row in rows], np.int64),
        extras=[row.extra for row in rows],
        generation=generation,
    )


def updated_row(row: Row, update: RowUpdate) -> Row:
    names = ("label", "key", "count", "extra", "source", "payload")
    return replace(row, **{name: value for name in names if (value := getattr(update, name)) is not KEEP})


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
    if row.payload is not None and not isinstance(row.payload, (bytes, bytearray, memoryview)):
        raise TypeError(f"a payload is bytes, got {type(row.payload).__name__}")
    return NewRow(
        label=checked_label(row.label),
        key=checked_key(row.key, width),
        surprise_nats=surprise,
        written_at=written_at,
        source=checked_source(row.source),
        payload=None if row.payload is None else bytes(row.payload),
        count=_checked_count(row.count),
        extra=_checked_extra(row.extra),
        merged=_checked_merged(row.merged, width),
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
        "extra": _checked_extra,
        "source": checked_source,
        "payload": lambda payload: None if payload is None else bytes(payload),
    }
    given = {name: value for name in checks if (value := getattr(update, name)) is not KEEP}
    cells = {name: checks[name](value) for name, value in given.items()}
    return replace(update, id=int(update.id), merged=_checked_merged(update.merged, width), **cells)


def _checked_count(count: int) -> int:
    number = operator.index(count)
    if not 1 <= number <= LARGEST_COUNT:
        raise ValueError(f"a row stands for at least one example, got {number}")
    return number


def _checked_extra(extra: bytes | None) -> bytes | None:
    if extra is not None and len(extra) > EXTRA_LIMIT_BYTES:
        raise ValueError(f"extra has {len(extra)} bytes, the most is {EXTRA_LIMIT_BYTES}")
    return None if extra is None else bytes(extra)


def _checked_merged(merged: Sequence[MergedExample], width: int) -> tuple[MergedExample, ...]:
    checked = []
    for example in merged:
        key = example.key
        if key is not None:
            narrow = np.asarray(key).dtype == np.float16
            key = checked_key(key, width).astype(np.float16 if narrow else np.float32)
        checked.append(MergedExample(checked_source(example.source), key))
    return tuple(checked)


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
