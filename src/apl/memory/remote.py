"""A memory that is searched where it lives: its rows stay on the server, and only those that are recalled travel.

Of the classes it holds names, counts and sums, which the store keeps as totals. Those that changed are read when the memory's
generation has changed, so an example that another process has learnt is known to the next question. Rows staged within a batch
are held in RAM until they are committed, and recalled beside the others. A handle is the id of a row in the store.

A merge is added to what the row is when it is written: a mean does not depend on the order. If the row is gone by then, the
examples become a row of their own. What the reading has learnt is that of the process that committed last.

With a budget, the row that goes is the one most like the new one. (In RAM every row can be compared with every other; here that would be a question for each.)
"""

from __future__ import annotations

import time

import numpy as np
from jaxtyping import Bool, Float

from apl.memory.history import History
from apl.memory.protocol import COUNT, LABEL, ClassTotals, Neighbours
from apl.memory.ram import RunningTotals
from apl.memory.staging import HISTORY_SETTING, KEY, LOST, ClassNames, Staged, StagedMemory
from apl.metric import measured
from apl.store import Label, NewRow, Recalled, Row, RowChanged, RowUpdate, Snapshot, SourceShare
from apl.store.rows import kept_shares

MOST_SAMPLED = 2000
"""Rows that `column` returns at most."""


