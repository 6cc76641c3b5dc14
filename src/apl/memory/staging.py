"""A memory that lasts: examples are *staged* first, so that the next one of a batch already sees them, and *committed* to a
store in one transaction. A handle is the id of a row in the store.

`StoredMemory` and `RemoteMemory` differ in where the nearest rows come from.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.config import Metric
from apl.memory.history import History
from apl.memory.protocol import COUNT, LABEL, ReadingState, Rows
from apl.store import Forgotten, Label, NewRow, RowUpdate, Store
from apl.store.checks import checked_source, encoded
from apl.store.rows import Write, added_shares, by_source

STATE_SETTING = "readers"
"""Under this name a store keeps what a reading has learnt about the memory."""
HISTORY_SETTING = "history"
NOTHING_LEARNT = {STATE_SETTING: None, HISTORY_SETTING: None}
HISTORY_EVERY = 20
"""The history is written after this number of examples, and when the memory is closed: it is larger than all the rest."""
KEY = "embedding"
LOST = -1
"""The generation of a memory whose copy of the store cannot be used."""
MakeState = Callable[[Any], ReadingState | None]
"""Makes a reading's state of what was kept, or of None."""


@dataclass(frozen=True)
class Details:
    """What a memory that lasts keeps with an example."""

    label: Label
    source: str | None = None
    payload: Callable[[], bytes | None] | None = None
    """Made only if the example is written."""


class ClassNames:
    """The classes of one memory: stores know them by name, learners by number, in the order of their first appearance.

    With `numbered`, labels are the numbers themselves, as in an episode of announced classes.
    """

    def __init__(self, labels: Iterable[Label] = (), numbered: bool = False) -> None:
        self.numbered = numbered
        self.names: list[Label] = []
        self._number: dict[Label, int] = {}
        self._sorted: list[tuple[bool, Label, int]] = []
        """Integers before text."""
        self._order: Int[np.ndarray, " class"] | None = None
        for label in labels:
            self.add(label)

    def __len__(self) -> int:
        return len(self.names)

    def number(self, label: Label) -> int | None:
        """None if there is no such class."""
        return self._number.get(label)

    def add(self, label: Label) -> int:
        """The number of a class, which is new if it has none."""
        found = self._number.get(label)
        if found is not None:
            return found
        for name in range(len(self.names), int(label) + 1) if self.numbered else (label,):
            number = self._number[name] = len(self.names)
            self.names.append(name)
            insort(self._sorted, (isinstance(name, str), name, number))
        self._order = None
        return self._number[label]

    @property
    def order(self) -> Int[np.ndarray, " class"]:
        """The numbers of all classes, sorted by name."""
        if self._order is None:
            self._order = np.array([number for _, _, number in self._sorted], np.int64)
        return self._order

    def keep(self, present: Bool[np.ndarray, " class"]) -> Int[np.ndarray, " class"] | None:
        """Forget the other classes; the numbers close up. Returns the new number of each class; None if nothing changes."""
        if self.numbered or present.all():
            return None
        kept = [name for name, here in zip(self.names, present.tolist(), strict=True) if here]
        self.names, self._sorted, self._number, self._order = [], [], {}, None
        for name in kept:
            self.add(name)
        numbers: np.ndarray = present.cumsum() - 1
        return numbers


@dataclass
class Staged:
    """What a transaction will write."""

    rows: dict[int, NewRow] = field(default_factory=dict)
    updates: dict[int, RowUpdate] = field(default_factory=dict)
    evicted: list[int] = field(default_factory=list)
    """Stored rows that will be removed, to make room."""

    def update(self, change: RowUpdate) -> None:
        """A row has gained examples; those without a source are not among the update's shares."""
        row, earlier = self.rows.get(change.id), self.updates.get(change.id)
        if row is not None:
            before = row.written(0)
            after = change.applied(before, 0)
            shares = by_source((*row.shares, *added_shares(before, after, change)))
            self.rows[change.id] = replace(row, key=after.key, count=after.count, shares=tuple(shares.values()))
        elif earlier is not None:
            shares = by_source((*earlier.shares, *change.shares))
            self.updates[change.id] = replace(change, shares=tuple(shares.values()))
        else:
            self.updates[change.id] = change

    def evict(self, id: int) -> None:
        self.updates.pop(id, None)
        if self.rows.pop(id, None) is None:
            self.evicted.append(id)

    def write(self, settings: dict[str, str] | None = None, receipts: dict[str, str] | None = None) -> Write:
        """The transaction. Settings and receipts are JSON."""
        updates = sorted(self.updates.values(), key=attrgetter("id"))
        return Write(sorted(self.evicted), list(self.rows.values()), updates, settings or {}, receipts or {})

    def join(self, later: Staged) -> None:
        for id in later.evicted:
            self.evict(id)
        self.rows |= later.rows
        for change in later.updates.values():
            self.update(change)


