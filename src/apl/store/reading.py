"""Reading one memory, whatever its database: how records become values, and the questions that a store answers.

Statements have `?` for their values. What differs between SQLite and PostgreSQL is a few attributes and methods (how a list is
passed, how keys and sums travel, how the memory's record is moved on), and how to connect.
"""

from __future__ import annotations

import json
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from apl.store.answers import Changes, MemoryInfo, Recalled, Record, Snapshot, Totals
from apl.store.checks import LARGEST_COUNT, YEAR_9999, checked_ids, checked_key, checked_source
from apl.store.errors import NoSuchMemory, StoreDamaged, StoreError
from apl.store.opening import RECORDS, as_record
from apl.store.rows import (
    Label,
    LabelTotal,
    NewRow,
    Row,
    SourceShare,
    checked_label,
    checksum,
    label_of,
    label_text,
    payload_checksum,
    row_checksum,
    share_checksum,
    source_of,
    source_text,
    total_of,
)
from apl.store.schema import receipt_name

STATE_SETTING = "readers"
"""The setting that changes with every example: it is kept in the memory's own record, which changes with every write."""
ROW_CELLS = "id, label, surprise_nats, written_at, source, key, count, has_shares, generation, checksum"
GENERATIONS_FOLLOWED = 10_000
"""A copy that is further behind has to be loaded anew."""
SPARE = 8
"""Rows that a search returns beyond those asked for, so that a server's rounding does not decide which are nearest."""
ROWS_PER_BLOCK = 512
"""Rows fetched at a time, so that payloads of a large memory need not fit into RAM."""
CLASS_GONE = 0
"""Stands in `removed` for a class that lost its last row; no row has this id."""
Query = tuple[str, Sequence[object]]
Shares = dict[int, list[SourceShare]]
"""By row."""


@runtime_checkable
class Run(Protocol):
    """A connection within a transaction. What `execute` returns has `fetchall` and `fetchone`."""

    def execute(self, statement: str, values: Sequence[object] = ..., /) -> Any: ...

    def executemany(self, statement: str, records: Sequence[Sequence[object]], /) -> object: ...


