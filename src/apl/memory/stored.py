"""A memory in two places kept in step: the store, which is the truth, and a copy in RAM, which is searched.

Rows are *staged* in the copy first, so that the next example of a batch already sees them, and *committed* to the store in one
transaction. If that fails, the copy is filled anew from the store. A handle is the id of a row in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.config import Metric
from apl.memory.eviction import Eviction
from apl.memory.history import History, with_history, without_history
from apl.memory.names import Budget, ClassNames, position
from apl.memory.protocol import COUNT, LABEL, ClassTotals, Column, Neighbours, ReadingState, Rows
from apl.memory.ram import RamMemory
from apl.store import Forgotten, Label, NewRow, RowUpdate, SourceShare, Store
from apl.store.sources import by_source, kept_shares

STATE_SETTING = "readers"
"""Under this name a store keeps what a reading has learnt about the memory, and the memory's history."""
KEY, ID = "embedding", "id"
LOST = -1
"""The generation of a copy that could not be filled."""
MakeState = Callable[[Any], ReadingState | None]
"""Makes a reading's state of what was kept, or of None."""


@dataclass(frozen=True)
class Details:
    """What a memory that lasts keeps with an example."""

    label: Label
    source: str | None = None
    payload: Callable[[], bytes | None] | None = None
    """Made only if the example is written."""


@dataclass
class StagedRow:
    """A row that `commit` will write."""

    row: NewRow
    shares: list[SourceShare] = field(default_factory=list)
    """What was merged into it since, example by example."""