class StagedMemory(ABC):
    """The rows of one store. One key column."""

    episodes = 1
    keys: tuple[str, ...] = (KEY,)
    names: ClassNames
    generation: int

    def __init__(
        self,
        store: Store,
        metric: Metric,
        new_state: MakeState = lambda kept: None,
        max_rows: int | None = None,
        numbered: bool = False,
        lasts: bool = True,
    ) -> None:
        self.store = store
        self.lasts = lasts
        """Write with every commit. Otherwise the store is written when it is asked."""
        self.metric: Metric = metric
        self.max_rows = max_rows
        """None: any number."""
        self.numbered = numbered
        self.state: ReadingState | None = None
        self.history = History()
        """How the latest examples were predicted."""
        self.kept: tuple[ReadingState | None, History] = (None, self.history)
        """The state and the history as the store has them."""
        self._new_state = new_state
        self.staged = Staged()
        """What `commit` will write."""
        self.reload()

    # --- what differs -----------------------------------------------------------------------------

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def reload(self) -> None:
        """Drop what was staged, and read the store anew."""

    @abstractmethod
    def follow(self) -> None:
        """Read what others wrote since."""

    @abstractmethod
    def _make_room(self, max_rows: int, key: Float[np.ndarray, " embed"], label: Label) -> None:
        """Evict until one more row of this class fits."""

    @abstractmethod
    def _added(self, row: NewRow) -> None:
        """A row was staged."""

    @abstractmethod
    def _merged(self, id: int, example: Float[np.ndarray, " embed"], source: str | None) -> RowUpdate:
        """Merge an example into a row. Returns the update for the store."""

    @abstractmethod
    def _write(self, staged: Staged, settings: dict[str, str], receipts: dict[str, str]) -> None:
        """The one transaction. Settings and receipts are JSON."""

    # --- what a learner needs ---------------------------------------------------------------------

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
            key = np.array(rows[KEY][0, query], np.float32)
            count = int(rows[COUNT][0, query]) if COUNT in rows else 1
            source = None if detail.source is None else self._source(detail.source)
            if self.max_rows is not None:
                self._make_room(self.max_rows, key, detail.label)
            [id] = self.store.reserve()
            payload = detail.payload() if detail.payload is not None else None
            row = NewRow(detail.label, key, surprise, time.time(), source, payload, count, id=id)
            self.staged.rows[id] = row
            self._added(row)
            ids[0, query] = id
        return ids

    def merge(self, rows: Rows, at: Int[np.ndarray, "episode query"], details: Sequence[Details] | None = None) -> None:
        for query in (at[0] >= 0).nonzero()[0].tolist():
            source = None if details is None else details[query].source
            source = None if source is None else self._source(source)
            self.staged.update(self._merged(int(at[0, query]), rows[KEY][0, query], source))

    def _source(self, given: str) -> str | None:
        return checked_source(given) if self.store.keep_sources else None

    def remove(self, at: Int[np.ndarray, "episode row"]) -> None:
        self.forget(at[at >= 0].tolist())

    @property
    def classes(self) -> list[Label]:
        """The names of the classes, by number."""
        return self.names.names

    # --- staying in step with the store -----------------------------------------------------------

    def commit(self, settings: Mapping[str, Any] | None = None, receipts: Mapping[str, Any] | None = None) -> None:
        """Write what was staged, settings and receipts with it: all of it or nothing."""
        staged, (state, history) = self.staged, self.kept
        kept, answered = encoded(settings) if settings else {}, encoded(receipts) if receipts else {}
        if self.lasts and self.state is not None and self.state is not state:
            state = self.state
            kept[STATE_SETTING] = json.dumps(state.to_dict())
        if not (staged.rows or staged.updates or staged.evicted or kept or answered):
            return
        if self.lasts and self.history.seen >= history.seen + HISTORY_EVERY:
            history = self.history
            kept[HISTORY_SETTING] = json.dumps(history.to_dict())
        self._write(staged, kept, answered)
        self.staged, self.kept = Staged(), (state, history)

    def save_state(self) -> None:
        """Write what the reading has learnt and the history, if that has not been done."""
        changed = self.state is not self.kept[0] or self.history is not self.kept[1]
        if changed and not self.store.read_only:
            state = None if self.state is None else self.state.to_dict()
            self.store.update_settings({STATE_SETTING: state, HISTORY_SETTING: self.history.to_dict()})
            self.kept = (self.state, self.history)

    def _restore_state(self, kept: Any, history: History | None = None) -> None:
        """As the store has them. Without a history, the one at hand stays."""
        self.state, written = self._new_state(kept), self.kept[1]
        if history is not None:
            self.history = written = history
        self.kept = (self.state, written)

    # --- forgetting -------------------------------------------------------------------------------

    def forget(self, ids: Iterable[int]) -> list[int]:
        """Delete rows; ids that do not exist are ignored. Returns those that did."""
        gone = self.store.delete(ids)
        self.follow()
        return gone

    def forget_label(self, label: Label) -> list[int]:
        """Delete a class, and the receipts that name it. Returns the ids of its rows."""
        gone = self.store.delete_label(label)
        self.follow()
        return gone

    def forget_source(self, source: str) -> Forgotten:
        """Leave no trace of a source: its rows go, and rows that others share with it become the mean of theirs. What the
        reading has learnt with its help starts over."""
        forgotten = self.store.forget_source(source, settings=NOTHING_LEARNT)
        self.history = History()
        self.follow()
        return forgotten