class Reading(ABC):
    """Reads one memory."""

    one_of = ""
    """The condition that a column's value is in a list, which `_list` passes as one value."""
    key_cell, sum_cell = "key", "total"
    """How a key and a class's sum are selected, so that they come as bytes."""
    takes_bytes = True
    """Keys and sums are written as their bytes. Otherwise as an array and as a list."""
    shared = False
    """Other processes may write at the same time."""
    write_behind: Callable[[], None] | None = None
    """Writes what a memory in RAM has committed. Called before the store is read or written."""

    def __init__(self, record: Record, read_only: bool) -> None:
        self.name, self.fingerprint, self.width = record.name, record.fingerprint, record.width
        self.created, self.identity, self.keep_sources = record.created, record.identity, bool(record.keep_sources)
        self.read_only = read_only
        self.metric = record.metric
        """The metric of `recall` and `totals`."""
        self._memory = record.id
        self.turn = threading.RLock()
        self._closed = False
        self._process = os.getpid()

    # --- what a database implements ---------------------------------------------------------------

    @abstractmethod
    def _ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        """The answers to queries, asked together, about one state of the memory."""

    @abstractmethod
    def _writing(self, reads_first: bool = False) -> AbstractContextManager[Run]:
        """A transaction. `reads_first`: other writers of this memory wait from its beginning, not from `_advance` on."""

    @abstractmethod
    def _advance(self, run: Run, state: str | None, queries: Mapping[str, Query]) -> tuple[int, dict[str, list[Any]]]:
        """Move the memory's record on: a new generation, no reserved id given again, perhaps another state. Returns
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
    def _place(self) -> str:
        """Where the memory is, for messages."""

    @abstractmethod
    def _close(self) -> None: ...

    def _erased(self) -> None:
        """Something was forgotten: remove what the database still holds of it in logs."""
        return

    # --- queries, and what their records mean -----------------------------------------------------

    @property
    def _state_query(self) -> Query:
        return f"{RECORDS} WHERE id = ?", (self._memory,)

    def _as_state(self, records: Sequence[Any]) -> Record:
        found = as_record(records[0], self._place()) if records else None
        # A memory made anew may have the number of one that was deleted.
        if found is None or found.identity != self.identity:
            raise self._deleted()
        return found

    @property
    def _count_query(self) -> Query:
        return "SELECT CAST(COALESCE(SUM(rows), 0) AS bigint) FROM classes WHERE memory = ?", (self._memory,)

    def _rows_query(self, which: str = "", values: Sequence[object] = (), most: int | None = None) -> Query:
        cells = ROW_CELLS.replace("key", self.key_cell)
        limit = f" LIMIT {most:d}" if most is not None else ""
        return f"SELECT {cells} FROM rows WHERE memory = ? {which} ORDER BY id{limit}", (self._memory, *values)

    def _rows_of(self, ids: Sequence[int]) -> Query:
        return self._rows_query(f"AND id {self.one_of}", (self._list(ids),))

    def _as_rows(self, records: Sequence[tuple[Any, ...]]) -> list[Row]:
        """Rows without payloads, each compared with its checksum."""
        keys, rows = self._keys([record[5] for record in records]), []
        for record, key in zip(records, keys, strict=True):
            id, label, surprise, written_at, source, _, count, shares, generation, seal = record
            head, tail = (id, label, surprise, written_at, source), (count, shares, generation)
            try:
                whole = row_checksum(*head, key.astype("<f4").tobytes(), *tail) == seal and bool(np.isfinite(key).all())
                # Whoever made the file may have made the checksum too.
                whole = whole and surprise > -math.inf and 0 <= written_at < YEAR_9999 and 0 < count <= LARGEST_COUNT
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
            self._require_share(id, source, total, count, seal)
            found.setdefault(id, []).append(SourceShare(source_of(source), total_of(total, self.width), count))
            self._require_finite(id, found[id][-1].total)
        return found

    def _require_share(self, id: int, source: str, total: bytes, count: int, seal: int) -> None:
        whole = share_checksum(id, source, total, count) == seal and 0 < count <= LARGEST_COUNT
        if not whole or len(total) != self.width * (4 if count == 1 else 8):
            raise self._damaged(f"what a source contributed to row {id} is not as it was written")

    def _require_finite(self, id: int, total: np.ndarray) -> None:
        if not np.isfinite(total).all():
            raise self._damaged(f"what a source contributed to row {id} is not as it was written")

    def _source_ids(self, source: str) -> Query:
        # Asked for ids alone and in their order, SQLite would go through all shares by the primary key.
        query = (
            "SELECT id FROM rows WHERE memory = ? AND source = ?"
            " UNION SELECT id FROM shares WHERE memory = ? AND source = ? AND count > 0"
        )
        return query, (self._memory, source, self._memory, source_text(source))

    def _column(self, query: str, *values: object) -> list[int]:
        [found] = self._ask([(query, values)])
        return [id for (id,) in found]

    def _unsealed(self, what: str, name: str, value: str, seal: int) -> str:
        if checksum(name, value) != seal:
            raise self._damaged(f"the {what} {name!r} is not as it was written")
        return value

    def _decoded(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, TypeError, RecursionError):
            raise self._damaged("a setting or a receipt is not JSON") from None

    def _deleted(self) -> NoSuchMemory:
        return NoSuchMemory(f"memory {self.name!r} has been deleted from {self._place()}")

    def _damaged(self, what: str) -> StoreDamaged:
        return StoreDamaged(
            f"memory {self.name!r} in {self._place()} is damaged ({what}): see `apl memory verify`, restore it from a copy"
        )

    # --- rows -------------------------------------------------------------------------------------

    def load(self, most: int | None = None) -> Snapshot:
        """Everything but the payloads, in arrays: what the search in RAM is filled from. `most`: of the oldest rows."""
        state, found, [(expected,)] = self._ask([self._state_query, self._rows_query(most=most), self._count_query])
        generation, rows = self._as_state(state).generation, self._as_rows(found)
        if most is None and len(rows) != expected:
            raise self._damaged(f"{len(rows)} rows are left of {expected}")
        return Snapshot.of(rows, self.width, generation)

    def rows(self) -> Iterator[Row]:
        """Every row with its payload, oldest first. A row deleted while this runs may be left out."""
        for ids in self.blocks():
            yield from self.some_rows(ids)

    def new_rows(self) -> Iterator[NewRow]:
        """Every row with its payload and its shares, to be written elsewhere."""
        for ids in self.blocks():
            yield from self.as_new(self.some_rows(ids))

    def blocks(self) -> Iterator[list[int]]:
        """All ids, some at a time."""
        ids = self.ids()
        for start in range(0, len(ids), ROWS_PER_BLOCK):
            yield ids[start : start + ROWS_PER_BLOCK]

    def as_new(self, rows: Sequence[Row]) -> list[NewRow]:
        """Rows of this store with their shares, to be written elsewhere."""
        shares = self.shares([row.id for row in rows if row.has_shares])
        return [row.as_new(shares=tuple(shares.get(row.id, ()))) for row in rows]

    def some_rows(self, ids: Iterable[int]) -> list[Row]:
        """Those of these rows that exist, with their payloads, in the order of their ids."""
        wanted = checked_ids(ids)
        query = f"SELECT id, payload, checksum FROM payloads WHERE memory = ? AND id {self.one_of}"
        found, kept = self._ask([self._rows_of(wanted), (query, (self._memory, self._list(wanted)))])
        payloads: dict[int, bytes] = {}
        for id, payload, seal in kept:
            if payload_checksum(id, payload) != seal:
                raise self._damaged(f"the payload of row {id} is not as it was written")
            payloads[id] = payload
        return [replace(row, payload=payloads[row.id]) if row.id in payloads else row for row in self._as_rows(found)]

    def row(self, id: int) -> Row:
        found = self.some_rows([id])
        if not found:
            raise StoreError(f"memory {self.name!r} has no row {id}")
        return found[0]

    def payload(self, id: int) -> bytes | None:
        """The payload of a row, None if it was written without one."""
        return self.row(id).payload

    def ids(self, after: int = 0, most: int | None = None) -> list[int]:
        """Ids of all rows, oldest first, or of at most `most` beyond an id."""
        limit = "" if most is None else f" LIMIT {most:d}"
        return self._column(f"SELECT id FROM rows WHERE memory = ? AND id > ? ORDER BY id{limit}", self._memory, after)

    def ids_of_label(self, label: Label) -> list[int]:
        query = "SELECT id FROM rows WHERE memory = ? AND label = ? ORDER BY id"
        return self._column(query, self._memory, label_text(checked_label(label)))

    def changes(self, since: int) -> Changes | None:
        """What happened after that generation; None if it is too long ago, and everything has to be loaded."""
        if since < self.generation() - GENERATIONS_FOLLOWED:
            return None
        gone = "SELECT DISTINCT id FROM removed WHERE memory = ? AND generation > ? AND id > ? ORDER BY id"
        changed = self._rows_query("AND generation > ?", (since,))
        state, removed, rows = self._ask([self._state_query, (gone, (self._memory, since, CLASS_GONE)), changed])
        now = self._as_state(state).generation
        return Changes(Snapshot.of(self._as_rows(rows), self.width, now), [id for (id,) in removed])

    def recall(self, keys: np.ndarray, k: int) -> Recalled:
        """The k nearest rows of each of these keys, without payloads. A server searches its rows itself."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        asked = np.array([checked_key(key, self.width) for key in keys], np.float32).reshape(len(keys), self.width)
        found, generation = self._recall(asked, k + SPARE)
        return Recalled.of(found, asked, k, self.metric, generation)

    def _recall(self, keys: np.ndarray, k: int) -> tuple[list[list[Row]], int]:
        """At least the k nearest rows of each key, if there are as many, in any order; and the memory's generation."""
        state, rows = self._ask([self._state_query, self._rows_query()])
        return [self._as_rows(rows)] * len(keys), self._as_state(state).generation

    # --- sources ----------------------------------------------------------------------------------

    def shares(self, ids: Iterable[int]) -> Shares:
        """What each source contributed to those of these rows that consist of several sources."""
        [found] = self._ask([self._shares_query(checked_ids(ids))])
        return self._as_shares(found)

    def rows_of_source(self, source: str) -> list[int]:
        """Ids of the rows that an example of this source began, or was merged into."""
        query, values = self._source_ids(checked_source(source))
        return sorted(self._column(query, *values))

    def sources(self) -> list[tuple[str, Label]]:
        """Every named source in the memory, with the label of a row that it contributed to."""
        query = (
            "SELECT source, label FROM rows WHERE memory = ? AND source IS NOT NULL UNION"
            " SELECT SUBSTR(s.source, 2), label FROM shares AS s JOIN rows AS r ON r.memory = s.memory AND r.id = s.id"
            " WHERE s.memory = ? AND s.source <> ''"
        )
        [found] = self._ask([(query, (self._memory, self._memory))])
        return [(source, label_of(label)) for source, label in found]

    # --- classes ----------------------------------------------------------------------------------

    def totals(self, since: int | None = None) -> Totals:
        """Rows, examples and sum of keys of all classes, or of those that changed after a generation, where that is enough
        to bring a copy up to date."""
        after = -1 if since is None else since
        gone = "SELECT 1 FROM removed WHERE memory = ? AND generation > ? AND id = ? LIMIT 1"
        changed = (
            f"SELECT label, rows, examples, {self.sum_cell}, first_id FROM classes WHERE memory = ? AND generation > ?"
            " ORDER BY first_id, label"
        )
        lost_query, changed_query = (gone, (self._memory, after, CLASS_GONE)), (changed, (self._memory, after))
        state, lost, found = self._ask([self._state_query, lost_query, changed_query])
        record = self._as_state(state)
        if since is not None and (since < record.generation - GENERATIONS_FOLLOWED or lost):
            return self.totals()
        classes = [
            LabelTotal(label_of(label), n, examples, self._sum(sum), id) for label, n, examples, sum, id in found
        ]
        return Totals(record.generation, classes, since is None, self._decoded(record.state or "null"))

    def class_counts(self) -> dict[Label, tuple[int, int]]:
        """Rows and examples of each class, in the order in which the classes came."""
        return {total.label: (total.rows, total.examples) for total in self.totals().classes}

    # --- the memory -------------------------------------------------------------------------------

    @property
    def info(self) -> MemoryInfo:
        state, [(rows,)] = self._ask([self._state_query, self._count_query])
        return self._as_state(state).info(rows)

    def count(self) -> int:
        return self.info.rows

    def generation(self) -> int:
        """A number that grows with every write to this memory, by any process."""
        return self._as_state(self._ask([self._state_query])[0]).generation

    def settings(self) -> dict[str, Any]:
        query = "SELECT name, value, checksum FROM settings WHERE memory = ?"
        state, found = self._ask([self._state_query, (query, (self._memory,))])
        kept = self._as_state(state).state
        settings = {} if kept is None else {STATE_SETTING: kept}
        settings |= {name: self._unsealed("setting", name, value, seal) for name, value, seal in found}
        return {key: self._decoded(value) for key, value in settings.items()}

    def setting(self, key: str) -> Any | None:
        """One of the settings; None if it does not exist."""
        return self.settings().get(key)

    def receipt(self, key: str) -> Any | None:
        """What was written under this key by `replace(receipts=…)`; the latest 10,000 are kept. An empty one named something
        that was forgotten since."""
        query, name = "SELECT value, checksum FROM receipts WHERE memory = ? AND name = ?", receipt_name(key)
        [found] = self._ask([(query, (self._memory, name))])
        return self._decoded(self._unsealed("receipt", name, *found[0])) if found else None

    # --- looking for damage (`apl.store.verify`) --------------------------------------------------

    def file_problems(self) -> list[str]:
        """What the database itself finds wrong."""
        return []

    def check_receipts(self) -> None:
        """Compare all receipts with their checksums."""
        [found] = self._ask([("SELECT name, value, checksum FROM receipts WHERE memory = ?", (self._memory,))])
        for record in found:
            self._unsealed("receipt", *record)
