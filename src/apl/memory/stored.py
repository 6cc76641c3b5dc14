"""A memory in two places kept in step: the store, which is the truth, and a copy in RAM, which is searched.

If a commit fails, the copy is filled anew from the store.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int

from apl.memory.eviction import least_important
from apl.memory.history import History
from apl.memory.protocol import COUNT, LABEL, ClassTotals, Column, Neighbours
from apl.memory.ram import RamMemory
from apl.memory.staging import HISTORY_SETTING, KEY, LOST, STATE_SETTING, ClassNames, Staged, StagedMemory
from apl.metric import measured
from apl.store import Label, NewRow, RowUpdate, SourceShare

ID = "id"
MOST_BEHIND = 200
"""Commits after which a memory that does not last writes to its store: what is staged takes more RAM than what is stored."""


class StoredMemory(StagedMemory):
    """The rows of one store, searched in RAM. One writer, or any number of readers."""

    local = True
    nearest: Callable[[str, np.ndarray, int], Neighbours]
    column: Callable[[str], np.ndarray]
    class_totals: Callable[..., ClassTotals]
    classes_stored: Callable[[int], np.ndarray]
    rescale: Callable[[np.ndarray | None], None]
    """The copy in RAM answers these itself."""
    newest = -1
    """The id of the newest row that was ever here."""
    _loads = 0
    _behind: Staged | None = None
    """What a memory that does not last has committed, and not yet written to its store."""
    _commits_behind = 0
    _turn = 0
    """Grows with every row that goes."""

    # --- what a learner needs ---------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self.ram.version + (self._loads << 40)

    @property
    def scale(self) -> Float[np.ndarray, "episode 1 embed"] | None:
        return self.ram.scale

    def __len__(self) -> int:
        return len(self.ram)

    def outdate(self, label: int, newest: int) -> None:
        """Stage the removal of rows of a class up to an id. One row of the class stays, so that the class stays known."""
        ids: list[int] = self.ram.column(ID)[0][self.ram.column(LABEL)[0] == label].tolist()
        self._evict([id for id in ids[:-1] if id <= newest])

    def rows_of_classes(self) -> dict[Label, int]:
        per_class = np.bincount(self.ram.column(LABEL)[0], minlength=len(self.names)).tolist()
        return dict(zip(self.names.names, per_class, strict=True))

    def ids_of(self, label: Label) -> list[int]:
        number = self.names.number(label)
        found: list[int] = self.ram.column(ID)[0][self.ram.column(LABEL)[0] == number].tolist()
        return [] if number is None else found

    # --- staying in step with the store -----------------------------------------------------------

    def reload(self) -> None:
        # If the store does not answer, the copy may hold what was never acknowledged: it is not used until it does.
        self.generation = LOST
        snapshot = self.store.load()
        self._loads += 1
        columns = {KEY: Column((self.store.width,)), LABEL: Column((), np.int64), ID: Column((), np.int64)}
        self.ram = ram = RamMemory(columns, (KEY,), metric=self.metric, handle=ID)
        self.nearest, self.column, self.rescale = ram.nearest, ram.column, ram.rescale
        self.class_totals, self.classes_stored = ram.class_totals, ram.classes_stored
        self.names = ClassNames(snapshot.labels, self.numbered)
        self.staged = Staged()
        if len(snapshot):
            self._append(snapshot.ids, snapshot.keys, snapshot.labels, snapshot.counts)
        self._read_state()
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
        self._read_state()
        return None

    def _read_state(self) -> None:
        settings = self.store.settings()
        self._restore_state(settings.get(STATE_SETTING), History.read(settings.get(HISTORY_SETTING)))

    def is_stale(self) -> bool:
        """A reader's copy goes stale when a writer commits; a writer's cannot, unless it was lost."""
        return self.generation == LOST or (self.store.read_only and self.store.generation() != self.generation)

    def was_stale(self) -> bool:
        """True if the last recall found that others had written."""
        return False

    def _write(self, staged: Staged, settings: dict[str, str], receipts: dict[str, str]) -> None:
        if not (self.lasts or settings or receipts):
            with self.store.turn:
                self._behind = self._behind or Staged()
                self._behind.join(staged)
                self.store.write_behind = self._write_behind
                self._commits_behind += 1
                if self._commits_behind >= MOST_BEHIND:
                    self._write_behind()
            return
        try:
            self.store.commit(staged.write(settings, receipts))
        except BaseException:
            self.reload()
            raise
        self.generation += 1

    def _write_behind(self) -> None:
        behind, self._behind, self._commits_behind = self._behind, None, 0
        if behind is not None:
            self.store.commit(behind.write())

    def forget(self, ids: Iterable[int]) -> list[int]:
        gone = self.store.delete(ids)
        self._drop(gone)
        self._renumber()
        return gone

    # --- inside -----------------------------------------------------------------------------------

    def _make_room(self, max_rows: int, key: Float[np.ndarray, " embed"], label: Label) -> None:
        number = self.names.add(label)
        while len(self) >= max_rows:
            labels, examples = self.ram.column(LABEL)[0], self.ram.column(COUNT)[0]
            own: np.ndarray = labels == number
            # Where every class is down to one row, a known class makes room for its new row itself.
            alone = own.any() and len(self) == len(np.unique(labels))
            self._turn += 1
            among = own if alone else np.ones(len(self), bool)
            place = least_important(self._compared_keys(), labels, examples, among, self._turn)
            self._evict([int(self.ram.column(ID)[0, place])])
            if (numbers := self._renumber(keep=number)) is not None:
                number = int(numbers[number])

    def _compared_keys(self) -> Float[np.ndarray, "row embed"]:
        keys = self.ram.column(KEY)[0]
        return keys if self.scale is None else measured(keys, self.metric, self.scale[0])

    def _evict(self, ids: list[int]) -> None:
        for id in ids:
            self.staged.evict(id)
        self._drop(ids)

    def _added(self, row: NewRow) -> None:
        cells = {KEY: row.key[None, None], LABEL: np.array([[self.names.add(row.label)]]), ID: np.array([[row.id]])}
        self.ram.write({**cells, COUNT: np.array([[row.count]], np.float32)}, np.ones((1, 1), bool))
        self.newest = row.id or 0

    def _merged(self, id: int, example: Float[np.ndarray, " embed"], source: str | None) -> RowUpdate:
        place = position(self.ram.column(ID)[0], id)
        if place is None:
            raise ValueError(f"there is no row {id} to change")
        self.ram.merge_one(0, place, {KEY: example})
        key, count = self.ram.column(KEY)[0, place].copy(), int(self.ram.column(COUNT)[0, place])
        shares = () if source is None else (SourceShare(source, example.astype(np.float64)),)
        return RowUpdate(id, key=key, count=count, shares=shares)

    def _append(self, ids: np.ndarray, keys: np.ndarray, labels: Sequence[Label], counts: np.ndarray) -> None:
        self.newest = int(ids[-1])
        numbers = np.array([self.names.add(label) for label in labels], np.int64)
        cells = {KEY: keys, LABEL: numbers, ID: ids, COUNT: counts.astype(np.float32)}
        self.ram.write({name: values[None] for name, values in cells.items()}, np.ones((1, len(ids)), bool))

    def _drop(self, ids: Iterable[int]) -> None:
        """Take rows out of the copy in RAM."""
        there = self.ram.column(ID)[0]
        places = [place for id in ids if (place := position(there, id)) is not None]
        if places:
            self.ram.remove(np.array([places]))

    def _renumber(self, keep: int | None = None) -> Int[np.ndarray, " class"] | None:
        """Forget classes without rows. Returns the new numbers, if any changed."""
        present = np.bincount(self.ram.column(LABEL)[0], minlength=len(self.names)) > 0
        if keep is not None:
            present[keep] = True
        numbers = self.names.keep(present)
        if numbers is not None:
            self.ram.relabel(numbers)
        return numbers


def position(ids: Int[np.ndarray, " row"], id: int) -> int | None:
    """Where an id is in a sorted array."""
    place = bisect_left(ids, id)
    return place if place < len(ids) and int(ids[place]) == id else None
