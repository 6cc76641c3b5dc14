"""A memory on PostgreSQL whose nearest rows are found by a vector engine.

PostgreSQL is the system of record. After a commit the writer brings the engine up to date, if it answers. The table `indexes`
says up to which generation the engine has been filled; a process that finds it behind fills the rest (ids are replaced, so twice is
harmless) and moves the mark by compare-and-set. `settled` is the generation that a search can no longer miss, given the
engine's own staleness bound.

A search asks the engine for near ids, and the database for these rows and for all that changed after `settled`: the tail.
Ids that are gone, or whose row changed since, are dropped. If the engine does not answer, the database searches alone.
A collection belongs to one epoch, a random name in the same record: an engine that began anew gets a new collection.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from apl.metric import measured
from apl.store.answers import Record
from apl.store.errors import StoreError
from apl.store.index import Index, IndexGone, IndexUnavailable, open_index
from apl.store.opening import Options
from apl.store.postgres import PostgresStore
from apl.store.reading import Run
from apl.store.rows import Row

log = logging.getLogger("apl")
FILLED_AT_ONCE = 1000
"""Rows. An index of more of them is filled anew in a thread."""
TAIL_AT_MOST = 5000
"""If more rows than this changed since the index settled, the database searches alone."""
ASKED_AT_MOST = 8
"""How many times as many ids are asked for if many of them are gone."""
RETRY_SECONDS = 10.0
"""An engine that did not answer is not asked again for this time."""


@dataclass(frozen=True)
class Mark:
    """How far the engine has been filled."""

    epoch: str
    filled: int
    settled: int
    pending: int
    pending_at: float


class IndexedStore(PostgresStore):
    """One memory on PostgreSQL with an index beside it."""

    _unavailable_index_until = 0.0
    _filler: threading.Thread | None = None
    """Fills an index of many rows anew."""

    def __init__(self, url: str, record: Record, options: Options) -> None:
        super().__init__(url, record, options)
        self._index: Index = open_index(options.index or "", options.approximate)

    @classmethod
    def open(cls, place: str, name: str, options: Options) -> PostgresStore:
        # A wrong URL is refused before a memory is made.
        open_index(options.index or "", options.approximate)
        return super().open(place, name, options)

    # --- filling ----------------------------------------------------------------------------------

    @contextmanager
    def _writing(self, reads_first: bool = False) -> Iterator[Run]:
        with super()._writing(reads_first) as run:
            yield run
        self._fill_if_possible()

    def _fill_if_possible(self) -> None:
        """What was committed is safe; an engine that does not answer is filled later. Nobody waits for many rows."""
        if time.monotonic() < self._unavailable_index_until or (self._filler is not None and self._filler.is_alive()):
            return
        with suppress(StoreError):
            mark = self._mark()
            if (mark is None or not mark.filled) and self.count() > FILLED_AT_ONCE:
                self._filler = threading.Thread(target=self._try_to_fill, daemon=True)
                self._filler.start()
                return
        self._try_to_fill()

    def _try_to_fill(self) -> None:
        with suppress(StoreError), self._may_be_unavailable():
            self._fill()

    def reindex(self) -> int:
        """Build the index anew; returns the number of rows."""
        with self._using(writing=True):
            self._new_epoch(self._mark())
            self._fill()
            return self.count()

    def _fill(self) -> None:
        """Bring the engine up to date. What it has lost, or lacks too much of, begins anew with the next call."""
        mark = self._mark() or self._new_epoch(None) or self._mark()
        assert mark is not None
        try:
            if not mark.filled:
                self._fill_all(mark)
                return
            changes = self.changes(mark.filled)
            if changes is None:
                self._new_epoch(mark)
            elif changes.generation > mark.filled:
                if changes.removed:
                    self._index.remove(self._collection(mark), changes.removed)
                self._put(mark, changes.rows.ids.tolist(), changes.rows.keys)
                self._move(mark, changes.generation)
        except IndexGone:
            self._new_epoch(mark)

    def _fill_all(self, mark: Mark) -> None:
        generation, last = self.generation(), 0
        with suppress(IndexUnavailable):  # another process may be making it
            self._index.create(self._collection(mark), self.width, self.metric)
        while ids := self.ids(last, FILLED_AT_ONCE):
            rows = self.some_rows(ids)
            self._put(mark, [row.id for row in rows], np.array([row.key for row in rows], np.float32))
            last = ids[-1]
        self._move(mark, generation)

    def _put(self, mark: Mark, ids: Sequence[int], keys: np.ndarray) -> None:
        if len(ids):
            self._index.put(self._collection(mark), ids, measured(keys, self.metric))

    # --- the mark ---------------------------------------------------------------------------------

    def _collection(self, mark: Mark) -> str:
        return f"apl_{self.identity}_{mark.epoch}"

    def _mark(self) -> Mark | None:
        query = "SELECT epoch, filled, settled, pending, pending_at FROM indexes WHERE memory = ? AND name = ?"
        [found] = self._ask([(query, (self._memory, self._index.name))])
        return Mark(*found[0]) if found else None

    def _new_epoch(self, old: Mark | None) -> Mark | None:
        """A mark for an empty collection in place of an old one; None if another process was faster."""
        self._drop_collection(old)
        new = Mark(secrets.token_hex(6), 0, 0, 0, 0.0)
        statement = (
            "INSERT INTO indexes (memory, name, epoch, filled, settled, pending, pending_at) VALUES (?, ?, ?, 0, 0, 0, 0)"
            " ON CONFLICT (memory, name) DO UPDATE SET epoch = excluded.epoch, filled = 0, settled = 0, pending = 0,"
            " pending_at = 0 WHERE indexes.epoch = ? RETURNING epoch"
        )
        values = (self._memory, self._index.name, new.epoch, "" if old is None else old.epoch)
        [made] = self._ask([(statement, values)])
        return new if made else None

    def _drop_collection(self, mark: Mark | None) -> None:
        with suppress(IndexGone):
            if mark is not None:
                self._index.drop(self._collection(mark))

    def _move(self, mark: Mark, generation: int) -> None:
        """Move the mark on, unless another process has done so."""
        now = time.time()
        settled, pending, pending_at = mark.settled, mark.pending, mark.pending_at
        if now - pending_at > self._index.stale_seconds:
            settled, pending, pending_at = pending, generation, now
        statement = (
            "UPDATE indexes SET filled = ?, settled = ?, pending = ?, pending_at = ?"
            " WHERE memory = ? AND name = ? AND epoch = ? AND filled = ? RETURNING epoch"
        )
        mine = (self._memory, self._index.name, mark.epoch, mark.filled)
        self._ask([(statement, (generation, settled, pending, pending_at, *mine))])

    # --- searching --------------------------------------------------------------------------------

    def _recall(self, keys: np.ndarray, k: int) -> tuple[list[list[Row]], int]:
        found = None
        if time.monotonic() >= self._unavailable_index_until:
            with self._may_be_unavailable():
                found = self._recall_by_index(keys, k)
        return super()._recall(keys, k) if found is None else found

    @contextmanager
    def _may_be_unavailable(self) -> Iterator[None]:
        """An engine that does not answer is not asked again for a while."""
        try:
            yield
        except IndexUnavailable as error:
            log.warning("%s; memory %r is searched by the database", error, self.name)
            self._unavailable_index_until = time.monotonic() + RETRY_SECONDS

    def _recall_by_index(self, keys: np.ndarray, k: int) -> tuple[list[list[Row]], int] | None:
        """None if the database has to search alone."""
        mark = self._mark()
        if mark is None or not mark.filled:
            self._fill_if_possible()
            return None
        old_enough = time.time() - mark.pending_at > self._index.stale_seconds
        bound = mark.pending if old_enough else mark.settled
        if old_enough and mark.pending < mark.filled:
            # Nobody has written since: the rest of what was filled settles too.
            self._move(mark, mark.filled)
        asked = measured(keys, self.metric)
        try:
            for wanted in (k, ASKED_AT_MOST * k):
                near = self._index.nearest(self._collection(mark), asked, wanted)
                if len(near) != len(keys):
                    raise IndexUnavailable(f"{self._index.name} answered {len(near)} of {len(keys)} questions")
                answer = self._judged(mark, near, bound, k, wanted)
                if answer is not None:
                    return answer
        except IndexGone:
            self._new_epoch(mark)
            self._fill_if_possible()
        return None

    def _judged(
        self, mark: Mark, near: list[list[int]], bound: int, k: int, wanted: int
    ) -> tuple[list[list[Row]], int] | None:
        """The rows of these ids that have not changed, and the tail. None if too few are left of the ids."""
        generation, count, rows, tail = self._known_and_tail(sorted({id for one in near for id in one}), bound)
        if len(tail) > TAIL_AT_MOST:
            self._fill_if_possible()
            return None
        known = {row.id: row for row in rows}
        found = []
        for one in near:
            kept = [known[id] for id in dict.fromkeys(one) if id in known]
            if len(kept) < k and len(one) >= wanted:
                return None
            if len(one) < wanted and len(kept) + len(tail) < count:
                # The engine has returned all it has, and rows that it was given are not among them.
                raise IndexGone(f"{self._index.name} has lost rows")
            found.append([*kept, *tail])
        return found, generation

    def _known_and_tail(self, ids: list[int], bound: int) -> tuple[int, int, list[Row], list[Row]]:
        """At one moment: the generation, the number of rows, those of these ids that have not changed since `bound`, and
        those that have."""
        near = self._rows_query(f"AND id {self.one_of} AND generation <= ?", (self._list(ids), bound))
        later = self._rows_query("AND generation > ?", (bound,), most=TAIL_AT_MOST + 1)
        state, [(count,)], known, tail = self._ask([self._state_query, self._count_query, near, later])
        return self._as_state(state).generation, count, self._as_rows(known), self._as_rows(tail)

    def drop(self) -> None:
        mark = self._mark()
        super().drop()
        with suppress(IndexUnavailable):
            self._drop_collection(mark)

    def _close(self) -> None:
        with suppress(StoreError):
            self._index.close()
        super()._close()
