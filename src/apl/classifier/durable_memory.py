"""A memory in two places kept in step: the store, which is the truth, and the rows in RAM, which are searched.

Rows are *staged* in the copy in RAM first, so that the next example of a batch already sees them, and *committed* to the
store in one transaction. If that fails, the copy is filled anew from the store: what was not acknowledged has
never been. Row ids are the store's; positions in the copy in RAM are nobody else's business.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.classifier.answers import Forgotten
from apl.classifier.eviction import MOST_COMPARED, Redundancy, least_important_of_some
from apl.consolidation import ConsolidatingMemory
from apl.learner import Learner
from apl.memory import COUNT
from apl.store import Label, NewRow, RowUpdate, SourceShare, Store

READERS_SETTING = "readers"
"""Under this name a memory that consolidates keeps the weights of its readers, its rule for new classes and its units."""

TRIES = 10
"""How often a change is worked out again because another process was faster."""

LOST = -1
"""The generation of a copy that could not be filled."""


class DurableMemory:
    """The rows of one memory. `learner` takes embeddings (see `Learner.on_embeddings`)."""

    def __init__(
        self, learner: Learner, store: Store, max_rows: int | None = None, max_rows_per_class: int | None = None
    ) -> None:
        self.learner = learner
        self.store = store
        self.max_rows = max_rows
        self._evictions = 0
        self.max_rows_per_class = max_rows_per_class
        self.reload()

    def __len__(self) -> int:
        return len(self.ids)

    def reload(self) -> None:
        """Fill the copy in RAM from the store."""
        # If the store does not answer, the copy may hold what was never acknowledged: it is not used until it has.
        self.generation = LOST
        snapshot = self.store.load()
        self.generation = snapshot.generation
        self.ram = self.learner.new_memory()
        self.ids: list[int] = snapshot.ids.tolist()
        self.sources: list[str | None] = list(snapshot.sources)
        self.classes: list[Label] = list(dict.fromkeys(snapshot.labels))
        self._number = {label: number for number, label in enumerate(self.classes)}
        self._staged: dict[int, NewRow] = {}
        self._dropped: list[int] = []
        self._merged: dict[int, list[SourceShare]] = {}
        self._taught = False
        self._redundancy: Redundancy | None = None
        self._compared_in: np.ndarray | None = None
        if self.ids:
            labels = np.array([self._number[label] for label in snapshot.labels])
            everything = np.ones((1, len(labels)), bool)
            self.learner.write(self.ram, snapshot.keys[None], labels[None], everything)
        if isinstance(self.ram, ConsolidatingMemory):
            self.ram.column(COUNT)[0] = snapshot.counts
            self.ram.recount()
        self._recall_readers()

    def follow(self) -> None:
        """Bring a reader's copy up to date with what changed since: only that travels, and only that is written."""
        changes = None if self.generation == LOST else self.store.changes(self.generation)
        if changes is None:
            self.reload()
            return
        rows, self.generation = changes.rows, changes.generation
        self._remove({id for id in changes.removed if self._position(id) is not None})
        for label in rows.labels:
            if label not in self._number:
                self._number[label] = len(self.classes)
                self.classes.append(label)
        labels = np.array([self._number[label] for label in rows.labels], np.int64)
        at = np.array([-1 if (found := self._position(id)) is None else found for id in rows.ids.tolist()], np.int64)
        known, new = at >= 0, at < 0
        if self.ids and new.any() and int(rows.ids[new].min()) < self.ids[-1]:
            # Of several writers one may have reserved its ids first and written last: the order is that of the ids.
            self.reload()
            return
        if known.any():
            cells = {**self.learner.key_columns(rows.keys[known][None]), "label": labels[known][None]}
            if isinstance(self.ram, ConsolidatingMemory):
                cells[COUNT] = rows.counts[known][None].astype(np.float32)
            self.ram.update(cells, at[known][None])
            for place, source in zip(at[known].tolist(), np.array(rows.sources, object)[known], strict=True):
                self.sources[place] = source
        if new.any():
            # Ids only grow, so what is new is also the youngest here.
            self.learner.write(self.ram, rows.keys[new][None], labels[new][None], np.ones((1, int(new.sum())), bool))
            if isinstance(self.ram, ConsolidatingMemory):
                place = np.arange(len(self.ids), len(self.ids) + int(new.sum()))[None]
                self.ram.update({COUNT: rows.counts[new][None].astype(np.float32)}, place)
            self.ids += rows.ids[new].tolist()
            self.sources += np.array(rows.sources, object)[new].tolist()
        self._renumber(None)
        self._redundancy = None
        self._recall_readers()

    def _recall_readers(self) -> None:
        """What lessons have taught, as the store keeps it."""
        if isinstance(self.ram, ConsolidatingMemory):
            self.ram.lessons_from_dict(self.store.setting(READERS_SETTING))

    def _position(self, id: int) -> int | None:
        place = bisect_left(self.ids, id)
        return place if place < len(self.ids) and self.ids[place] == id else None

    def is_stale(self) -> bool:
        """A reader's copy goes stale when somebody else writes; a writer's cannot, unless it was lost."""
        return self.generation == LOST or (self.store.read_only and self.store.generation() != self.generation)

    def number(self, label: Label) -> int | None:
        """The class's number for the learner; None if no row has this label."""
        return self._number.get(label)

    def keys(self) -> Float[np.ndarray, "row embed"]:
        columns = [self.ram.column(name)[0] for name in self.learner.key_widths]
        return columns[0] if len(columns) == 1 else np.concatenate(columns, -1)

    def compared(self) -> Float[np.ndarray, "row embed"]:
        """The keys as one is compared with another."""
        return self.keys() if self.ram.scale is None else self.ram.measured(self.keys()[None])[0]

    def labels(self) -> Int[np.ndarray, " row"]:
        return self.ram.column("label")[0]

    @property
    def examples(self) -> Int[np.ndarray, " row"]:
        """How many examples stand behind each row."""
        if isinstance(self.ram, ConsolidatingMemory):
            return self.ram.column(COUNT)[0].astype(np.int64)
        return np.ones(len(self), np.int64)

    def counts(self) -> dict[Label, int]:
        per_class = np.bincount(self.labels(), minlength=len(self.classes)).tolist()
        return dict(zip(self.classes, per_class, strict=True))

    # --- writing ------------------------------------------------------------------------------------------------

    def stage(self, embedding: Float[np.ndarray, " embed"], row: NewRow) -> tuple[int, list[int]]:
        """Put a row into the copy in RAM, making room for it first. Returns its id and the ids that went."""
        if row.label not in self._number:
            self._number[row.label] = len(self.classes)
            self.classes.append(row.label)
        evicted = self._make_room(row.label)
        chosen = np.ones((1, 1), bool)
        self.learner.write(self.ram, embedding[None, None], np.array([[self._number[row.label]]]), chosen)
        [id] = self.store.reserve()
        self.ids.append(id)
        self.sources.append(row.source)
        self._staged[id] = replace(row, id=id)
        if row.count > 1 and isinstance(self.ram, ConsolidatingMemory):
            self.ram.update({COUNT: np.array([[row.count]], np.float32)}, np.array([[len(self.ids) - 1]]))
        if self._redundancy is not None:
            self._redundancy.added(self.compared(), self.labels())
        return id, evicted

    def merge(self, embedding: Float[np.ndarray, " embed"], position: int, source: str | None) -> int:
        """Merge an example into the row at this position. Returns the row's id."""
        id = self.ids[position]
        self._merged.setdefault(id, []).append(SourceShare(source, np.array(embedding, np.float64)))
        self.ram.merge(embedding[None, None], np.array([[position]]))
        return id

    def taught(self) -> None:
        """The readers were weighed: `commit` makes that last too."""
        self._taught = True

    @property
    def staged(self) -> set[int]:
        """The rows that `commit` will write."""
        return set(self._staged)

    def commit(self, settings: Mapping[str, Any] | None = None, receipts: Mapping[str, Any] | None = None) -> None:
        """Make what was staged durable, settings and receipts with it, all of it or nothing."""
        settings = dict(settings or {})
        if self._taught:
            settings[READERS_SETTING] = self.ram.lessons_to_dict()
        if not (self._staged or self._dropped or self._merged or settings or receipts):
            return
        try:
            added, changed = self._with_merged()
            self.store.replace(self._dropped, added, update=changed, settings=settings, receipts=receipts)
        except BaseException:
            self.reload()
            raise
        self._staged, self._dropped, self._merged = {}, [], {}
        self._taught = False

    def _with_merged(self) -> tuple[list[NewRow], list[RowUpdate]]:
        """Rows to be added and rows to be changed, as what was merged into them leaves them."""
        if not self._merged:
            return list(self._staged.values()), []
        keys, counts, changed = self.keys(), self.ram.column(COUNT)[0], []
        staged = dict(self._staged)
        for id, examples in self._merged.items():
            place = self._position(id)
            if place is None:
                continue
            key, count = keys[place].copy(), int(counts[place])
            if id in staged:
                row = staged[id]
                first = SourceShare(row.source, np.asarray(row.key, np.float64) * row.count, row.count)
                staged[id] = replace(row, key=key, count=count, shares=(*(row.shares or (first,)), *examples))
            else:
                changed.append(RowUpdate(id, key=key, count=count, shares=tuple(examples)))
        return list(staged.values()), changed

    def forget_source(self, source: str) -> Forgotten:
        """Leave no trace of a source: its rows go, and rows into which it was merged are made anew without it. The
        readers' weights, which its examples helped to find, start over."""
        forgotten = forget_source(self.store, source)
        if forgotten or forgotten.rebuilt:
            self.reload()
        return forgotten

    def forget(self, ids: Iterable[int]) -> list[int]:
        """Delete rows for good; ids that are not there are ignored."""
        gone = self.store.delete(ids)
        self._remove(set(gone))
        return gone

    def id_at(self, position: int) -> int:
        return self.ids[position]

    def ids_after(self, id: int, most: int) -> list[int]:
        """The ids of so many rows at most, beyond this one."""
        start = bisect_right(self.ids, id)
        return self.ids[start : start + most]

    def existing(self, ids: Iterable[int]) -> list[int]:
        """Those of these ids that rows have."""
        return [id for id in ids if self._position(id) is not None]

    def ids_of(self, label: Label | None = None, source: str | None = None) -> list[int]:
        if label is not None:
            number = self._number.get(label)
            return [id for id, found in zip(self.ids, self.labels().tolist(), strict=True) if found == number]
        return [id for id, found in zip(self.ids, self.sources, strict=True) if found == source]

    def _make_room(self, label: Label) -> list[int]:
        """Evict until one more row of this class fits the budget."""
        evicted = []
        while (among := self._over_budget(label)) is not None:
            id = self.ids[self.victim(among)]
            self._merged.pop(id, None)
            if id in self._staged:
                del self._staged[id]
            else:
                self._dropped.append(id)
                evicted.append(id)
            self._remove({id}, arriving=label)
        return evicted

    def victim(self, among: Bool[np.ndarray, " row"]) -> int:
        """The position of the row to go."""
        if len(self) > MOST_COMPARED:
            self._redundancy = None
            self._evictions += 1
            return least_important_of_some(self.compared(), self.labels(), self.examples, among, self._evictions)
        if self._redundancy is None or self._compared_in is not self.ram.scale:
            self._redundancy, self._compared_in = Redundancy(self.compared(), self.labels()), self.ram.scale
        return self._redundancy.least_important(among, self.examples)

    def _over_budget(self, label: Label) -> Bool[np.ndarray, " row"] | None:
        """The rows of which one has to go before a row of this class can come."""
        if self.max_rows_per_class is not None:
            of_class = self.labels() == self._number[label]
            if int(of_class.sum()) >= self.max_rows_per_class:
                return of_class
        if self.max_rows is not None and len(self) >= self.max_rows:
            # Where every class is down to one row, a known one makes room for its new row itself.
            own = self.labels() == self._number[label]
            alone = own.any() and len(self) == len(np.unique(self.labels()))
            return own if alone else np.ones(len(self), bool)
        return None

    def _remove(self, ids: set[int], arriving: Label | None = None) -> None:
        if not ids:
            return
        gone = np.array([id in ids for id in self.ids])
        gone_keys = self.compared()[gone]
        self.ram.remove(gone[None])
        kept = (~gone).nonzero()[0].tolist()
        self.ids = [self.ids[i] for i in kept]
        self.sources = [self.sources[i] for i in kept]
        self._renumber(arriving)
        if self._redundancy is not None:
            self._redundancy.removed(gone, self.compared(), self.labels(), gone_keys)

    def _renumber(self, arriving: Label | None) -> None:
        """Classes without rows are no longer known; the numbers of the others close up."""
        present = np.bincount(self.labels(), minlength=len(self.classes)) > 0
        if arriving is not None:
            present[self._number[arriving]] = True
        if present.all():
            return
        self.labels()[:] = (present.cumsum() - 1)[self.labels()]
        if isinstance(self.ram, ConsolidatingMemory):
            self.ram.recount()
        self.classes = [label for label, here in zip(self.classes, present.tolist(), strict=True) if here]
        self._number = {label: number for number, label in enumerate(self.classes)}


def forget_source(store: Store, source: str) -> Forgotten:
    """Leave no trace of a source in a store, and start the readers' weights over."""
    forgotten = store.forget_source(source, settings={READERS_SETTING: None})
    return Forgotten(forgotten.gone, forgotten.rebuilt)
