"""The tables of one memory: how its records become values, by statements that SQLite and PostgreSQL share.

Statements have `?` for their values. What differs between the databases is a few attributes and methods of `Tables` (how a
list is passed, how keys and sums travel, how the memory's record is moved on), and how to connect.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from apl.config import Metric
from apl.store.errors import FingerprintMismatch, NoSuchMemory, StoreDamaged, StoreError
from apl.store.rows import MemoryInfo, Row, SourceShare, label_of
from apl.store.schema import checksum, row_checksum, share_checksum, source_of, source_text, total_of

STATE_SETTING = "readers"
"""The setting that changes with every example: it is kept in the memory's own record, which changes with every write."""
ROW_CELLS = "id, label, surprise_nats, written_at, source, key, count, has_shares, generation, checksum"
GENERATIONS_FOLLOWED = 10_000
"""A copy that is further behind has to be loaded anew."""
Answer = TypeVar("Answer")
Query = tuple[str, Sequence[object]]
Shares = dict[int, list[SourceShare]]
"""By row."""


@runtime_checkable
class Result(Protocol):
    def fetchall(self) -> list[Any]: ...

    def fetchone(self) -> Any: ...


@runtime_checkable
class Run(Protocol):
    """A connection within a transaction."""

    def execute(self, statement: str, values: Sequence[object] = ..., /) -> Result: ...

    def executemany(self, statement: str, records: Sequence[Sequence[object]], /) -> object: ...


@dataclass(frozen=True)
class Options:
    """How a memory is opened: see `apl.store.open_store`."""

    fingerprint: str | None = None
    width: int | None = None
    read_only: bool = False
    timeout: float = 0.0
    approximate: bool = False
    shared: bool = False
    metric: Metric | None = None
    keep_sources: bool | None = None
    identity: str | None = None
    index: str | None = None

    def require_creatable(self, where: str, name: str) -> None:
        """A new memory needs the name and width of its encoder, and the right to write."""
        if self.read_only or self.fingerprint is None or self.width is None:
            raise NoSuchMemory(f"there is no memory named {name!r} in {where}")

    def require_same(self, info: MemoryInfo) -> None:
        """Refuse a memory whose keys another encoder made. None asks for nothing."""
        if self.fingerprint not in (None, info.fingerprint):
            raise FingerprintMismatch(info.name, info.fingerprint, str(self.fingerprint))
        if self.width not in (None, info.width):
            raise StoreError(
                f"the keys of memory {info.name!r} have {info.width} numbers, this encoder makes {self.width}"
            )
        if self.keep_sources not in (None, info.keep_sources):
            raise StoreError(f"memory {info.name!r} was made with keep_sources={info.keep_sources}: that cannot change")


