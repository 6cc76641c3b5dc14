"""A memory that is searched where it lives: its rows stay on the server, and only those that are recalled travel.

Of the classes it holds names, counts and sums, which the store keeps as totals. Those that changed are read when the memory's
generation has changed, so an example that another process has learnt is known to the next question. Rows staged within a batch
are held in RAM until they are committed, and recalled beside the others. A handle is the id of a row in the store.

A merge says which generation of the row it has seen. If another process was faster, it is computed again from what the row is
now: a mean does not depend on the order. What the reading has learnt is that of the process that committed last.

With a budget, the row that goes is the one most like the new one: of its class if the class is full, of all rows otherwise.
(In RAM every row can be compared with every other; here that would be a question for each.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.config import Metric
from apl.memory.history import History, with_history, without_history
from apl.memory.names import Budget, ClassNames
from apl.memory.protocol import COUNT, LABEL, ClassTotals, Neighbours, ReadingState, Rows, merged_mean
from apl.memory.stored import KEY, LOST, STATE_SETTING, Details, MakeState
from apl.memory.totals import RunningTotals
from apl.metric import measured
from apl.store import Forgotten, Label, NewRow, Recalled, Row, RowChanged, RowUpdate, Snapshot, SourceShare, Store
from apl.store.sources import by_source, kept_shares

MOST_SAMPLED = 2000
"""Rows that `column` returns at most."""
TRIES = 10
"""How often a change is computed again because another process was faster."""


@dataclass(frozen=True)
class PendingMerge:
    """Examples that are to be merged into a row."""

    base: Row
    """The row as it was recalled."""
    added: tuple[SourceShare, ...] = ()
    """Example by example."""

    def result(self) -> Row:
        key, count = self.base.key, self.base.count
        for example in self.added:
            count += 1
            key = merged_mean(key, np.array(count, np.float32), example.total.astype(np.float32))
        return replace(self.base, key=key.astype(np.float32), count=count)

    def update(self) -> RowUpdate:
        result = self.result()
        named = by_source(share for share in self.added if share.source is not None)
        return RowUpdate(
            self.base.id,
            key=result.key,
            count=result.count,
            shares=tuple(named.values()),
            seen_generation=self.base.generation,
        )

    def as_new_row(self) -> NewRow:
        """A row of the added examples alone, for the case that the other is gone."""
        key = np.mean([share.total for share in self.added], axis=0).astype(np.float32)
        source = self.added[0].source
        shares = tuple(kept_shares(self.added, source))
        return NewRow(self.base.label, key, source=source, count=len(self.added), shares=shares)


def _recalled(row: NewRow) -> Row:
    """A row that is not written yet, as it will be recalled."""
    assert row.id is not None
    return Row(row.id, row.label, np.asarray(row.key, np.float32), 0.0, 0.0, row.source, None, row.count)


class RemoteMemory:
    """The rows of one store on a server. One key column; any number of processes may read and write.

    Columns are compared as they are: a server searches its rows as they lie.
    """

    episodes = 1
    keys: tuple[str, ...] = (KEY,)
    local = False
    scale: Float[np.ndarray, "episode 1 embed"] | None = None

    def __init__(
        self,
        store: Store,
        metric: Metric,
        new_state: MakeState = lambda kept: None,
        budget: Budget | None = None,
        numbered: bool = False,
    ) -> None:
        self.store = store
        self.metric: Metric = metric
        self.budget = budget or Budget()
        self.numbered = numbered
        self.state: ReadingState | None = None
        self.version = 0
        self.sources: dict[int, str] = {}
        """Of the rows that were recalled last."""
        self.generation = LOST
        self.history = History()
        """How the latest examples were predicted, here or by the process that committed last."""
        self._kept_state: ReadingState | None = None
        self._sample: Snapshot | None = None
        self._new_state = new_state
        self._near: dict[int, Row] = {}
        self._recalled_at: int | None = None
        self.reload()

    # --- what a learner needs ---------------------------------------------------------------------

    @property
    def counts(self) -> Int[np.ndarray, " episode"]:
        return np.array([len(self)])

    def __len__(self) -> int:
        return sum(self._rows)

    def column(self, name: str) -> np.ndarray:
        if self._sample is None:
            self._sample = self.store.oldest(MOST_SAMPLED)
        sample, staged = self._sample, [staged.row for staged in self._staged.values()]
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
        # A class that another process began since the classes were read is not part of this answer.
        number = self.names.number
        numbers = [[-1 if name is None else number(name) for name in names] for names in found.labels]
        label = np.array([[-1 if n is None else n for n in row] for row in numbers], np.int64).reshape(found.ids.shape)
        mask = label >= 0
        columns = {
            KEY: np.where(mask[..., None], found.keys, np.float32(0))[None],
            LABEL: np.where(mask, label, 0)[None],
            COUNT: np.where(mask, found.counts, 0).astype(np.float32)[None],
        }
        distance = np.where(mask, found.distances, np.float32(0))[None]
        return Neighbours(columns, distance, mask[None], np.where(mask, found.ids, -1)[None])

    def write(
        self,
        rows: Rows,
        chosen: Bool[np.ndarray, "episode query"],
        details: Sequence[Details] | None = None,
        surprise_nats: Float[np.ndarray, "episode query"] | None = None,
    ) -> Int[np.ndarray, "episode query"]:
        """Stage rows, making room for each first. Without `details` the number of a class is its name."""
        ids = np.full(chosen.shape, -1)
        for query in chosen[0].nonzero()[0].tolist():
            detail = Details(int(rows[LABEL][0, query])) if details is None else details[query]
            surprise = 0.0 if surprise_nats is None else float(surprise_nats[0, query])
            key = np.asarray(rows[KEY][0, query], np.float32)
            count = int(rows[COUNT][0, query]) if COUNT in rows else 1
            self._number(detail.label)
            self._make_room(key, detail.label)
            [id] = self.store.reserve()
            payload = detail.payload() if detail.payload is not None else None
            row = NewRow(detail.label, key, surprise, None, detail.source, payload, count=count, id=id)
            self._staged[id] = StagedMerge(row)
            self._add(detail.label, key, count, 1)
            ids[0, query] = id
        return ids

    def merge(self, rows: Rows, at: Int[np.ndarray, "episode query"], details: Sequence[Details] | None = None) -> None:
        """Merge examples into rows that were recalled last."""
        for query in (at[0] >= 0).nonzero()[0].tolist():
            id = int(at[0, query])
            source = None if details is None else details[query].source
            example = SourceShare(source, rows[KEY][0, query].astype(np.float64), 1)
            if id in self._staged:
                staged = self._staged[id]
                before = staged.merge.result()
                self._staged[id] = replace(staged, added=(*staged.added, example))
                after = self._staged[id].merge.result()
            else:
                if id not in self._merges and id not in self._near:
                    raise ValueError(f"there is no row {id} to change")
                earlier = self._merges.get(id) or PendingMerge(self._near[id])
                self._merges[id] = replace(earlier, added=(*earlier.added, example))
                before, after = earlier.result(), self._merges[id].result()
            self._add(before.label, before.key, -before.count, 0)
            self._add(after.label, after.key, after.count, 0)

    def update(self, rows: Rows, at: Int[np.ndarray, "episode query"]) -> None:
        """Overwrite key, label or count at once, without staging."""
        changes = []
        for query in (at[0] >= 0).nonzero()[0].tolist():
            cells: dict[str, Any] = {"id": int(at[0, query])}
            if KEY in rows:
                cells["key"] = rows[KEY][0, query]
            if COUNT in rows:
                cells["count"] = int(rows[COUNT][0, query])
            if LABEL in rows:
                cells["label"] = self.names.names[int(rows[LABEL][0, query])]
            changes.append(RowUpdate(**cells))
        try:
            self.store.replace((), (), update=changes)
        except RowChanged as error:
            raise ValueError(f"there is no such row to change: {error}") from None
        self.follow()

    def remove(self, at: Int[np.ndarray, "episode row"]) -> None:
        self.forget(at[at >= 0].tolist())

    newest = -1

    def outdate(self, label: int, newest: int) -> None:
        """Old rows of a memory that several processes share stay."""

    # --- names ------------------------------------------------------------------------------------

    @property
    def classes(self) -> list[Label]:
        """The names of the classes, by number."""
        return self.names.names

    def rows_of_classes(self) -> dict[Label, int]:
        return dict(zip(self.names.names, self._rows, strict=True))

    def ids_of(self, label: Label) -> list[int]:
        return self.store.ids_of_label(label)

    # --- staying in step with the store -----------------------------------------------------------

    def reload(self) -> None:
        """Drop what was staged, and read all classes."""
        self._clear_staged()
        self._read_classes(None)

    def follow(self) -> None:
        """Read the classes that have changed since they were last read."""
        self._read_classes(None if self.generation == LOST else self.generation)

    def is_stale(self) -> bool:
        return self.store.generation() != self.generation

    def was_stale(self) -> bool:
        """True if the last recall found that others had written."""
        return self._recalled_at is not None and self._recalled_at != self.generation

    @property
    def staged(self) -> set[int]:
        """The ids that `commit` will write."""
        return set(self._staged)

    def commit(self, settings: Mapping[str, Any] | None = None, receipts: Mapping[str, Any] | None = None) -> None:
        """Write what was staged, settings and receipts with it: all of it or nothing."""
        settings = dict(settings or {})
        learnt = self.state is not None and self.state is not self._kept_state
        if not (self._staged or self.evicted or self._merges or settings or receipts or learnt):
            return
        settings[STATE_SETTING] = with_history(None if self.state is None else self.state.to_dict(), self.history)
        rows, dropped = [staged.new_row() for staged in self._staged.values()], self.evicted
        merges, seen = list(self._merges.values()), self.generation
        # Whether or not it succeeds: what was not acknowledged has never been.
        self._clear_staged()
        self.generation = LOST
        tried = 0
        while True:
            try:
                update = [merge.update() for merge in merges]
                self.store.replace(dropped, rows, update=update, settings=settings, receipts=receipts)
                break
            except RowChanged:
                tried += 1
                if tried == TRIES:
                    raise
                now = {row.id: row for row in self.store.some_rows([*dropped, *(merge.base.id for merge in merges)])}
                dropped = [id for id in dropped if id in now]
                rows += [merge.as_new_row() for merge in merges if merge.base.id not in now]
                merges = [replace(merge, base=now[merge.base.id]) for merge in merges if merge.base.id in now]
        self._kept_state = self.state
        # One commit is one generation: if nobody else has written, the classes are as they are known here. If somebody has, the
        # next recall tells. A change that had to be computed again is not in the totals known here.
        self.generation = seen + 1 if not tried else LOST

    def save_state(self) -> None:
        """Every commit has written what the reading has learnt."""

    # --- forgetting -------------------------------------------------------------------------------

    def forget(self, ids: Iterable[int]) -> list[int]:
        """Delete rows; ids that do not exist are ignored. Returns those that did."""
        gone = self.store.delete(ids)
        self.follow()
        return gone

    def forget_source(self, source: str) -> Forgotten:
        """Leave no trace of a source, as `StoredMemory.forget_source` does."""
        forgotten = self.store.forget_source(source, settings={STATE_SETTING: None})
        self.follow()
        return forgotten

    # --- inside -----------------------------------------------------------------------------------

    def _read_classes(self, since: int | None) -> None:
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
        kept, self.history = without_history(self.store.setting(STATE_SETTING))
        self.state = self._kept_state = self._new_state(kept)

    def _number(self, label: Label) -> int:
        number = self.names.add(label)
        self._rows += [0] * (len(self.names) - len(self._rows))
        return number

    def _add(self, label: Label, key: np.ndarray, count: int, rows: int) -> None:
        """Examples of a class come or go, and rows with them."""
        number = self._number(label)
        self._rows[number] += rows
        key = measured(np.asarray(key, np.float32), self.metric)
        self._totals.add(np.zeros(1, np.int64), np.array([number]), key[None], np.array([count], np.float32))
        self.version += 1

    def _recall(self, asked: Float[np.ndarray, "query embed"], k: int) -> Recalled:
        found = recalled = self.store.recall(asked, k + len(self.evicted) + len(self._merges))
        if self._staged or self.evicted or self._merges:
            other = {*self.evicted, *self._merges}
            staged = [merge.result() for merge in (*self._merges.values(), *(s.merge for s in self._staged.values()))]
            rows = [[*(row for row in found.rows(q) if row.id not in other), *staged] for q in range(len(asked))]
            found = Recalled.of(rows, asked, k, self.metric)
        self._recalled_at = recalled.generation
        self._near = {row.id: row for query in range(len(asked)) for row in found.rows(query)}
        self.sources = {row.id: row.source for row in self._near.values() if row.source is not None}
        return found

    def _make_room(self, key: np.ndarray, label: Label) -> None:
        rows, per_class = self.budget.rows, self.budget.rows_per_class
        of_class = per_class is not None and self._rows[self._number(label)] >= per_class
        if not of_class and (rows is None or len(self) < rows):
            return
        wanted = 1
        while True:
            found = self._recall(key[None], wanted)
            for row in found.rows(0):
                if self.names.number(row.label) is not None and (not of_class or row.label == label):
                    return self._evict(row)
            if not found.mask.all():
                return
            wanted *= 8

    def _evict(self, row: Row) -> None:
        self._add(row.label, row.key, -row.count, -1)
        self._merges.pop(row.id, None)
        if self._staged.pop(row.id, None) is None:
            self.evicted.append(row.id)

    def _clear_staged(self) -> None:
        self._sample = None
        self._staged: dict[int, StagedMerge] = {}
        self._merges: dict[int, PendingMerge] = {}
        self.evicted: list[int] = []
        """Stored rows that `commit` will remove, to make room."""


@dataclass(frozen=True)
class StagedMerge:
    """A row that `commit` will write, and what was merged into it since."""

    row: NewRow
    added: tuple[SourceShare, ...] = ()

    @property
    def merge(self) -> PendingMerge:
        return PendingMerge(_recalled(self.row), self.added)

    def new_row(self) -> NewRow:
        if not self.added:
            return self.row
        result, first = self.merge.result(), self.row
        own = SourceShare(first.source, np.asarray(first.key, np.float64) * first.count, first.count)
        shares = kept_shares([own, *self.added], first.source)
        return replace(first, key=result.key, count=result.count, shares=tuple(shares))