class RemoteMemory(StagedMemory):
    """The rows of one store on a server. Any number of processes may read and write.

    Columns are compared as they are: a server searches its rows as they lie.
    """

    local = False
    scale: Float[np.ndarray, "episode 1 embed"] | None = None
    version = 0
    newest = -1
    _sample: Snapshot | None = None
    _recalled_at = LOST

    # --- what a learner needs ---------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(self._rows)

    def column(self, name: str) -> np.ndarray:
        if self._sample is None:
            self._sample = self.store.load(MOST_SAMPLED)
        sample, staged = self._sample, list(self.staged.rows.values())
        if name == KEY:
            added = np.array([row.key for row in staged], np.float32).reshape(-1, self.store.width)
            return np.concatenate([sample.keys, added])[None]
        if name == COUNT:
            return np.array([*sample.counts.tolist(), *(row.count for row in staged)], np.float32)[None]
        labels = [*sample.labels, *(row.label for row in staged)]
        return np.array([-1 if (n := self.names.number(label)) is None else n for label in labels], np.int64)[None]

    def classes_stored(self, way: int) -> Bool[np.ndarray, "episode way"]:
        found = np.zeros((1, way), bool)
        found[0, : len(self._rows)] = np.array(self._rows[:way]) > 0
        return found

    def class_totals(self, way: int | None = None) -> ClassTotals:
        return self._totals.of(way)

    def rescale(self, scale: Float[np.ndarray, "episode 1 embed"] | None) -> None:
        raise NotImplementedError("a server compares columns as they are")

    def nearest(self, key: str, query: Float[np.ndarray, "episode query embed"], k: int) -> Neighbours:
        found = self._recall(np.ascontiguousarray(query[0], np.float32), k)
        shape = (1, len(found.rows), k)
        row, distance = np.full(shape, -1), np.zeros(shape, np.float32)
        label, count = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        keys = np.zeros((*shape, self.store.width), np.float32)
        for q, (rows, distances) in enumerate(zip(found.rows, found.distances, strict=True)):
            for at, one in enumerate(rows):
                number = self.names.number(one.label)
                # A class that another process began since the classes were read is not part of this answer.
                if number is not None:
                    row[0, q, at], label[0, q, at], count[0, q, at] = one.id, number, one.count
                    keys[0, q, at], distance[0, q, at] = one.key, distances[at]
        return Neighbours({KEY: keys, LABEL: label, COUNT: count}, distance, row >= 0, row)

    def outdate(self, label: int, newest: int) -> None:
        """Old rows of a memory that several processes share stay."""

    def rows_of_classes(self) -> dict[Label, int]:
        return dict(zip(self.names.names, self._rows, strict=True))

    def ids_of(self, label: Label) -> list[int]:
        return self.store.ids_of_label(label)

    # --- staying in step with the store -----------------------------------------------------------

    def reload(self) -> None:
        self.staged = Staged()
        self._bases: dict[int, Row] = {}
        """The rows of staged updates, as they were recalled."""
        self._near: dict[int, Row] = {}
        self._read_classes(None, History.read(self.store.setting(HISTORY_SETTING)))

    def follow(self) -> None:
        """Read the classes that have changed since they were last read."""
        self._read_classes(None if self.generation == LOST else self.generation)

    def is_stale(self) -> bool:
        return self.store.generation() != self.generation

    def was_stale(self) -> bool:
        """True if the last recall found that others had written."""
        return self._recalled_at != self.generation

    def _write(self, staged: Staged, settings: dict[str, str], receipts: dict[str, str]) -> None:
        bases, seen = self._bases, self.generation
        # Whether or not it succeeds: what was not acknowledged has never been.
        self.staged, self._bases, self._sample, self.generation = Staged(), {}, None, LOST
        while True:
            try:
                self.store.commit(staged.write(settings, receipts))
                break
            except RowChanged:
                there = {row.id for row in self.store.some_rows([*staged.evicted, *staged.updates])}
                for id in [id for id in staged.updates if id not in there]:
                    [new] = self.store.reserve()
                    staged.rows[new] = new_row(new, bases[id].label, staged.updates.pop(id))
                staged.evicted = [id for id in staged.evicted if id in there]
        # If somebody else has written since, the next recall tells, and the classes are read.
        self.generation = seen + 1 if self.store.written == seen + 1 else seen

    # --- inside -----------------------------------------------------------------------------------

    def _read_classes(self, since: int | None, history: History | None = None) -> None:
        totals = self.store.totals(since)
        if not totals.complete and not all(total.rows for total in totals.classes):
            # The numbers of the other classes close up where one is gone.
            totals = self.store.totals()
        if totals.complete:
            self.names = ClassNames(numbered=self.numbered)
            self._rows: list[int] = []
            self._totals = RunningTotals(1, self.store.width)
        for total in totals.classes:
            number = self._number(total.label)
            self._rows[number] = total.rows
            self._totals.set(number, total.total, total.examples)
        self.generation = totals.generation
        self.version += 1
        self._sample = None
        self._restore_state(totals.state, history)

    def _number(self, label: Label) -> int:
        number = self.names.add(label)
        self._rows += [0] * (len(self.names) - len(self._rows))
        return number

    def _add(self, label: Label, key: np.ndarray, count: int, rows: int) -> None:
        """Examples of a class come or go, and rows with them."""
        number = self._number(label)
        self._rows[number] += rows
        key = measured(np.asarray(key, np.float32), self.metric)
        self._totals.add_one(0, number, key, float(count))
        self.version += 1

    def _recall(self, asked: Float[np.ndarray, "query embed"], k: int) -> Recalled:
        staged = self.staged
        found = self.store.recall(asked, k + len(staged.evicted) + len(staged.updates))
        self._recalled_at = found.generation
        if staged:
            other = {*staged.evicted, *staged.updates}
            shown = [
                change.applied(self._bases[id], self._bases[id].generation) for id, change in staged.updates.items()
            ]
            shown += [row.written(0) for row in staged.rows.values()]
            rows = [[*(row for row in rows if row.id not in other), *shown] for rows in found.rows]
            found = Recalled.of(rows, asked, k, self.metric, found.generation)
        self._near = {row.id: row for rows in found.rows for row in rows}
        return found

    def _added(self, row: NewRow) -> None:
        self._add(row.label, row.key, row.count, 1)

    def _merged(self, id: int, example: Float[np.ndarray, " embed"], source: str | None) -> RowUpdate:
        """The row was recalled last, or is staged."""
        staged, change = self.staged.rows.get(id), self.staged.updates.get(id)
        if staged is not None:
            row = staged.written(0)
        elif change is not None:
            row = change.applied(self._bases[id], self._bases[id].generation)
        elif id in self._near:
            row = self._bases[id] = self._near[id]
        else:
            raise ValueError(f"there is no row {id} to change")
        change = RowUpdate(id, shares=(SourceShare(source, example.astype(np.float64)),))
        after = change.applied(row, 0)
        self._add(row.label, row.key, -row.count, 0)
        self._add(row.label, after.key, after.count, 0)
        return change

    def _make_room(self, max_rows: int, key: Float[np.ndarray, " embed"], label: Label) -> None:
        """One row goes, however many are too many: each is a question to the server."""
        found, wanted = 1, 1
        while len(self) >= max_rows and found == wanted:
            wanted *= 8
            near = self._recall(key[None], wanted).rows[0]
            found = len(near)
            for row in near:
                if self.names.number(row.label) is not None:
                    self._add(row.label, row.key, -row.count, -1)
                    self.staged.evict(row.id)
                    return


def new_row(id: int, label: Label, change: RowUpdate) -> NewRow:
    """The examples of an update as a row of their own."""
    count, source = sum(share.count for share in change.shares), change.shares[0].source
    key = (np.sum([share.total for share in change.shares], axis=0) / count).astype(np.float32)
    shares = tuple(kept_shares(change.shares, source))
    return NewRow(label, key, written_at=time.time(), source=source, count=count, shares=shares, id=id)
