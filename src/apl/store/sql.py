"""A memory in a database with transactions: the statements of SQLite and PostgreSQL, written once.

Statements have `%s` for their values. What differs between the two databases is a few class attributes and methods of
`SqlStore` (how a list is passed, how keys and sums travel, how the memory's record is moved on), and how to connect.

A write is: move the memory's record on to a new generation, read the rows that will change, write. The questions of a
write come before its first change, so that a connection that pipelines needs two round trips.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from apl.config import Metric
from apl.store.contract import GENERATIONS_FOLLOWED, RECEIPTS_KEPT, ROWS_PER_BLOCK, Store, require_rows
from apl.store.errors import AlreadyAnswered, NoSuchMemory, StoreDamaged
from apl.store.rows import (
    KEEP,
    Changes,
    Forgotten,
    Label,
    LabelTotal,
    MemoryInfo,
    NewRow,
    Row,
    RowUpdate,
    Snapshot,
    SourceShare,
    Totals,
    Write,
    label_of,
    label_text,
    total_changes,
    updated_row,
)
from apl.store.schema import checksum, row_checksum, share_checksum, source_of, source_text, total_bytes, total_of
from apl.store.sources import Left, added_shares, by_source, kept_shares, without_source

STATE_SETTING = "readers"
"""The setting that changes with every lesson: it is kept in the memory's own record, which changes with every write."""
CLASS_GONE = 0
"""Stands in `removed` for a class that lost its last row; no row has this id."""
ROW_COLUMNS = "memory, id, label, surprise_nats, written_at, source, key, count, has_shares, generation, checksum"
Answer = TypeVar("Answer")


@runtime_checkable
class Result(Protocol):
    def fetchall(self) -> list[Any]: ...

    def fetchone(self) -> Any: ...


@runtime_checkable
class Run(Protocol):
    """A connection within a transaction."""

    def execute(self, statement: str, values: Sequence[object] = ()) -> Result: ...

    def executemany(self, statement: str, records: Sequence[Sequence[object]]) -> None: ...

    def settle(self) -> None:
        """Wait for the answers to everything asked so far."""


@dataclass
class Before:
    """What a write has read before it changes anything."""

    rows: dict[int, Row]
    shares: dict[int, list[SourceShare]]


