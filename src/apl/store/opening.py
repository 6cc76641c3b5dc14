"""Opening a memory: what is asked for, and the memory's own record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any

from apl.config import Metric
from apl.store.answers import Record
from apl.store.checks import YEAR_9999
from apl.store.errors import FingerprintMismatch, NoSuchMemory, StoreDamaged, StoreError
from apl.store.rows import checksum
from apl.store.schema import new_identity

RECORD = ", ".join(field.name for field in fields(Record))
RECORDS = f"SELECT {RECORD}, checksum FROM memories"
LISTING = (
    f"SELECT {RECORD}, checksum, CAST((SELECT COALESCE(SUM(rows), 0) FROM classes WHERE memory = memories.id) AS bigint)"
    " FROM memories ORDER BY name"
)
RECORD_KINDS = (
    *((int,), (str,), (str,), (str,), (int,)),
    *((str,), (int,), (float, int), (int,), (int,)),
    (str, NoneType),
)
LAST_ID = 2**62


@dataclass(frozen=True)
class Options:
    """How a memory is opened: see `apl.store.open_store`."""

    fingerprint: str | None = None
    width: int | None = None
    read_only: bool = False
    timeout: float = 0.0
    approximate: bool = False
    metric: Metric | None = None
    keep_sources: bool | None = None
    identity: str | None = None
    index: str | None = None

    def new_record(self, where: str, name: str) -> Record:
        """Of a new memory, which needs the name and width of its encoder, and the right to write. It has no id yet."""
        if self.read_only or self.fingerprint is None or self.width is None:
            raise NoSuchMemory(f"there is no memory named {name!r} in {where}")
        head = (0, name, self.identity or new_identity(), self.fingerprint, self.width, self.metric or "euclidean")
        return Record(*head, int(self.keep_sources is not False), time.time(), 1, 0, None)

    def require_same(self, record: Record) -> None:
        """Refuse a memory whose keys another encoder made. None asks for nothing."""
        if self.fingerprint not in (None, record.fingerprint):
            raise FingerprintMismatch(record.name, record.fingerprint, str(self.fingerprint))
        if self.width not in (None, record.width):
            raise StoreError(
                f"the keys of memory {record.name!r} have {record.width} numbers, this encoder makes {self.width}"
            )
        if self.keep_sources not in (None, kept := bool(record.keep_sources)):
            raise StoreError(f"memory {record.name!r} was made with keep_sources={kept}: that cannot change")


def as_record(found: Sequence[Any], place: str) -> Record:
    """A memory's record, compared with its checksum, which a server does not need, and with the types of its cells."""
    *cells, seal = found
    of_type = all(type(cell) in kinds for cell, kinds in zip(cells, RECORD_KINDS, strict=True))
    ranges = of_type and 0 <= cells[7] < YEAR_9999 and 0 < cells[8] <= LAST_ID and 0 <= cells[9] <= LAST_ID
    if (seal and checksum(*cells) != seal) or not ranges:
        raise StoreDamaged(
            f"memory {cells[1]!r} in {place} is damaged (its own record is not as it was written): see "
            "`apl memory verify`, restore it from a copy"
        )
    return Record(*cells)
