"""A memory that is searched where it lives: its rows stay on the server, and only those that are recalled travel.

`EngineMemory` has the face of a `DurableMemory`; its `EngineRows` are what a learner asks (`apl.memory.Memory`), and a
position there is a row's id. Of the classes it knows names, counts and sums, which the store keeps as totals; those that changed
are read when the memory's generation has changed, so a lesson that another process was answered for is seen by the next
question. Rows staged within a batch are held in RAM until they are committed, and recalled beside the others.

Where the memory consolidates, a merge says which generation of its row it has seen; if another process was faster, it is worked out
again from what the row is now, as a mean does not depend on the order. The readers' weights are those of whoever
committed last.

With a budget, the row that goes is the one most like the newcomer: of its class if the class is full, of all rows
otherwise. (In RAM every row can be compared with every other; here that would be a question for each.)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.classifier.answers import Forgotten
from apl.classifier.durable_memory import LOST, READERS_SETTING, TRIES, forget_source
from apl.consolidation import ConsolidatingMemory
from apl.learner import Learner
from apl.memory import COUNT, Column, Neighbours
from apl.reading.column_units import Spread
from apl.reading.novelty import Novelty
from apl.reading.readers import Pool
from apl.store import (
    Label,
    NewRow,
    Recalled,
    Row,
    RowChanged,
    RowUpdate,
    Snapshot,
    SourceShare,
    Store,
    StoreError,
)

MOST_SAMPLED = 2000
"""Rows that are looked at where a statistic of all rows is wanted."""


class EngineRows:
    """The rows of an `EngineMemory` as a learner sees them."""

    episodes = 1

    def __init__(self, memory: EngineMemory) -> None:
        self._memory = memory
        self.keys = tuple(memory.learner.key_widths)

    def __len__(self) -> int:
        return len(self._memory)

    @property
    def counts(self) -> Int[np.ndarray, " episode"]:
        """As many as `column("label")` has: a row of each class stands for all of them."""
        return np.array([len(self._memory.classes)])

    def column(self, name: str) -> np.ndarray:
        if name != "label":
            raise StoreError(f"the column {name!r} of a memory on a server is not loaded")
        return np.arange(len(self._memory.classes))[None]

    def classes_stored(self, way: int) -> Bool[np.ndarray, "episode way"]:
        return np.arange(way)[None] < len(self._memory.classes)

    def nearest(self, key: str, query: Float[np.ndarray, "episode query embed"], k: int) -> Neighbours:
        found = self._memory.recall(np.ascontiguousarray(query[0], np.float32), k)
        # A class that somebody else began since the classes were read is not part of this answer.
        number = self._memory.number
        numbers = [[-1 if label is None else number(label) for label in labels] for labels in found.labels]
        label = np.array([[-1 if n is None else n for n in row] for row in numbers], np.int64).reshape(found.ids.shape)
        mask = label >= 0
        columns = {
            key: np.where(mask[..., None], found.keys, np.float32(0))[None],
            "label": np.where(mask, label, 0)[None],
            COUNT: np.where(mask, found.counts, 0).astype(np.float32)[None],
        }
        distance = np.where(mask, found.distances, np.float32(0))[None]
        return Neighbours(columns, distance, mask[None], np.where(mask, found.ids, -1)[None])

    def write(self, rows: Mapping[str, np.ndarray], chosen: np.ndarray) -> Int[np.ndarray, "episode query"]:
        """Write rows at once, each under the number of its class as its label."""
        (key,) = self.keys
        numbers = chosen[0].nonzero()[0].tolist()
        position = np.full(chosen.shape, -1)
        position[0, numbers] = self._memory.store.append(
            [NewRow(int(rows["label"][0, n]), rows[key][0, n]) for n in numbers]
        )
        self._memory.follow()
        return position

    def update(self, rows: Mapping[str, np.ndarray], at: Int[np.ndarray, "episode query"]) -> None:
        """Give the rows of these ids other keys."""
        (key,) = self.keys
        changed = (at[0] >= 0).nonzero()[0].tolist()
        self._memory.store.replace([], [], update=[RowUpdate(int(at[0, n]), key=rows[key][0, n]) for n in changed])

    def remove(self, rows: np.ndarray) -> None:
        raise StoreError("rows on a server have no positions: forget them by their ids")


class ConsolidatingEngineRows(EngineRows, ConsolidatingMemory):
    """Those of a memory that consolidates: what the readers must know of classes are the totals that the store keeps. Columns
    are compared as they are: a server searches its rows as they lie."""

    in_units, scale = False, None

    def __init__(self, memory: EngineMemory) -> None:
        EngineRows.__init__(self, memory)
        self.metric = memory.store.metric
        self.spec = {name: Column((width,)) for name, width in memory.learner.key_widths.items()}
        self.pool = Pool(memory.learner.readers, 1)
        self.novelty = Novelty(1)
        self.spread = Spread(self.columns)
        self._clear_sums()


@dataclass(frozen=True)
class PendingMerge:
    """Examples that are to be merged into a row."""

    base: Row
    """The row as it was recalled."""
    added: tuple[SourceShare, ...]

    def result(self) -> Row:
        key, count = self.base.key, self.base.count
        for example in self.added:
            count += 1
            key = key + (example.total.astype(np.float32) - key) / np.float32(count)
        return replace(self.base, key=key.astype(np.float32), count=count)

    def update(self) -> RowUpdate:
        result = self.result()
        return RowUpdate(
            self.base.id,
            key=result.key,
            count=result.count,
            shares=self.added,
            seen_generation=self.base.generation,
        )

    def alone(self) -> NewRow:
        """A row of the examples themselves, if that of the others is gone."""
        key = np.mean([example.total for example in self.added], axis=0).astype(np.float32)
        return NewRow(self.base.label, key, source=self.added[0].source, count=len(self.added), shares=self.added)


def _recalled(row: NewRow) -> Row:
    """A row that is not written yet, as it will be recalled."""
    return Row(row.id, row.label, np.asarray(row.key, np.float32), 0.0, 0.0, row.source, None, row.count)


def engine_can_search(learner: Learner) -> bool:
    """Servers find the nearest rows by one key."""
    return len(learner.key_widths) == 1 and learner.config.hops == 1


class EngineMemory:
    """One memory of one learner of embeddings (see `Learner.on_embeddings`)."""

    def __init__(
        self, learner: Learner, store: Store, max_rows: int | None = None, max_rows_per_class: int | None = None
    ) -> None:
        if not engine_can_search(learner) or store.metric != learner.config.metric:
            raise StoreError("this model recalls in ways that a server cannot: open the memory with recall='ram'")
        self.learner = learner
        self.store = store
        self.max_rows = max_rows
        self.max_rows_per_class = max_rows_per_class
        self.sources: dict[int, str | None] = {}
        """Of the rows that were recalled last."""
        self._near: dict[int, Row] = {}
        self._recalled_at: int | None = None
        self.reload()

    def reload(self) -> None:
        """Forget what was staged, and see which classes there are."""
        self._staged: dict[int, NewRow] = {}
        self._dropped: list[int] = []
        self._merges: dict[int, PendingMerge] = {}
        self._taught = False
        self._read_classes(None)

    def follow(self) -> None:
        """Take in how classes have changed since they were last read."""
        self._read_classes(self._classes_of)

    def _read_classes(self, since: int | None) -> None:
        totals = self.store.totals(since)
        if not totals.complete and not all(total.rows for total in totals.classes):
            # The numbers of the other classes close up where one is gone.
            totals = self.store.totals()
        if totals.complete:
            self.classes: list[Label] = []
            self._number: dict[Label, int] = {}
            self._rows: list[int] = []
            self.ram = ConsolidatingEngineRows(self) if self.learner.consolidates else EngineRows(self)
        for total in totals.classes:
            number = self._numbered(total.label)
            self._rows[number] = total.rows
            if isinstance(self.ram, ConsolidatingMemory):
                self.ram.set_sum(number, total.total, total.examples)
        self.generation = totals.generation
        self._sample: Snapshot | None = None
        self._classes_of: int | None = totals.generation
        """The generation of what is known of the classes; None if that cannot be brought up to date by changes."""
        if isinstance(self.ram, ConsolidatingMemory):
            self.ram.lessons_from_dict(self.store.setting(READERS_SETTING))

    def _numbered(self, label: Label) -> int:
        """The class's number; it gets one if it has none."""
        if label not in self._number:
            self._number[label] = len(self.classes)
            self.classes.append(label)
            self._rows.append(0)
        return self._number[label]

    def is_stale(self) -> bool:
        return self.store.generation() != self.generation

    def was_stale(self) -> bool:
        """Whether others had written, by what the store said of the rows that were recalled last."""
        return self._recalled_at is not None and self._recalled_at != self.generation

    def __len__(self) -> int:
        return sum(self._rows)

    def number(self, label: Label) -> int | None:
        """The class's number for the learner; None if no row has this label."""
        return self._number.get(label)

    def counts(self) -> dict[Label, int]:
        return dict(zip(self.classes, self._rows, strict=True))

    def _count(self, label: Label, key: np.ndarray, count: int, rows: int) -> None:
        """Examples of a class come or go, and with them so many rows."""
        number = self._numbered(label)
        self._rows[number] += rows
        if isinstance(self.ram, ConsolidatingMemory):
            self.ram.add_to_sum(number, np.asarray(key, np.float32), count)

    def keys(self) -> Float[np.ndarray, "row embed"]:
        """Of some rows, where a statistic of all is wanted; of all, if they are few."""
        kept = self._sampled().keys
        staged = [np.asarray(row.key, np.float32) for row in self._staged.values()]
        return np.concatenate([kept, np.array(staged, np.float32).reshape(-1, self.store.width)])

    compared = keys

    def labels(self) -> Int[np.ndarray, " row"]:
        """Of the same rows."""
        labels = [*self._sampled().labels, *(row.label for row in self._staged.values())]
        return np.array([self._number.get(label, -1) for label in labels], np.int64)

    def _sampled(self) -> Snapshot:
        if self._sample is None:
            self._sample = self.store.oldest(MOST_SAMPLED)
        return self._sample

    def recall(self, asked: Float[np.ndarray, "query embed"], k: int) -> Recalled:
        found = recalled = self.store.recall(asked, k + len(self._dropped) + len(self._merges))
        if self._staged or self._dropped or self._merges:
            found = self._with_staged(found, asked, k)
        self._recalled_at = recalled.generation
        self._near = {row.id: row for query in range(len(asked)) for row in found.rows(query)}
        sources = itertools.chain.from_iterable(found.sources)
        self.sources = dict(zip(found.ids.ravel().tolist(), sources, strict=True))
        return found

    def _with_staged(self, found: Recalled, asked: np.ndarray, k: int) -> Recalled:
        other = {*self._dropped, *self._merges}
        staged = [*(merge.result() for merge in self._merges.values()), *map(_recalled, self._staged.values())]
        rows = [[*(row for row in found.rows(query) if row.id not in other), *staged] for query in range(len(asked))]
        return Recalled.of(rows, asked, k, self.store.metric)

    # --- writing --------------------------------------------------------------------------------------------------

    def stage(self, embedding: Float[np.ndarray, " embed"], row: NewRow) -> tuple[int, list[int]]:
        """Hold a row until `commit`, making room for it first. Returns its id and the ids that will go."""
        (id,) = self.store.reserve()
        self._numbered(row.label)
        evicted = self._make_room(embedding, row.label)
        self._staged[id] = replace(row, id=id)
        self._count(row.label, row.key, row.count, 1)
        return id, evicted

    def merge(self, embedding: Float[np.ndarray, " embed"], position: int, source: str | None) -> int:
        """Merge an example into a row that was recalled for it. Returns the row's id."""
        example = SourceShare(source, np.array(embedding, np.float64))
        if position in self._staged:
            row = self._staged[position]
            before = _recalled(row)
            change = PendingMerge(before, (example,))
            after = change.result()
            first = SourceShare(row.source, np.asarray(row.key, np.float64) * row.count, row.count)
            shares = (*(row.shares or (first,)), example)
            self._staged[position] = replace(row, key=after.key, count=after.count, shares=shares)
        else:
            earlier = self._merges.get(position) or PendingMerge(self._near[position], ())
            change = self._merges[position] = replace(earlier, added=(*earlier.added, example))
            before, after = earlier.result(), change.result()
        self._count(before.label, before.key, -before.count, 0)
        self._count(after.label, after.key, after.count, 0)
        return position

    def taught(self) -> None:
        """The readers were weighed: `commit` makes that last too."""
        self._taught = True

    def _make_room(self, embedding: np.ndarray, label: Label) -> list[int]:
        of_class = self.max_rows_per_class is not None and self._rows[self._number[label]] >= self.max_rows_per_class
        if not of_class and (self.max_rows is None or len(self) < self.max_rows):
            return []
        wanted = 1
        while True:
            found = self.recall(embedding[None], wanted)
            for row in found.rows(0):
                if row.label in self._number and (not of_class or row.label == label):
                    self._count(row.label, row.key, -row.count, -1)
                    self._merges.pop(row.id, None)
                    if self._staged.pop(row.id, None) is not None:
                        return []
                    self._dropped.append(row.id)
                    return [row.id]
            if not found.mask.all():
                return []
            wanted *= 8

    @property
    def staged(self) -> set[int]:
        return set(self._staged)

    def commit(self, settings: Mapping[str, Any] | None = None, receipts: Mapping[str, Any] | None = None) -> None:
        """Make what was staged durable, settings and receipts with it, all of it or nothing."""
        settings = dict(settings or {})
        if self._taught:
            settings[READERS_SETTING] = self.ram.lessons_to_dict()
        if not (self._staged or self._dropped or self._merges or settings or receipts):
            return
        rows, dropped, merges = list(self._staged.values()), self._dropped, list(self._merges.values())
        # Whether or not it succeeds: what was not acknowledged has never been.
        self._staged, self._dropped, self._merges, self._taught = {}, [], {}, False
        seen, self.generation, self._classes_of = self._classes_of, LOST, None
        for left in reversed(range(TRIES)):
            try:
                update = [merge.update() for merge in merges]
                self.store.replace(dropped, rows, update=update, settings=settings, receipts=receipts)
                break
            except RowChanged:
                if not left:
                    raise
                now = {row.id: row for row in self.store.some_rows([*dropped, *(merge.base.id for merge in merges)])}
                dropped = [id for id in dropped if id in now]
                rows += [merge.alone() for merge in merges if merge.base.id not in now]
                merges = [replace(merge, base=now[merge.base.id]) for merge in merges if merge.base.id in now]
        self._classes_of = seen

    def forget_source(self, source: str) -> Forgotten:
        """Leave no trace of a source, as `DurableMemory` does."""
        forgotten = forget_source(self.store, source)
        self.follow()
        return forgotten

    def forget(self, ids: Iterable[int]) -> list[int]:
        gone = self.store.delete(ids)
        self.follow()
        return gone

    def id_at(self, position: int) -> int:
        return position

    def ids_after(self, id: int, most: int) -> list[int]:
        return self.store.ids(id, most)

    def existing(self, ids: Iterable[int]) -> list[int]:
        return self.store.existing(ids)

    def ids_of(self, label: Label | None = None, source: str | None = None) -> list[int]:
        return self.store.ids_of_label(label) if label is not None else self.store.rows_of_source(source)
