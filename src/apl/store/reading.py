"""The questions that a store answers, whatever its database."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from apl.store.checks import checked_ids, checked_key, checked_label, checked_source
from apl.store.errors import StoreDamaged, StoreError
from apl.store.rows import (
    Changes,
    Label,
    LabelTotal,
    MemoryInfo,
    NewRow,
    Recalled,
    Row,
    Snapshot,
    Totals,
    label_of,
    label_text,
)
from apl.store.schema import payload_checksum, receipt_name
from apl.store.tables import STATE_SETTING, Run, Shares, Tables

SPARE = 8
"""Rows that a search returns beyond those asked for, so that a server's rounding does not decide which are nearest."""
ROWS_PER_BLOCK = 512
"""Rows fetched at a time, so that payloads of a large memory need not fit into RAM."""
CLASS_GONE = 0
"""Stands in `removed` for a class that lost its last row; no row has this id."""


class Reading(Tables):
    """Reads one memory."""

    # --- rows -------------------------------------------------------------------------------------

    def load(self, most: int | None = None) -> Snapshot:
        """Everything but the payloads, in arrays: what the search in RAM is filled from. `most`: of the oldest rows."""

        def ask(run: Run) -> Snapshot:
            generation, rows = self._state(run)[0], self._rows_in(run, most=most)
            if most is None and len(rows) != (expected := self._counted(run)):
                raise self._damaged(f"{len(rows)} rows are left of {expected}")
            return Snapshot.of(rows, self.width, generation)

        return self._read(ask)

    def rows(self) -> Iterator[Row]:
        """Every row with its payload, oldest first. A row deleted while this runs may be left out."""
        for ids in self._blocks():
            yield from self.some_rows(ids)

    def new_rows(self) -> Iterator[NewRow]:
        """Every row with its payload and its shares, to be written elsewhere."""
        for ids in self._blocks():
            yield from self.as_new(self.some_rows(ids))

    def _blocks(self) -> Iterator[list[int]]:
        ids = self.ids()
        for start in range(0, len(ids), ROWS_PER_BLOCK):
            yield ids[start : start + ROWS_PER_BLOCK]

    def as_new(self, rows: Sequence[Row]) -> list[NewRow]:
        """Rows of this store with their shares, to be written elsewhere."""
        shares = self.shares([row.id for row in rows if row.has_shares])
        return [row.as_new(shares=tuple(shares.get(row.id, ()))) for row in rows]

    def some_rows(self, ids: Iterable[int]) -> list[Row]:
        """Those of these rows that exist, with their payloads, in the order of their ids."""

        def ask(run: Run) -> list[Row]:
            which, values = f"AND id {self.one_of}", (self._list(wanted),)
            rows = self._rows_in(run, which, values)
            query = f"SELECT id, payload, checksum FROM payloads WHERE memory = ? {which}"
            payloads: dict[int, bytes] = {}
            for id, payload, seal in run.execute(query, (self._memory, *values)).fetchall():
                if payload_checksum(id, payload) != seal:
                    raise self._damaged(f"the payload of row {id} is not as it was written")
                payloads[id] = payload
            return [replace(row, payload=payloads[row.id]) if row.id in payloads else row for row in rows]

        wanted = checked_ids(ids)
        return self._read(ask) if wanted else []

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

    def _column(self, query: str, *values: object) -> list[int]:
        [found] = self._ask([(query, values)])
        return [id for (id,) in found]

    def changes(self, since: int) -> Changes | None:
        """What happened after that generation; None if it is too long ago, and everything has to be loaded."""

        def ask(run: Run) -> Changes | None:
            generation, known_since, _ = self._state(run)
            if since < known_since:
                return None
            query = "SELECT DISTINCT id FROM removed WHERE memory = ? AND generation > ? AND id > ? ORDER BY id"
            removed = [id for (id,) in run.execute(query, (self._memory, since, CLASS_GONE)).fetchall()]
            rows = self._rows_in(run, "AND generation > ?", (since,))
            return Changes(Snapshot.of(rows, self.width, generation), removed)

        return self._read(ask)

    def recall(self, keys: np.ndarray, k: int) -> Recalled:
        """The k nearest rows of each of these keys, without payloads. A server searches its rows itself."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        asked = np.array([checked_key(key, self.width) for key in keys], np.float32).reshape(len(keys), self.width)
        found, generation = self._recall(asked, k + SPARE)
        return Recalled.of(found, asked, k, self.metric, generation)

    def _recall(self, keys: np.ndarray, k: int) -> tuple[list[list[Row]], int]:
        """At least the k nearest rows of each key, if there are as many, in any order; and the memory's generation."""
        rows, generation = self._read(lambda run: (self._rows_in(run), self._state(run)[0]))
        return [rows] * len(keys), generation

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
        changed = f"SELECT label, rows, examples, {self.sum_cell} FROM classes WHERE memory = ? AND generation > ?"
        state, lost, found = self._ask(
            [
                self._state_query(),
                (gone, (self._memory, after, CLASS_GONE)),
                (f"{changed} ORDER BY first_id, label", (self._memory, after)),
            ]
        )
        generation, known_since, kept = self._as_state(state)
        if since is not None and (since < known_since or lost):
            return self.totals()
        classes = [LabelTotal(label_of(label), rows, count, self._sum(cell)) for label, rows, count, cell in found]
        return Totals(generation, classes, since is None, None if kept is None else json.loads(kept))

    def class_counts(self) -> dict[Label, tuple[int, int]]:
        """Rows and examples of each class, in the order in which the classes came."""
        return {total.label: (total.rows, total.examples) for total in self.totals().classes}

    def count(self) -> int:
        return self._read(lambda run: (self._state(run), self._counted(run))[1])

    def _counted(self, run: Run) -> int:
        query = "SELECT COALESCE(SUM(rows), 0) FROM classes WHERE memory = ?"
        return int(run.execute(query, (self._memory,)).fetchone()[0])

    # --- the memory -------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        query = "SELECT name, value, checksum FROM settings WHERE memory = ?"
        state, found = self._ask([self._state_query(), (query, (self._memory,))])
        kept = self._as_state(state)[2]
        settings = {} if kept is None else {STATE_SETTING: kept}
        settings |= {name: self._unsealed("setting", name, value, seal) for name, value, seal in found}
        return {key: json.loads(value) for key, value in settings.items()}

    def setting(self, key: str) -> Any | None:
        """One of the settings; None if it does not exist."""
        return self.settings().get(key)

    def receipt(self, key: str) -> Any | None:
        """What was written under this key by `replace(receipts=…)`; the latest 10,000 are kept. An empty one named something
        that was forgotten since."""
        query, name = "SELECT value, checksum FROM receipts WHERE memory = ? AND name = ?", receipt_name(key)
        [found] = self._ask([(query, (self._memory, name))])
        return json.loads(self._unsealed("receipt", name, *found[0])) if found else None

    def generation(self) -> int:
        """A number that grows with every write to this memory, by any process."""
        return self._as_state(self._ask([self._state_query()])[0])[0]

    @property
    def info(self) -> MemoryInfo:
        head = (self.name, self.fingerprint, self.width, self.created)
        return MemoryInfo(*head, self.count(), self.identity, self.keep_sources)

    def problems(self) -> list[str]:
        """What is wrong with the memory as stored, a sentence each; empty if nothing is."""
        found = list[str]()

        def attempt(check: Callable[..., object], *values: object) -> bool:
            try:
                check(*values)
            except (StoreDamaged, ValueError, RecursionError) as error:
                found.append(str(error))
                return False
            return True

        def whole(ids: list[int]) -> None:
            self.as_new(self.some_rows(ids))

        for ids in self._blocks():
            if not attempt(whole, ids):
                # Which of them?
                found.pop()
                for id in ids:
                    attempt(whole, [id])
        for check in (self.settings, self._read_receipts, self.load):
            attempt(check)
        return found + self._strays()

    def _read_receipts(self) -> None:
        """Compare all receipts with their checksums."""
        [found] = self._ask([("SELECT name, value, checksum FROM receipts WHERE memory = ?", (self._memory,))])
        for record in found:
            self._unsealed("receipt", *record)

    def _strays(self) -> list[str]:
        """Payloads and shares without a row, and classes whose counters are not those of their rows."""
        lost = "AS p WHERE memory = ? AND NOT EXISTS (SELECT 1 FROM rows WHERE memory = p.memory AND id = p.id)"
        classes = (
            "SELECT label FROM (SELECT label, COUNT(*) AS n, SUM(count) AS e FROM rows WHERE memory = ? GROUP BY label"
            " UNION ALL SELECT label, rows, examples FROM classes WHERE memory = ?) AS counted GROUP BY label"
            " HAVING COUNT(*) <> 2 OR MIN(n) <> MAX(n) OR MIN(e) <> MAX(e)"
        )
        payloads, shares, wrong = self._ask(
            [
                (f"SELECT id FROM payloads {lost}", (self._memory,)),
                (f"SELECT DISTINCT id FROM shares {lost}", (self._memory,)),
                (classes, (self._memory, self._memory)),
            ]
        )
        found = [f"payload {id} belongs to no row" for (id,) in payloads]
        found += [f"a source's share of row {id} belongs to no row" for (id,) in shares]
        return found + [f"class {label[1:]!r}: its counters are not those of its rows" for (label,) in wrong]
