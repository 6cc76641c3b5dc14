"""The values that a store keeps: rows, updates, shares of sources, totals of classes, and their forms in the database.

A row without shares consists of examples of its own `source` alone (which may be None). As soon as examples of a second
source are merged into it, one share is kept for each source. So storage grows with rows and with named sources, never
with examples.
"""

from __future__ import annotations

import operator
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from apl.config import Metric
from apl.metric import measured

Label = str | int


class Keep(Enum):
    """Marks a cell that stays as it is."""

    KEEP = "keep"


KEEP: Literal[Keep.KEEP] = Keep.KEEP
TEXT_LIMIT_BYTES = 2000
"""Longest label, source or key of a receipt, in UTF-8: an entry of a database index is at most about 2,700 bytes."""
CHANGEABLE = ("label", "key", "count", "source", "payload")
"""The cells that an update may change."""


@dataclass(frozen=True)
class SourceShare:
    """What one source contributed to a row: the sum of its keys and how many examples they were."""

    source: str | None
    """None collects the examples of a row that came without a source."""
    total: np.ndarray
    count: int = 1


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
    """Where the row's first example came from, such as a file's path."""
    payload: bytes | None = None
    """Whatever allows the key to be computed anew, such as a PNG of the image."""
    count: int = 1
    """Number of examples that the row is the mean of."""
    shares: tuple[SourceShare, ...] = ()
    """What each source contributed. A row without shares consists of examples of its `source` alone."""
    id: int | None = None
    """An id from `Store.reserve`; by default the store chooses it."""

    def written(self, generation: int) -> Row:
        """The row as it is stored."""
        cells = (self.key, self.surprise_nats, self.written_at or 0.0, self.source, self.payload, self.count)
        return Row(self.id or 0, self.label, *cells, bool(self.shares), generation)


@dataclass(frozen=True)
class RowUpdate:
    """A row that changes in place. What is not given stays as it is."""

    id: int
    label: Label | Keep = KEEP
    key: np.ndarray | Keep = KEEP
    count: int | Keep = KEEP
    source: str | Keep | None = KEEP
    payload: bytes | Keep | None = KEEP
    shares: tuple[SourceShare, ...] = ()
    """What each source adds to the row. Examples that `count` adds beyond these have no source. Without key and count, the row becomes
    the mean of what it is when this is written and of these: a mean does not depend on the order."""
    rebuilt: bool = False
    """The shares replace those that are stored, instead of being added to them."""
    seen_generation: int | None = None
    """The row's generation when the update was computed. If it has another by now, nothing is written: `RowChanged`."""

    def applied(self, row: Row, generation: int) -> Row:
        cells = {name: value for name in CHANGEABLE if (value := getattr(self, name)) is not KEEP}
        if self.shares and self.key is self.count is KEEP:
            cells["count"] = count = row.count + sum(share.count for share in self.shares)
            total = row.key.astype(np.float64) * row.count + sum(share.total for share in self.shares)
            cells["key"] = (total / count).astype(np.float32)
        return replace(row, generation=generation, **cells)


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
    has_shares: bool = False
    """Examples of several sources are behind the row: `Store.shares` has what each contributed."""
    generation: int = 0
    """The memory's generation when the row was last written."""

    def as_new(self, **changes: Any) -> NewRow:
        """The same content, to be written under a new id. Shares have to be given with it."""
        kept = {name: value for name, value in vars(self).items() if name not in ("id", "has_shares", "generation")}
        return NewRow(**{**kept, **changes})


@dataclass(frozen=True)
class Write:
    """All that one transaction changes, checked."""

    remove: list[int] = field(default_factory=list)
    add: list[NewRow] = field(default_factory=list)
    """Each with its id."""
    update: list[RowUpdate] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    """Values as JSON."""
    receipts: dict[str, str] = field(default_factory=dict)
    """Likewise."""
    erase: tuple[str, ...] | None = None
    """For a write that forgets a class or a source: names that must not stay in receipts, beside those of classes that
    lose all rows."""
    left: dict[int, int] | None = None
    """For a write that forgets a source: how many others each row still has. The shares of that source are deleted."""

    @property
    def touched(self) -> list[int]:
        """Ids of the rows that must exist."""
        return sorted({*self.remove, *map(attrgetter("id"), self.update)})


