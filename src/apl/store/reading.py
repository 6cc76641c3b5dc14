"""The questions that a store answers, whatever its database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

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
    SourceShare,
    Totals,
    label_of,
    label_text,
    total_changes,
)
from apl.store.tables import CLASS_GONE, ROWS_PER_BLOCK, Run, Tables
from apl.store.validation import checked_ids, checked_key, checked_label, checked_source

SPARE = 8
"""Rows that a search returns beyond those asked for, so that a server's rounding does not decide which are nearest."""


class Reading(Tables):
    """Reads one memory."""

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
            yield from self._whole_rows(ids)

    def new_rows(self) -> Iterator[NewRow]:
        """Every row with its payload and its shares, to be written elsewhere."""
        for ids in self._blocks():
            yield from self.as_new(self._whole_rows(ids))

    def _blocks(self) -> Iterator[list[int]]:
        ids = self.ids()
        for start in range(0, len(ids), ROWS_PER_BLOCK):
            yield ids[start : start + ROWS_PER_BLOCK]

    def as_new(self, rows: Sequence[Row]) -> list[NewRow]:
        """Rows of this store with their shares, to be written elsewhere."""
        shares = self.shares([row.id for row in rows if row.has_shares])
        return [row.as_new(shares=tuple(shares.get(row.id, ()))) for row in rows]

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

    def shares(self, ids: Iterable[int]) -> dict[int, list[SourceShare]]:
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

    def row(self, id: int) -> Row:
        found = self.some_rows([id])
        if not found:
            raise StoreError(f"memory {self.name!r} has no row {id}")
        return found[0]

    def some_rows(self, ids: Iterable[int]) -> list[Row]:
        """Those of these rows that exist, in the order of their ids."""
        return self._whole_rows(checked_ids(ids))

    def payload(self, id: int) -> bytes | None:
        """The payload of a row, None if it was written without one."""
        return self.row(id).payload

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

    def totals(self, since: int | None = None) -> Totals:
        """Rows, examples and sum of keys of all classes, or of those that changed after a generation, where that is enough
        to bring a copy up to date."""
        if self.metric != self._kept_metric:
            return self._totals_of_rows()
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

    def _totals_of_rows(self) -> Totals:
        """By another metric than the stored ones."""
        rows, (generation, _, kept) = self._read(lambda run: (self._rows_in(run), self._state(run)))
        changes = total_changes([], rows, self.metric)
        classes = [LabelTotal(label_of(label), *total[:3]) for label, total in changes.items()]
        return Totals(generation, classes, True, None if kept is None else json.loads(kept))

    def class_counts(self) -> dict[Label, tuple[int, int]]:
        """Rows and examples of each class, in the order in which the classes came."""
        query = "SELECT label, rows, examples FROM classes WHERE memory = ? ORDER BY first_id, label"
        [found] = self._ask([(query, (self._memory,))])
        return {label_of(label): (rows, examples) for label, rows, examples in found}

    def ids(self, after: int = 0, most: int | None = None) -> list[int]:
        """Ids of all rows, oldest first, or of at most `most` beyond an id."""
        limit = "" if most is None else f" LIMIT {most:d}"
        return self._column(f"SELECT id FROM rows WHERE memory = ? AND id > ? ORDER BY id{limit}", self._memory, after)

    def existing(self, ids: Iterable[int]) -> list[int]:
        """Those of these ids that rows have."""
        query = f"SELECT id FROM rows WHERE memory = ? AND id {self.one_of} ORDER BY id"
        return self._column(query, self._memory, self._list(checked_ids(ids)))

    def ids_of_label(self, label: Label) -> list[int]:
        query = "SELECT id FROM rows WHERE memory = ? AND label = ? ORDER BY id"
        return self._column(query, self._memory, label_text(checked_label(label)))

    def settings(self) -> dict[str, Any]:
        return {key: json.loads(value) for key, value in self._settings().items()}

    def setting(self, key: str) -> Any | None:
        """One of the settings, without the others; None if it does not exist."""
        found = self._settings(key).get(key)
        return None if found is None else json.loads(found)

    def receipt(self, key: str) -> Any | None:
        """What was written under this key by `replace(receipts=…)`; the latest 10,000 are kept."""
        query = "SELECT value, checksum FROM receipts WHERE memory = ? AND name = ?"
        [found] = self._ask([(query, (self._memory, str(key)))])
        return json.loads(self._unsealed("receipt", key, *found[0])) if found else None

    def count(self) -> int:
        return self._read(lambda run: (self._state(run), self._counted(run))[1])

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
        for ids in self._blocks():
            if self._problem(ids):
                found += [problem for id in ids if (problem := self._problem([id]))]
        for check in (self.settings, self._read_receipts, self.load):
            try:
                check()
            except (StoreDamaged, ValueError, RecursionError) as error:
                found.append(str(error))
        return found + self._strays()

    def _problem(self, ids: list[int]) -> str | None:
        """What is wrong with some of these rows, their payloads or shares."""
        try:
            self.as_new(self._whole_rows(ids))
        except StoreDamaged as error:
            return str(error)
        return None

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