class SqlStore(Store):
    """One memory of a database."""

    one_of = ""
    """The condition that a column's value is in a list, which `_list` passes as one value."""
    key_cell, sum_cell = "key", "total"
    """How a key and a class's sum are selected, so that they come as bytes."""
    _memory: int
    _kept_metric: Metric
    """The metric of the stored totals."""

    # --- what a database implements ---------------------------------------------------------------

    @abstractmethod
    def _read(self, ask: Callable[[Run], Answer], snapshot: bool = True) -> Answer:
        """The answer to questions. With `snapshot` they are about one state of the memory."""

    @abstractmethod
    def _ask(self, queries: Sequence[tuple[str, Sequence[object]]]) -> list[list[Any]]:
        """The answers to queries, asked together in this order; each may be about a later state than the one before."""

    @abstractmethod
    def _writing(self, write: Write | None = None) -> AbstractContextManager[Run]:
        """A transaction that waits for other writers of this memory."""

    @abstractmethod
    def _advance(self, run: Run, next_id: int, state: str | None) -> Callable[[], int]:
        """Move the memory's record on. Returns a function that returns the new generation."""

    @abstractmethod
    def _list(self, values: Sequence[int] | Sequence[str]) -> object: ...

    @abstractmethod
    def _key_value(self, key: np.ndarray) -> object: ...

    @abstractmethod
    def _sum_value(self, total: np.ndarray) -> object: ...

    @abstractmethod
    def _keys(self, cells: Sequence[bytes]) -> np.ndarray: ...

    @abstractmethod
    def _sum(self, cell: bytes) -> np.ndarray: ...

    @abstractmethod
    def _place(self) -> str:
        """Where the memory is, for messages."""

    @abstractmethod
    def _state_query(self) -> tuple[str, tuple[object, ...]]: ...

    @abstractmethod
    def _as_state(self, record: Any) -> tuple[int, int, str | None]:
        """The memory's generation, since when changes are known, and its state as JSON, from the answer to that query."""

    def _state(self, run: Run) -> tuple[int, int, str | None]:
        return self._as_state(run.execute(*self._state_query()).fetchone())

    # --- writing ----------------------------------------------------------------------------------

    def _write(self, write: Write) -> None:
        with self._writing(write) as run:
            self._write_in(run, write)

    def _forget_source(self, source: str, settings: dict[str, str]) -> Forgotten:
        with self._writing() as run:
            ids = self._source_ids(run, source)
            rows = {row.id: row for row in self._rows_in(run, f"AND id {self.one_of}", (self._list(ids),))}
            left = {id: self._left(run, id, source) for id in rows}
            changes = {id: without_source(row, left[id], source) for id, row in rows.items()}
            unshared = frozenset(id for id in rows if len(left[id].sources) == 1)
            gone = [id for id, change in changes.items() if change is None]
            rebuilt = [change for change in changes.values() if change is not None]
            if changes:
                self._write_in(
                    run, Write(gone, [], rebuilt, settings, erase=(source,), forget=source, unshared=unshared)
                )
        return Forgotten(gone, [change.id for change in rebuilt])

    def _write_in(self, run: Run, write: Write) -> None:
        settings = dict(write.settings)
        generation = self._advance(
            run, max((row.id or 0 for row in write.add), default=0) + 1, settings.pop(STATE_SETTING, None)
        )
        before = self._before(run, write, generation)
        now = generation()
        after = [replace(updated_row(before.rows[change.id], change), generation=now) for change in write.update]
        if write.remove:
            self._remove(run, write.remove, now)
        after = self._put_shares(run, write, before, after)
        self._put_rows(run, [*write.add, *after], now)
        self._put_payloads(run, [*write.add, *(change for change in write.update if change.payload is not KEEP)])
        self._put_totals(run, before.rows.values(), [*write.add, *after], now)
        self._put_settings(run, settings)
        self._put_receipts(run, write.receipts, now)
        if write.erase is not None:
            self._erase_receipts(run, [*write.erase, *self._labels_gone(run, before.rows.values())])

    def _before(self, run: Run, write: Write, generation: Callable[[], int]) -> Before:
        """Everything is asked before anything is fetched, so that a pipeline sends it at once."""
        touched, named = write.touched, [change for change in write.update if _names_sources(change)]
        rows = run.execute(*self._rows_query(f"AND id {self.one_of}", (self._list(touched),))) if touched else None
        sources = list({share.source for change in named for share in change.shares})
        shares = run.execute(*self._shares_query([change.id for change in named], sources)) if sources else None
        answered = None
        if write.receipts:
            query = f"SELECT name FROM receipts WHERE memory = %s AND name {self.one_of}"
            answered = run.execute(query, (self._memory, self._list(list(write.receipts))))
        run.settle()
        generation()
        if answered is not None and (found := answered.fetchone()):
            raise AlreadyAnswered(found[0])
        known = {row.id: row for row in self._as_rows(rows.fetchall())} if rows is not None else {}
        require_rows(touched, known, write.seen)
        return Before(known, self._as_shares(shares.fetchall()) if shares is not None else {})

    def _remove(self, run: Run, ids: list[int], generation: int) -> None:
        for table in ("rows", "payloads", "shares"):
            run.execute(f"DELETE FROM {table} WHERE memory = %s AND id {self.one_of}", (self._memory, self._list(ids)))
        run.executemany("INSERT INTO removed VALUES (%s, %s, %s)", [(self._memory, generation, id) for id in ids])
        forgotten = generation - GENERATIONS_FOLLOWED
        run.execute("DELETE FROM removed WHERE memory = %s AND generation <= %s", (self._memory, forgotten))

    def _put_rows(self, run: Run, rows: Sequence[NewRow | Row], generation: int) -> None:
        if not rows:
            return
        places = ", ".join(["%s"] * len(ROW_COLUMNS.split(", ")))
        run.executemany(
            f"INSERT INTO rows ({ROW_COLUMNS}) VALUES ({places}) ON CONFLICT (memory, id) DO UPDATE SET"
            " label = excluded.label, source = excluded.source, key = excluded.key, count = excluded.count,"
            " has_shares = excluded.has_shares, generation = excluded.generation, checksum = excluded.checksum",
            [self._record(row, generation) for row in rows],
        )

    def _record(self, row: NewRow | Row, generation: int) -> tuple[object, ...]:
        shares = int(bool(row.shares) if isinstance(row, NewRow) else row.has_shares)
        head = (row.id or 0, label_text(row.label), row.surprise_nats, row.written_at or 0.0, row.source)
        tail = (row.count, shares, generation)
        seal = row_checksum(*head, row.key.astype("<f4").tobytes(), *tail)
        return (self._memory, *head, self._key_value(row.key), *tail, seal)

    def _put_payloads(self, run: Run, rows: Sequence[Any]) -> None:
        if gone := [row.id for row in rows if row.payload is None and not isinstance(row, NewRow)]:
            query = f"DELETE FROM payloads WHERE memory = %s AND id {self.one_of}"
            run.execute(query, (self._memory, self._list(gone)))
        if kept := [row for row in rows if row.payload is not None]:
            run.executemany(
                "INSERT INTO payloads (memory, id, payload, checksum) VALUES (%s, %s, %s, %s) ON CONFLICT (memory, id)"
                " DO UPDATE SET payload = excluded.payload, checksum = excluded.checksum",
                [(self._memory, row.id, row.payload, checksum(row.id, row.payload)) for row in kept],
            )

    def _put_shares(self, run: Run, write: Write, before: Before, after: Sequence[Row]) -> list[Row]:
        """Write what sources contributed. Returns the updated rows, which say whether they have shares."""
        new: dict[int, list[SourceShare]] = {row.id or 0: list(row.shares) for row in write.add if row.shares}
        stale, rows = [], []
        for change, row in zip(write.update, after, strict=True):
            old = before.rows[change.id]
            shares, has_shares = [], old.has_shares
            if change.rebuilt and write.forget is not None:
                has_shares = row.id not in write.unshared
                stale += [] if has_shares else [row.id]
            elif change.rebuilt:
                shares = kept_shares(change.shares, row.source)
                has_shares = bool(shares)
                stale.append(row.id)
            elif row.count != old.count:
                shares = self._grown_shares(run, old, row, change, before)
                has_shares = old.has_shares or bool(shares)
            new[row.id] = shares
            rows.append(replace(row, has_shares=has_shares))
        which = f"FROM shares WHERE memory = %s AND id {self.one_of}"
        if stale:
            run.execute(f"DELETE {which}", (self._memory, self._list(stale)))
        if write.forget is not None and write.update:
            ids = self._list([change.id for change in write.update])
            run.execute(f"DELETE {which} AND source = %s", (self._memory, ids, source_text(write.forget)))
        if records := [self._share_record(id, share) for id, shares in new.items() for share in shares]:
            run.executemany(
                "INSERT INTO shares (memory, id, source, total, count, checksum) VALUES (%s, %s, %s, %s, %s, %s)"
                " ON CONFLICT (memory, id, source) DO UPDATE SET total = excluded.total, count = excluded.count,"
                " checksum = excluded.checksum",
                records,
            )
        return rows

    def _grown_shares(self, run: Run, old: Row, row: Row, change: RowUpdate, before: Before) -> list[SourceShare]:
        """The shares of a row that gained examples, of the sources that these came from."""
        if not self.keep_sources:
            return []
        added = added_shares(old, row, change)
        known = before.shares.get(row.id, []) if old.has_shares else []
        read = {share.source for share in change.shares} if _names_sources(change) else set()
        if old.has_shares and (unread := [share.source for share in added if share.source not in read]):
            known = [*known, *self._shares_in(run, [row.id], unread).get(row.id, [])]
        touched = {share.source for share in added}
        return [share for share in by_source([*known, *added]).values() if share.source in touched]

    def _share_record(self, id: int, share: SourceShare) -> tuple[object, ...]:
        cells = (id, source_text(share.source), total_bytes(share.total, share.count), share.count)
        return (self._memory, *cells, share_checksum(*cells))

    def _put_totals(
        self,
        run: Run,
        before: Iterable[Row],
        after: Sequence[NewRow | Row],
        generation: int,
        metric: Metric | None = None,
    ) -> None:
        """Keep the totals of the classes: what was is subtracted, what is is added."""
        changes = total_changes(before, after, self.width, metric or self.metric)
        if not changes:
            return
        run.executemany(
            "INSERT INTO classes (memory, label, rows, examples, total, first_id, generation)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (memory, label) DO UPDATE SET"
            " rows = classes.rows + excluded.rows, examples = classes.examples + excluded.examples,"
            " total = add_sums(classes.total, excluded.total), generation = excluded.generation",
            [
                (self._memory, label, rows, examples, self._sum_value(total), first, generation)
                for label, (rows, examples, total, first) in changes.items()
            ],
        )
        if any(rows < 0 for rows, _, _, _ in changes.values()):
            empty = "SELECT 1 FROM classes WHERE memory = %s AND rows = 0"
            values = (self._memory, generation, CLASS_GONE, self._memory)
            run.execute(f"INSERT INTO removed SELECT %s, %s, %s WHERE EXISTS ({empty})", values)
            run.execute("DELETE FROM classes WHERE memory = %s AND rows = 0", (self._memory,))

    def _put_settings(self, run: Run, settings: Mapping[str, str]) -> None:
        if settings:
            run.executemany(
                "INSERT INTO settings (memory, name, value, checksum) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (memory, name) DO UPDATE SET value = excluded.value, checksum = excluded.checksum",
                [(self._memory, name, value, checksum(name, value)) for name, value in settings.items()],
            )

    def _put_receipts(self, run: Run, receipts: Mapping[str, str], generation: int) -> None:
        if not receipts:
            return
        run.executemany(
            "INSERT INTO receipts (memory, name, value, generation, checksum) VALUES (%s, %s, %s, %s, %s)",
            [(self._memory, name, value, generation, checksum(name, value)) for name, value in receipts.items()],
        )
        # Receipts beyond the limit are those of the generations before that of the oldest one kept.
        run.execute(
            "DELETE FROM receipts WHERE memory = %s AND generation < (SELECT generation FROM receipts"
            " WHERE memory = %s ORDER BY generation DESC LIMIT 1 OFFSET %s)",
            (self._memory, self._memory, RECEIPTS_KEPT - 1),
        )

    def _labels_gone(self, run: Run, before: Iterable[Row]) -> list[str]:
        """The names among these rows' labels that no row has any more."""
        labels = {label_text(row.label): str(row.label) for row in before}
        query = f"SELECT label FROM classes WHERE memory = %s AND label {self.one_of}"
        left = {label for (label,) in run.execute(query, (self._memory, self._list(list(labels)))).fetchall()}
        return [name for label, name in labels.items() if label not in left and label[0] == "t"]

    def _erase_receipts(self, run: Run, names: Iterable[str]) -> None:
        """Remove the receipts in which a name stands."""
        query = "DELETE FROM receipts WHERE memory = %s AND value LIKE %s ESCAPE '^'"
        for name in filter(None, names):
            pattern = "".join(f"^{letter}" if letter in "^%_" else letter for letter in encoded_text(name))
            run.execute(query, (self._memory, f"%{pattern}%"))

    def _sum_anew(self, run: Run, metric: Metric, generation: int) -> None:
        """Compute the totals of all classes by another metric."""
        run.execute("DELETE FROM classes WHERE memory = %s", (self._memory,))
        last = 0
        while rows := self._rows_in(run, "AND id > %s", (last,), most=ROWS_PER_BLOCK):
            self._put_totals(run, [], rows, generation, metric)
            last = rows[-1].id

    # --- reading ----------------------------------------------------------------------------------

    def _load(self) -> Snapshot:
        return self._read(self._loaded)

    def _loaded(self, run: Run) -> Snapshot:
        generation = self._state(run)[0]
        rows, expected = self._rows_in(run), self._counted(run)
        if len(rows) != expected:
            raise self._damaged(f"{len(rows)} rows are left of {expected}")
        return Snapshot.of(rows, self.width, generation)

    def _changes(self, since: int) -> Changes | None:
        def ask(run: Run) -> Changes | None:
            generation, known_since, _ = self._state(run)
            if since < known_since:
                return None
            query = "SELECT DISTINCT id FROM removed WHERE memory = %s AND generation > %s AND id > %s ORDER BY id"
            removed = [id for (id,) in run.execute(query, (self._memory, since, CLASS_GONE)).fetchall()]
            rows = self._rows_in(run, "AND generation > %s", (since,))
            return Changes(Snapshot.of(rows, self.width, generation), removed)

        return self._read(ask)

    def _rows_query(
        self, which: str = "", values: Sequence[object] = (), most: int | None = None
    ) -> tuple[str, tuple[object, ...]]:
        columns = ROW_COLUMNS.replace("memory, ", "").replace("key", self.key_cell)
        limit = f" LIMIT {most:d}" if most is not None else ""
        return f"SELECT {columns} FROM rows WHERE memory = %s {which} ORDER BY id{limit}", (self._memory, *values)

    def _rows_in(self, run: Run, which: str = "", values: Sequence[object] = (), most: int | None = None) -> list[Row]:
        return self._as_rows(run.execute(*self._rows_query(which, values, most)).fetchall())

    def _as_rows(self, records: Sequence[tuple[Any, ...]]) -> list[Row]:
        """Rows without payloads, each compared with its checksum."""
        keys, rows = self._keys([record[5] for record in records]), []
        for record, key in zip(records, keys, strict=True):
            id, label, surprise, written_at, source, _, count, shares, generation, seal = record
            head, tail = (id, label, surprise, written_at, source), (count, shares, generation)
            try:
                whole = row_checksum(*head, key.astype("<f4").tobytes(), *tail) == seal
            except Exception:  # damage may have changed types, too
                whole = False
            if not whole:
                raise self._damaged(f"row {id} is not as it was written")
            rows.append(
                Row(id, label_of(label), key, surprise, written_at, source, None, count, bool(shares), generation)
            )
        return rows

    def _fetch(self, ids: list[int]) -> list[Row]:
        if not ids:
            return []

        def ask(run: Run) -> list[Row]:
            which, values = f"AND id {self.one_of}", (self._list(ids),)
            rows = self._rows_in(run, which, values)
            query = f"SELECT id, payload, checksum FROM payloads WHERE memory = %s {which}"
            payloads: dict[int, bytes] = {}
            for id, payload, seal in run.execute(query, (self._memory, *values)).fetchall():
                if checksum(id, payload) != seal:
                    raise self._damaged(f"the payload of row {id} is not as it was written")
                payloads[id] = payload
            return [replace(row, payload=payloads.get(row.id)) for row in rows]

        return self._read(ask)

    def _shares(self, ids: list[int]) -> dict[int, list[SourceShare]]:
        return self._read(lambda run: self._shares_in(run, ids)) if ids else {}

    def _shares_query(
        self, ids: list[int], sources: Sequence[str | None] | None = None
    ) -> tuple[str, tuple[object, ...]]:
        query = f"SELECT id, source, total, count, checksum FROM shares WHERE memory = %s AND id {self.one_of}"
        values = (self._memory, self._list(ids))
        if sources is None:
            return f"{query} ORDER BY id, source", values
        return f"{query} AND source {self.one_of}", (*values, self._list([source_text(source) for source in sources]))

    def _shares_in(
        self, run: Run, ids: list[int], sources: Sequence[str | None] | None = None
    ) -> dict[int, list[SourceShare]]:
        return self._as_shares(run.execute(*self._shares_query(ids, sources)).fetchall())

    def _as_shares(self, records: Sequence[tuple[Any, ...]]) -> dict[int, list[SourceShare]]:
        found: dict[int, list[SourceShare]] = {}
        for id, source, total, count, seal in records:
            if share_checksum(id, source, total, count) != seal:
                raise self._damaged(f"what a source contributed to row {id} is not as it was written")
            found.setdefault(id, []).append(SourceShare(source_of(source), total_of(total, self.width), count))
        return found

    def _left(self, run: Run, id: int, source: str) -> Left:
        """What the other sources contributed to a row, summed without an object for each of them."""
        sources, count, parts = [], 0, {4: list[bytes](), 8: list[bytes]()}
        forgotten = source_text(source)
        for _, one, total, examples, seal in run.execute(*self._shares_query([id])).fetchall():
            if share_checksum(id, one, total, examples) != seal:
                raise self._damaged(f"what a source contributed to row {id} is not as it was written")
            if one != forgotten:
                sources.append(one)
                count += examples
                parts[len(total) // self.width].append(total)
        sums = [np.frombuffer(b"".join(part), f"<f{size}").reshape(-1, self.width) for size, part in parts.items()]
        return Left(
            np.asarray(sum(part.sum(0, np.float64) for part in sums)), count, [source_of(one) for one in sources]
        )

    def _rows_of_source(self, source: str) -> list[int]:
        return self._read(lambda run: self._source_ids(run, source))

    def _source_ids(self, run: Run, source: str) -> list[int]:
        query = (
            "SELECT id FROM rows WHERE memory = %s AND source = %s"
            " UNION SELECT id FROM shares WHERE memory = %s AND source = %s ORDER BY id"
        )
        values = (self._memory, source, self._memory, source_text(source))
        return [id for (id,) in run.execute(query, values).fetchall()]

    def _sources(self) -> list[tuple[str, Label]]:
        query = (
            "SELECT source, label FROM rows WHERE memory = %s AND source IS NOT NULL UNION"
            " SELECT SUBSTR(s.source, 2), label FROM shares AS s JOIN rows AS r ON r.memory = s.memory AND r.id = s.id"
            " WHERE s.memory = %s AND s.source <> ''"
        )
        found = self._read(lambda run: run.execute(query, (self._memory,) * 2).fetchall(), snapshot=False)
        return [(source, label_of(label)) for source, label in found]

    def _existing(self, ids: list[int]) -> list[int]:
        query = f"SELECT id FROM rows WHERE memory = %s AND id {self.one_of} ORDER BY id"
        return self._column(query, self._list(ids)) if ids else []

    def _labelled(self, label: Label) -> list[int]:
        return self._column("SELECT id FROM rows WHERE memory = %s AND label = %s ORDER BY id", label_text(label))

    def _ids(self, after: int = 0, most: int | None = None) -> list[int]:
        limit = "" if most is None else f" LIMIT {most:d}"
        return self._column(f"SELECT id FROM rows WHERE memory = %s AND id > %s ORDER BY id{limit}", after)

    def _totals(self, since: int | None) -> Totals:
        if self.metric != self._kept_metric:
            return super()._totals(since)

        after = -1 if since is None else since
        gone = "SELECT 1 FROM removed WHERE memory = %s AND generation > %s AND id = %s LIMIT 1"
        queries = [self._state_query(), (gone, (self._memory, after, CLASS_GONE)), self._classes_query(after)]
        state, lost, changed = self._ask(queries)
        generation, known_since, kept = self._as_state(state[0] if state else None)
        complete = after < known_since or bool(lost)
        if complete and after >= 0:
            return self._totals(None)
        classes = [LabelTotal(label_of(label), rows, count, self._sum(cell)) for label, rows, count, cell in changed]
        return Totals(generation, classes, after < 0, None if kept is None else json.loads(kept))

    def _classes_query(self, after: int) -> tuple[str, tuple[object, ...]]:
        query = f"SELECT label, rows, examples, {self.sum_cell} FROM classes WHERE memory = %s AND generation > %s"
        return f"{query} ORDER BY first_id, label", (self._memory, after)

    def _class_counts(self) -> dict[Label, tuple[int, int]]:
        query = "SELECT label, rows, examples FROM classes WHERE memory = %s ORDER BY first_id, label"
        found = self._read(lambda run: run.execute(query, (self._memory,)).fetchall())
        return {label_of(label): (rows, examples) for label, rows, examples in found}

    def _count(self) -> int:
        return self._read(self._counted)

    def _counted(self, run: Run) -> int:
        self._state(run)
        query = "SELECT COALESCE(SUM(rows), 0) FROM classes WHERE memory = %s"
        return int(run.execute(query, (self._memory,)).fetchone()[0])

    def _settings(self, key: str | None = None) -> dict[str, str]:
        query = "SELECT name, value, checksum FROM settings WHERE memory = %s"
        named = (query, (self._memory,)) if key is None else (f"{query} AND name = %s", (self._memory, key))
        state, found = self._ask([self._state_query(), named])
        kept = self._as_state(state[0] if state else None)[2]
        settings = {} if kept is None else {STATE_SETTING: kept}
        for name, value, seal in found:
            if checksum(name, value) != seal:
                raise self._damaged(f"the setting {name!r} is not as it was written")
            settings[name] = value
        return settings

    def _receipt(self, key: str) -> str | None:
        query = "SELECT value, checksum FROM receipts WHERE memory = %s AND name = %s"
        found = self._read(lambda run: run.execute(query, (self._memory, key)).fetchone(), snapshot=False)
        if found is not None and checksum(key, found[0]) != found[1]:
            raise self._damaged(f"the receipt {key!r} is not as it was written")
        return None if found is None else found[0]

    def _generation(self) -> int:
        [state] = self._ask([self._state_query()])
        return self._as_state(state[0] if state else None)[0]

    def _column(self, query: str, *values: object) -> list[int]:
        [found] = self._ask([(query, (self._memory, *values))])
        return [id for (id,) in found]

    def _found(self, record: Any) -> Any:
        if record is None:
            raise NoSuchMemory(f"memory {self.name!r} has been deleted from {self._place()}")
        return record

    def _damaged(self, what: str) -> StoreDamaged:
        return StoreDamaged(
            f"memory {self.name!r} in {self._place()} is damaged ({what}): see `apl memory verify`, restore it from a copy"
        )


def _names_sources(change: RowUpdate) -> bool:
    return not change.rebuilt and any(share.source is not None for share in change.shares)


def encoded_text(text: str) -> str:
    """A text as it stands within JSON."""
    return json.dumps(text)[1:-1]


def info_of(record: Sequence[Any], rows: int) -> MemoryInfo:
    """From the columns name, fingerprint, width, created, identity, keep_sources."""
    name, fingerprint, width, created, identity, keep_sources = record
    return MemoryInfo(name, fingerprint, width, created, rows, identity, bool(keep_sources))