class Tables(ABC):
    """What the tables hold of one memory."""

    one_of = ""
    """The condition that a column's value is in a list, which `_list` passes as one value."""
    key_cell, sum_cell = "key", "total"
    """How a key and a class's sum are selected, so that they come as bytes."""
    takes_bytes = True
    """Keys and sums are written as their bytes. Otherwise as an array and as a list."""
    driver_errors: tuple[type[Exception], ...] = ()
    """Errors that `_explained` turns into those of `apl.store.errors`."""
    shared = False
    """Other processes may write at the same time."""
    write_behind: Callable[[], None] | None = None
    """Writes what a memory in RAM has committed. Called before the store is read or written."""

    def __init__(self, info: MemoryInfo, memory: int, metric: Metric, read_only: bool) -> None:
        self.name, self.fingerprint, self.width = info.name, info.fingerprint, info.width
        self.created, self.identity, self.keep_sources = info.created, info.identity, info.keep_sources
        self.read_only = read_only
        self.metric = metric
        """The metric of `recall` and `totals`."""
        self.written: int | None = None
        """The generation of this store's latest write."""
        self._memory = memory
        self.turn = threading.RLock()
        self._closed = False
        self._process = os.getpid()
        self._reserved: set[int] = set()
        """Ids that were reserved and not yet written."""

    # --- what a database implements ---------------------------------------------------------------

    @abstractmethod
    def _read(self, ask: Callable[[Run], Answer]) -> Answer:
        """The answer to questions about one state of the memory."""

    @abstractmethod
    def _ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        """The answers to queries, asked together in this order; each may be about a later state than the one before."""

    @abstractmethod
    def _writing(self, reads_first: bool = False) -> AbstractContextManager[Run]:
        """A transaction. `reads_first`: other writers of this memory wait from its beginning, not from `_advance` on."""

    @abstractmethod
    def _advance(
        self, run: Run, state: str | None, queries: Mapping[str, Query], metric: Metric | None = None
    ) -> tuple[int, dict[str, list[Any]]]:
        """Move the memory's record on: a new generation, no reserved id given again, perhaps another state or metric. Returns
        the generation, and the answers to queries about the memory before anything else changes."""

    @abstractmethod
    def _reserve(self, count: int) -> int:
        """The first of this number of ids."""

    @abstractmethod
    def _list(self, values: Sequence[int] | Sequence[str]) -> object: ...

    @abstractmethod
    def _keys(self, cells: Sequence[bytes]) -> np.ndarray: ...

    @abstractmethod
    def _sum(self, cell: bytes) -> np.ndarray: ...

    @abstractmethod
    def _state_query(self) -> Query: ...

    @abstractmethod
    def _as_state(self, records: Sequence[Any]) -> tuple[int, int, str | None]:
        """The memory's generation, since when changes are known, and its state as JSON, from the answer to that query."""

    @abstractmethod
    def _place(self) -> str:
        """Where the memory is, for messages."""

    @abstractmethod
    def _explained(self, error: Exception) -> StoreError: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _erased(self) -> None:
        """Something was forgotten: remove what the database still holds of it in logs."""
        return

    # --- records and values -----------------------------------------------------------------------

    def _state(self, run: Run) -> tuple[int, int, str | None]:
        return self._as_state(run.execute(*self._state_query()).fetchall())

    def _rows_query(self, which: str = "", values: Sequence[object] = (), most: int | None = None) -> Query:
        cells = ROW_CELLS.replace("key", self.key_cell)
        limit = f" LIMIT {most:d}" if most is not None else ""
        return f"SELECT {cells} FROM rows WHERE memory = ? {which} ORDER BY id{limit}", (self._memory, *values)

    def _rows_in(self, run: Run, which: str = "", values: Sequence[object] = (), most: int | None = None) -> list[Row]:
        return self._as_rows(run.execute(*self._rows_query(which, values, most)).fetchall())

    def _as_rows(self, records: Sequence[tuple[Any, ...]]) -> list[Row]:
        """Rows without payloads, each compared with its checksum."""
        keys, rows = self._keys([record[5] for record in records]), []
        for record, key in zip(records, keys, strict=True):
            id, label, surprise, written_at, source, _, count, shares, generation, seal = record
            head, tail = (id, label, surprise, written_at, source), (count, shares, generation)
            try:
                whole = row_checksum(*head, key.astype("<f4").tobytes(), *tail) == seal and bool(np.isfinite(key).all())
                name = label_of(label)
            except Exception:  # damage may have changed types, too
                whole = False
            if not whole:
                raise self._damaged(f"row {id} is not as it was written")
            rows.append(Row(id, name, key, surprise, written_at, source, None, count, bool(shares), generation))
        return rows

    def _shares_query(self, ids: Sequence[int], sources: Sequence[str | None] | None = None) -> Query:
        query = f"SELECT id, source, total, count, checksum FROM shares WHERE memory = ? AND id {self.one_of}"
        values = (self._memory, self._list(ids))
        if sources is None:
            return f"{query} ORDER BY id, source", values
        return f"{query} AND source {self.one_of}", (*values, self._list([source_text(source) for source in sources]))

    def _as_shares(self, records: Sequence[tuple[Any, ...]]) -> Shares:
        found: Shares = {}
        for id, source, total, count, seal in records:
            if share_checksum(id, source, total, count) != seal:
                raise self._damaged(f"what a source contributed to row {id} is not as it was written")
            found.setdefault(id, []).append(SourceShare(source_of(source), total_of(total, self.width), count))
        return found

    def _source_ids(self, source: str) -> Query:
        # Asked for ids alone and in their order, SQLite would go through all shares by the primary key.
        query = (
            "SELECT id FROM rows WHERE memory = ? AND source = ?"
            " UNION SELECT id FROM shares WHERE memory = ? AND source = ? AND count > 0"
        )
        return query, (self._memory, source, self._memory, source_text(source))

    def _unsealed(self, what: str, name: str, value: str, seal: int) -> str:
        if checksum(name, value) != seal:
            raise self._damaged(f"the {what} {name!r} is not as it was written")
        return value

    def _deleted(self) -> NoSuchMemory:
        return NoSuchMemory(f"memory {self.name!r} has been deleted from {self._place()}")

    def _damaged(self, what: str) -> StoreDamaged:
        return StoreDamaged(
            f"memory {self.name!r} in {self._place()} is damaged ({what}): see `apl memory verify`, restore it from a copy"
        )