class StoredMemory:
    """The rows of one store, searched in RAM. One key column; one writer, or any number of readers."""

    episodes = 1
    keys: tuple[str, ...] = (KEY,)
    local = True

    def __init__(
        self,
        store: Store,
        metric: Metric,
        new_state: MakeState = lambda kept: None,
        budget: Budget | None = None,
        numbered: bool = False,
        keep_state: bool = True,
    ) -> None:
        self.store = store
        self.keep_state = keep_state
        """Write the reading's state with every commit. Otherwise `save_state` does, when the store is to be copied."""
        self.metric: Metric = metric
        self.budget = budget or Budget()
        self.numbered = numbered
        self.state: ReadingState | None = None
        self.history = History()
        """How the latest examples were predicted."""
        self._kept: tuple[ReadingState | None, History] = (None, self.history)
        self._new_state = new_state
        self._loads = 0
        self.reload()

    # --- what a learner needs ---------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self.ram.version + (self._loads << 40)

    @property
    def scale(self) -> Float[np.ndarray, "episode 1 embed"] | None:
        return self.ram.scale

    @property
    def newest(self) -> int:
        """The id of the newest row; -1 if there is none."""
        return int(self.ram.column(ID)[0, -1]) if len(self) else -1

    @property
    def counts(self) -> Int[np.ndarray, " episode"]:
        return self.ram.counts

    def __len__(self) -> int:
        return len(self.ram)

    def column(self, name: str) -> np.ndarray:
        return self.ram.column(name)

    def classes_stored(self, way: int) -> Bool[np.ndarray, "episode way"]:
        return self.ram.classes_stored(way)

    def class_totals(self, way: int | None = None) -> ClassTotals:
        return self.ram.class_totals(way)

    def rescale(self, scale: Float[np.ndarray, "episode 1 embed"] | None) -> None:
        self.ram.rescale(scale)
        self.eviction.forget()

    def nearest(self, key: str, query: Float[np.ndarray, "episode query embed"], k: int) -> Neighbours:
        found = self.ram.nearest(key, query, k)
        ids = np.where(found.mask, found.columns[ID], -1)
        return Neighbours(found.columns, found.distance, found.mask, ids)

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
            ids[0, query] = self._stage(key, int(rows.get(COUNT, np.ones(chosen.shape))[0, query]), detail, surprise)
        return ids

    def merge(self, rows: Rows, at: Int[np.ndarray, "episode query"], details: Sequence[Details] | None = None) -> None:
        for query in (at[0] >= 0).nonzero()[0].tolist():
            id, key = int(at[0, query]), rows[KEY][0, query]
            self.ram.merge_one(0, self._at(id), {KEY: key})
            source = None if details is None else details[query].source
            if id in self._staged:
                self._staged[id].shares.append(SourceShare(source, key.astype(np.float64), 1))
            else:
                named = self._changed.setdefault(id, [])
                if source is not None:
                    named.append(SourceShare(source, key.astype(np.float64), 1))

    def update(self, rows: Rows, at: Int[np.ndarray, "episode query"]) -> None:
        """Overwrite key, label or count at once, without staging."""
        changes = []
        for query in (at[0] >= 0).nonzero()[0].tolist():
            self._at(int(at[0, query]))
            cells: dict[str, Any] = {"id": int(at[0, query])}
            if KEY in rows:
                cells["key"] = rows[KEY][0, query]
            if COUNT in rows:
                cells["count"] = int(rows[COUNT][0, query])
            if LABEL in rows:
                cells["label"] = self.names.names[int(rows[LABEL][0, query])]
            changes.append(RowUpdate(**cells))
        self.store.replace((), (), update=changes)
        self.follow()

    def remove(self, at: Int[np.ndarray, "episode row"]) -> None:
        self.forget(at[at >= 0].tolist())

    def outdate(self, label: int, newest: int) -> None:
        """Stage the removal of rows of a class up to an id. One row of the class stays, so that the class stays known."""
        ids: list[int] = self.ram.column(ID)[0][self.ram.column(LABEL)[0] == label].tolist()
        old = [id for id in ids[:-1] if id <= newest]
        for id in old:
            self._unstage(id)
        self._drop(old)

    # --- names ------------------------------------------------------------------------------------

    @property
    def classes(self) -> list[Label]:
        """The names of the classes, by number."""
        return self.names.names

    def rows_of_classes(self) -> dict[Label, int]:
        per_class = np.bincount(self.ram.column(LABEL)[0], minlength=len(self.names)).tolist()
        return dict(zip(self.names.names, per_class, strict=True))

    def ids_of(self, label: Label) -> list[int]:
        number = self.names.number(label)
        found: list[int] = self.ram.column(ID)[0][self.ram.column(LABEL)[0] == number].tolist()
        return [] if number is None else found

    # --- staying in step with the store -----------------------------------------------------------

    def reload(self) -> None:
        """Fill the copy in RAM from the store. What was staged is dropped."""
        # If the store does not answer, the copy may hold what was never acknowledged: it is not used until it does.
        self.generation = LOST
        snapshot = self.store.load()
        self._loads += 1
        columns = {KEY: Column((self.store.width,)), LABEL: Column((), np.int64), ID: Column((), np.int64)}
        self.ram = RamMemory(columns, (KEY,), metric=self.metric)
        self.names = ClassNames(snapshot.labels, self.numbered)
        self.eviction = Eviction(self.ram)
        self.sources = {id: s for id, s in zip(snapshot.ids.tolist(), snapshot.sources, strict=True) if s is not None}
        self._clear_staged()
        if len(snapshot):
            self._append(snapshot.ids, snapshot.keys, snapshot.labels, snapshot.counts)
        self._restore_state()
        self.generation = snapshot.generation

    def follow(self) -> None:
        """Bring the copy up to date with what others wrote since: only that is read."""
        changes = None if self.generation == LOST else self.store.changes(self.generation)
        if changes is None:
            return self.reload()
        rows = changes.rows
        ids = self.ram.column(ID)[0]
        at = np.array([-1 if (p := position(ids, id)) is None else p for id in rows.ids.tolist()], np.int64)
        new = at < 0
        if len(ids) and new.any() and int(rows.ids[new].min()) < int(ids[-1]):
            # One of several writers may have reserved its ids first and written last: the order is that of the ids.
            return self.reload()
        self.generation = changes.generation
        for id, source in zip(rows.ids.tolist(), rows.sources, strict=True):
            self._note_source(id, source)
        known = ~new
        if known.any():
            labels = np.array([self.names.add(rows.labels[n]) for n in known.nonzero()[0].tolist()], np.int64)
            cells = {
                KEY: rows.keys[known][None],
                LABEL: labels[None],
                COUNT: rows.counts[known][None].astype(np.float32),
            }
            self.ram.update(cells, at[known][None])
        if new.any():
            labels_of_new = [rows.labels[n] for n in new.nonzero()[0].tolist()]
            self._append(rows.ids[new], rows.keys[new], labels_of_new, rows.counts[new])
        self._drop(changes.removed)
        self._renumber()
        self.eviction.forget()
        self._restore_state()
        return None

    def is_stale(self) -> bool:
        """A reader's copy goes stale when a writer commits; a writer's cannot, unless it was lost."""
        return self.generation == LOST or (self.store.read_only and self.store.generation() != self.generation)

    def was_stale(self) -> bool:
        """True if the last recall found that others had written."""
        return False

    @property
    def staged(self) -> set[int]:
        """The ids that `commit` will write."""
        return set(self._staged)

    def commit(self, settings: Mapping[str, Any] | None = None, receipts: Mapping[str, Any] | None = None) -> None:
        """Write what was staged, settings and receipts with it: all of it or nothing."""
        settings = dict(settings or {})
        if not (self._staged or self.evicted or self._changed or settings or receipts or self._state_changed):
            return
        if self.keep_state:
            settings[STATE_SETTING] = self._state_to_keep()
        try:
            add = [self._new_row(id, staged) for id, staged in self._staged.items()]
            update = [self._row_update(id, shares) for id, shares in self._changed.items()]
            self.store.replace(self.evicted, add, update=update, settings=settings, receipts=receipts)
        except BaseException:
            self.reload()
            raise
        self._clear_staged()
        if self.keep_state:
            self._kept = (self.state, self.history)

    def save_state(self) -> None:
        """Write what the reading has learnt and the history, if that has not been done."""
        changed = self.state is not self._kept[0] or self.history is not self._kept[1]
        if changed and not self.store.read_only:
            self.store.update_settings({STATE_SETTING: self._state_to_keep()})
            self._kept = (self.state, self.history)

    @property
    def _state_changed(self) -> bool:
        """True if the reading has learnt something that has to be written. A history alone waits for the next write."""
        return self.keep_state and self.state is not None and self.state is not self._kept[0]

    def _state_to_keep(self) -> dict[str, Any]:
        return with_history(None if self.state is None else self.state.to_dict(), self.history)

    # --- forgetting -------------------------------------------------------------------------------

    def forget(self, ids: Iterable[int]) -> list[int]:
        """Delete rows; ids that do not exist are ignored. Returns those that did."""
        gone = self.store.delete(ids)
        self._drop(gone)
        self._renumber()
        return gone

    def forget_source(self, source: str) -> Forgotten:
        """Leave no trace of a source: its rows go, and rows that others share with it become the mean of theirs. What the
        reading has learnt with its help starts over."""
        forgotten = self.store.forget_source(source, settings={STATE_SETTING: None})
        if forgotten.gone or forgotten.rebuilt:
            self.reload()
        return forgotten

    # --- inside -----------------------------------------------------------------------------------

    def _stage(self, key: Float[np.ndarray, " embed"], count: int, detail: Details, surprise_nats: float) -> int:
        number = self.names.add(detail.label)
        self._make_room(number)
        number = self.names.add(detail.label)
        [id] = self.store.reserve()
        cells = {KEY: key[None, None], LABEL: np.array([[number]]), ID: np.array([[id]])}
        self.ram.write({**cells, COUNT: np.array([[count]], np.float32)}, np.ones((1, 1), bool))
        self.eviction.added()
        payload = detail.payload() if detail.payload is not None else None
        row = NewRow(detail.label, key, surprise_nats, None, detail.source, payload, count=count, id=id)
        self._staged[id] = StagedRow(row)
        self._note_source(id, detail.source)
        return id

    def _make_room(self, label: int) -> None:
        """Evict until one more row of this class fits the budget."""
        while (among := self._over_budget(label)) is not None:
            id = int(self.ram.column(ID)[0, self.eviction.victim(among)])
            self._unstage(id)
            self._drop([id])
            if (numbers := self._renumber(keep=label)) is not None:
                label = int(numbers[label])

    def _unstage(self, id: int) -> None:
        """`commit` will remove this row, or not write it."""
        self._changed.pop(id, None)
        if self._staged.pop(id, None) is None:
            self.evicted.append(id)

    def _over_budget(self, label: int) -> Bool[np.ndarray, " row"] | None:
        """The rows of which one has to go before a row of this class can come."""
        if self.budget.rows is None and self.budget.rows_per_class is None:
            return None
        labels = self.ram.column(LABEL)[0]
        own: np.ndarray = labels == label
        if self.budget.rows_per_class is not None and int(own.sum()) >= self.budget.rows_per_class:
            return own
        if self.budget.rows is not None and len(self) >= self.budget.rows:
            # Where every class is down to one row, a known class makes room for its new row itself.
            alone = own.any() and len(self) == len(np.unique(labels))
            return own if alone else np.ones(len(self), bool)
        return None

    def _new_row(self, id: int, staged: StagedRow) -> NewRow:
        if not staged.shares:
            return staged.row
        key, count = self._cells(id)
        first = SourceShare(staged.row.source, staged.row.key.astype(np.float64) * staged.row.count, staged.row.count)
        shares = kept_shares([first, *staged.shares], staged.row.source)
        return replace(staged.row, key=key, count=count, shares=tuple(shares))

    def _row_update(self, id: int, named: list[SourceShare]) -> RowUpdate:
        key, count = self._cells(id)
        return RowUpdate(id, key=key, count=count, shares=tuple(by_source(named).values()))

    def _cells(self, id: int) -> tuple[np.ndarray, int]:
        """Key and count of a row."""
        place = self._at(id)
        return self.ram.column(KEY)[0, place].copy(), int(self.ram.column(COUNT)[0, place])

    def _at(self, id: int) -> int:
        place = position(self.ram.column(ID)[0], id)
        if place is None:
            raise ValueError(f"there is no row {id} to change")
        return place

    def _append(self, ids: np.ndarray, keys: np.ndarray, labels: Sequence[Label], counts: np.ndarray) -> None:
        numbers = np.array([self.names.add(label) for label in labels], np.int64)
        cells = {KEY: keys, LABEL: numbers, ID: ids, COUNT: counts.astype(np.float32)}
        self.ram.write({name: values[None] for name, values in cells.items()}, np.ones((1, len(ids)), bool))

    def _drop(self, ids: Iterable[int]) -> None:
        """Take rows out of the copy in RAM."""
        there = self.ram.column(ID)[0]
        places = [place for id in ids if (place := position(there, id)) is not None]
        for id in ids:
            self.sources.pop(id, None)
        if places:
            self.eviction.before_removing(places)
            self.ram.remove(np.array([places]))
            self.eviction.removed()

    def _renumber(self, keep: int | None = None) -> Int[np.ndarray, " class"] | None:
        """Forget classes without rows. Returns the new numbers, if any changed."""
        present = np.bincount(self.ram.column(LABEL)[0], minlength=len(self.names)) > 0
        if keep is not None:
            present[keep] = True
        numbers = self.names.keep(present)
        if numbers is not None:
            self.ram.relabel(numbers)
        return numbers

    def _note_source(self, id: int, source: str | None) -> None:
        if source is None:
            self.sources.pop(id, None)
        else:
            self.sources[id] = source

    def _clear_staged(self) -> None:
        self._staged: dict[int, StagedRow] = {}
        self._changed: dict[int, list[SourceShare]] = {}
        self.evicted: list[int] = []
        """Stored rows that `commit` will remove, to make room."""

    def _restore_state(self) -> None:
        kept, self.history = without_history(self.store.setting(STATE_SETTING))
        self.state = self._new_state(kept)
        self._kept = (self.state, self.history)