@dataclass(frozen=True)
class LabelTotal:
    """Counters and sum of one class: enough for its mean, without its rows."""

    label: Label
    rows: int
    examples: int
    total: np.ndarray
    """The sum of the keys of its rows as the metric sees them, each times its count, in 64 bits."""
    first_id: int
    """Of the row that began it."""

    def plus(self, change: LabelTotal) -> LabelTotal:
        rows, examples = self.rows + change.rows, self.examples + change.examples
        return LabelTotal(self.label, rows, examples, self.total + change.total, self.first_id)


def total_changes(
    before: Iterable[NewRow | Row], after: Iterable[NewRow | Row], metric: Metric
) -> dict[str, LabelTotal]:
    """What changes in the totals of classes, by label text."""
    changes: dict[str, LabelTotal] = {}
    for sign, some in ((-1, before), (1, after)):
        for row in some:
            text, total = label_text(row.label), measured(row.key, metric) * np.float64(sign * row.count)
            change = LabelTotal(row.label, sign, sign * row.count, total, row.id or 0)
            changes[text] = changes[text].plus(change) if text in changes else change
    return changes


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


def label_text(label: Label) -> str:
    """A label as text that tells 7 and "7" apart."""
    return f"t{label}" if isinstance(label, str) else f"i{label}"


def label_of(text: str) -> Label:
    return text[1:] if text[:1] == "t" else int(text[1:])


_numbers = struct.Struct("<qddqqq")


def row_checksum(
    id: int,
    label: str,
    surprise: float,
    written_at: float,
    source: str | None,
    key: bytes,
    count: int,
    has_shares: int,
    generation: int,
) -> int:
    # By hand rather than through `checksum`: it runs once for every row of a memory that is opened.
    numbers = _numbers.pack(id, surprise, written_at, count, has_shares, generation)
    text = f"{label}\0{source is None}{source}".encode()
    return zlib.crc32(text, zlib.crc32(key, zlib.crc32(numbers)))


def share_checksum(id: int, source: str, total: bytes, count: int) -> int:
    # By hand too: forgetting a source reads all shares of its rows.
    return zlib.crc32(total, zlib.crc32(f"{id} {count} {source}".encode()))


def payload_checksum(id: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(b"%d" % id))


def checksum(*cells: object) -> int:
    """Of cells of any type."""
    return zlib.crc32(repr(cells).encode("utf-8", "surrogatepass"))


def total_bytes(total: np.ndarray, count: int) -> bytes:
    """The sum of a share as it is stored: one example's key is exact in 32 bits, a sum of several needs 64."""
    return total.astype("<f4" if count == 1 else "<f8").tobytes()


def total_of(content: bytes, width: int) -> np.ndarray:
    """The sum back from its bytes, whose length tells the precision."""
    return np.frombuffer(content, f"<f{len(content) // width}").astype(np.float64)


def source_text(source: str | None) -> str:
    """The source of a share as text that tells none and an empty one apart."""
    return "" if source is None else f"={source}"


def source_of(text: str) -> str | None:
    return text[1:] if text else None


def by_source(shares: Iterable[SourceShare]) -> dict[str | None, SourceShare]:
    """One share per source, in the order in which the sources first appear."""
    joined: dict[str | None, SourceShare] = {}
    for share in shares:
        before = joined.get(share.source)
        if before is not None:
            share = SourceShare(share.source, before.total + share.total, before.count + share.count)
        joined[share.source] = share
    return joined


def kept_shares(shares: Iterable[SourceShare], source: str | None) -> list[SourceShare]:
    """The shares that are worth keeping for a row of this source: none if all examples are of it."""
    joined = by_source(shares)
    return [] if set(joined) <= {source} else list(joined.values())


def added_shares(row: Row, after: Row, update: RowUpdate) -> list[SourceShare]:
    """The shares to be added to those stored for a row that an update changes; none if the row needs no shares yet."""
    added = list(update.shares)
    grown = after.count - row.count - sum(share.count for share in added)
    if grown < 0:
        raise ValueError(f"update of row {row.id}: its shares are of more examples than it gains; nothing was written")
    if grown:
        rest = after.key.astype(np.float64) * after.count - row.key.astype(np.float64) * row.count
        added.append(SourceShare(None, rest - sum(share.total for share in added), grown))
    if row.has_shares:
        return list(by_source(added).values())
    before = SourceShare(row.source, row.key.astype(np.float64) * row.count, row.count)
    return kept_shares([before, *added], row.source)
