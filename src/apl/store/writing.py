"""The one transaction that writes: rows come, go and change, and class totals, shares, settings and receipts with them.

A write is: move the memory's record on to a new generation, read the rows that will change, write. The questions of a
write come before its first change, so that a connection that pipelines needs two round trips.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from operator import attrgetter

import numpy as np

from apl.config import Metric
from apl.store.errors import AlreadyAnswered, RowChanged
from apl.store.rows import KEEP, Forgotten, NewRow, Row, RowUpdate, SourceShare, Write, label_text, total_changes
from apl.store.schema import checksum, row_checksum, share_checksum, source_of, source_text, total_bytes
from apl.store.sources import added_shares, by_source, kept_shares
from apl.store.tables import CLASS_GONE, ROW_CELLS, ROWS_PER_BLOCK, STATE_SETTING, Result, Run, Tables

RECEIPTS_KEPT = 10_000
"""Each new receipt replaces the oldest."""
GENERATIONS_FOLLOWED = 10_000
"""A copy that is further behind has to be loaded anew."""
PUT_ROWS = (
    f"INSERT INTO rows (memory, {ROW_CELLS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (memory, id) DO UPDATE SET"
    " label = excluded.label, source = excluded.source, key = excluded.key, count = excluded.count,"
    " has_shares = excluded.has_shares, generation = excluded.generation, checksum = excluded.checksum"
)
PUT_TOTALS = (
    "INSERT INTO classes (memory, label, rows, examples, total, first_id, generation) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (memory, label) DO UPDATE SET rows = classes.rows + excluded.rows,"
    " examples = classes.examples + excluded.examples, total = add_sums(classes.total, excluded.total),"
    " generation = excluded.generation"
)
PUT_SHARES = (
    "INSERT INTO shares (memory, id, source, total, count, checksum) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT"
    " (memory, id, source) DO UPDATE SET total = excluded.total, count = excluded.count, checksum = excluded.checksum"
)
PUT_PAYLOADS = (
    "INSERT INTO payloads (memory, id, payload, checksum) VALUES (?, ?, ?, ?) ON CONFLICT (memory, id)"
    " DO UPDATE SET payload = excluded.payload, checksum = excluded.checksum"
)
PUT_SETTINGS = (
    "INSERT INTO settings (memory, name, value, checksum) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (memory, name) DO UPDATE SET value = excluded.value, checksum = excluded.checksum"
)
Shares = dict[int, list[SourceShare]]
"""By row."""
_SHARES = attrgetter("shares")


class Writing(Tables):
    """Writes to the tables of one memory."""

    def _write(self, write: Write) -> None:
        with self._writing(len(write.add)) as run:
            self._write_in(run, write)

    def _write_in(self, run: Run, write: Write) -> None:
        settings = dict(write.settings)
        moved = self._advance(run, settings.pop(STATE_SETTING, None))
        rows = shares = answered = None
        if write.remove or write.update or write.receipts:
            rows, shares, answered = self._questions(run, write)
        now = self._advanced(moved)
        if answered is not None and (found := answered.fetchone()):
            raise AlreadyAnswered(found[0])
        before = {} if rows is None else {row.id: row for row in self._as_rows(rows.fetchall())}
        after = list(map(NewRow.written, write.add, repeat(now)))
        if write.remove or write.update:
            _require_unchanged(write, before)
            known = self._as_shares(shares.fetchall()) if shares is not None else {}
            changed = [change.applied(before[change.id], now) for change in write.update]
            after += self._changed_shares(run, write, before, changed, known)
        if write.remove:
            self._remove(run, write.remove, now)
        if after:
            self._put_rows(run, after, fresh=not write.update)
            self._put_payloads(run, write)
        if any(map(_SHARES, write.add)):
            self._put_shares(run, {row.id or 0: row.shares for row in write.add})
        self._put_totals(run, before.values(), after, now)
        if settings:
            records = [(self._memory, name, value, checksum(name, value)) for name, value in settings.items()]
            run.executemany(PUT_SETTINGS, records)
        if write.receipts:
            self._put_receipts(run, write.receipts, now)
        if write.erase is not None:
            self._erase_receipts(run, [*write.erase, *self._labels_gone(run, before.values())])

    def _questions(self, run: Run, write: Write) -> tuple[Result | None, Result | None, Result | None]:
        """What a write has to know of rows, shares and receipts. Everything is asked before anything is fetched, so that a
        pipeline sends it at once."""
        rows = shares = answered = None
        if write.remove or write.update:
            rows = run.execute(*self._rows_query(f"AND id {self.one_of}", (self._list(write.touched),)))
            named = [change for change in write.update if _names_sources(change)]
            if named:
                sources = {share.source for change in named for share in change.shares} | {None}
                shares = run.execute(*self._shares_query([change.id for change in named], list(sources)))
        if write.receipts:
            query = f"SELECT name FROM receipts WHERE memory = ? AND name {self.one_of}"
            answered = run.execute(query, (self._memory, self._list(list(write.receipts))))
        self._settle(run)
        return rows, shares, answered

    # --- rows -------------------------------------------------------------------------------------

    def _remove(self, run: Run, ids: Sequence[int], generation: int) -> None:
        for table in ("rows", "payloads", "shares"):
            run.execute(f"DELETE FROM {table} WHERE memory = ? AND id {self.one_of}", (self._memory, self._list(ids)))
        run.executemany("INSERT INTO removed VALUES (?, ?, ?)", [(self._memory, generation, id) for id in ids])
        forgotten = generation - GENERATIONS_FOLLOWED
        run.execute("DELETE FROM removed WHERE memory = ? AND generation <= ?", (self._memory, forgotten))

    def _put_rows(self, run: Run, rows: Sequence[Row], fresh: bool) -> None:
        """`fresh`: none of them exists."""
        run.executemany(PUT_ROWS, list(map(self._record, rows)))

    def _record(self, row: Row) -> tuple[object, ...]:
        head = (row.id, label_text(row.label), row.surprise_nats, row.written_at, row.source)
        tail = (row.count, int(row.has_shares), row.generation)
        seal = row_checksum(*head, row.key.astype("<f4").tobytes(), *tail)
        return (self._memory, *head, self._key_value(row.key), *tail, seal)

    def _put_payloads(self, run: Run, write: Write) -> None:
        records, gone = [], []
        rows: list[NewRow | RowUpdate] = [*write.add, *write.update]
        for row in rows:
            if row.payload is None and isinstance(row, RowUpdate):
                gone.append(row.id)
            elif row.payload is not None and row.payload is not KEEP:
                records.append((self._memory, row.id, row.payload, checksum(row.id, row.payload)))
        if gone:
            query = f"DELETE FROM payloads WHERE memory = ? AND id {self.one_of}"
            run.execute(query, (self._memory, self._list(gone)))
        if records:
            run.executemany(PUT_PAYLOADS, records)

    # --- shares of sources ------------------------------------------------------------------------

    def _changed_shares(
        self, run: Run, write: Write, before: Mapping[int, Row], after: Sequence[Row], known: Shares
    ) -> list[Row]:
        """Write what sources contribute to updated rows. Returns the rows, which say whether they have shares."""
        new: Shares = {}
        stale, rows = [], []
        for change, row in zip(write.update, after, strict=True):
            old = before[change.id]
            has_shares = old.has_shares
            if write.left is not None:
                has_shares = write.left[row.id] > 1
                stale += [] if has_shares else [row.id]
            elif change.rebuilt:
                new[row.id] = kept_shares(change.shares, row.source)
                has_shares = bool(new[row.id])
                stale.append(row.id)
            elif row.count != old.count and self.keep_sources:
                new[row.id] = self._grown_shares(run, old, row, change, known)
                has_shares = old.has_shares or bool(new[row.id])
            rows.append(row if has_shares == row.has_shares else replace(row, has_shares=has_shares))
        if stale:
            query = f"DELETE FROM shares WHERE memory = ? AND id {self.one_of}"
            run.execute(query, (self._memory, self._list(stale)))
        self._put_shares(run, new)
        return rows

    def _grown_shares(self, run: Run, old: Row, row: Row, change: RowUpdate, known: Shares) -> list[SourceShare]:
        """The shares of a row that gained examples, of the sources that these came from."""
        added = added_shares(old, row, change)
        stored = known.get(row.id, [])
        if old.has_shares and not _names_sources(change):
            found = run.execute(*self._shares_query([row.id], [None])).fetchall()
            stored = self._as_shares(found).get(row.id, [])
        touched = {share.source for share in added}
        return [share for share in by_source([*stored, *added]).values() if share.source in touched]

    def _put_shares(self, run: Run, shares: Mapping[int, Sequence[SourceShare]]) -> None:
        records = []
        for id, some in shares.items():
            for share in some:
                cells = (id, source_text(share.source), total_bytes(share.total, share.count), share.count)
                records.append((self._memory, *cells, share_checksum(*cells)))
        if records:
            run.executemany(PUT_SHARES, records)

    def _forget_source(self, run: Run, source: str, settings: dict[str, str]) -> Forgotten:
        ids = [id for (id,) in run.execute(*self._source_ids(source)).fetchall()]
        if not ids:
            return Forgotten([], [])
        gone, rebuilt, left = [], [], {}
        for row in self._rows_in(run, f"AND id {self.one_of}", (self._list(ids),)):
            change, left[row.id] = self._without_source(run, row, source)
            if change is None:
                gone.append(row.id)
            else:
                rebuilt.append(change)
        run.execute("DELETE FROM shares WHERE memory = ? AND source = ?", (self._memory, source_text(source)))
        self._write_in(run, Write(gone, [], rebuilt, settings, erase=(source,), left=left))
        return Forgotten(gone, [change.id for change in rebuilt])

    def _without_source(self, run: Run, row: Row, source: str) -> tuple[RowUpdate | None, int]:
        """The update that makes a row the mean of what the other sources contributed, None if nothing is left; and the
        number of other sources. Summed without an object for each of them."""
        others, count, parts = list[str | None](), 0, {4: list[bytes](), 8: list[bytes]()}
        for _, one, total, examples, seal in run.execute(*self._shares_query([row.id])).fetchall():
            if share_checksum(row.id, one, total, examples) != seal:
                raise self._damaged(f"what a source contributed to row {row.id} is not as it was written")
            if one != source_text(source):
                others.append(source_of(one))
                count += examples
                parts[len(total) // self.width].append(total)
        if not count:
            return None, 0
        sums = [np.frombuffer(b"".join(part), f"<f{size}").reshape(-1, self.width) for size, part in parts.items()]
        key = (np.sum([part.sum(0, np.float64) for part in sums], axis=0) / count).astype(np.float32)
        if row.source != source:
            return RowUpdate(row.id, key=key, count=count), len(others)
        # The payload is that of the row's first example.
        return RowUpdate(row.id, key=key, count=count, source=others[0], payload=None), len(others)

    # --- classes ----------------------------------------------------------------------------------

    def _put_totals(
        self, run: Run, before: Iterable[Row], after: Iterable[Row], generation: int, metric: Metric | None = None
    ) -> None:
        """Keep the totals of the classes: what was is subtracted, what is is added."""
        changes = total_changes(before, after, metric or self.metric)
        if not changes:
            return
        records, fewer = [], False
        for label, (rows, examples, total, first) in changes.items():
            records.append((self._memory, label, rows, examples, self._sum_value(total), first, generation))
            fewer = fewer or rows < 0
        run.executemany(PUT_TOTALS, records)
        if fewer:
            empty = "SELECT 1 FROM classes WHERE memory = ? AND rows = 0"
            values = (self._memory, generation, CLASS_GONE, self._memory)
            run.execute(f"INSERT INTO removed SELECT ?, ?, ? WHERE EXISTS ({empty})", values)
            run.execute("DELETE FROM classes WHERE memory = ? AND rows = 0", (self._memory,))

    def _use_metric(self, metric: Metric | None) -> None:
        """Recall and sum by this metric from now on. A writer computes the stored totals anew."""
        if metric is None or metric == self.metric:
            return
        if not self.read_only:
            self._kept_metric = metric
            with self._writing() as run:
                generation = self._advanced(self._advance(run, None, metric))
                run.execute("DELETE FROM classes WHERE memory = ?", (self._memory,))
                last = 0
                while rows := self._rows_in(run, "AND id > ?", (last,), most=ROWS_PER_BLOCK):
                    self._put_totals(run, [], rows, generation, metric)
                    last = rows[-1].id
        self.metric = metric

    # --- receipts ---------------------------------------------------------------------------------

    def _put_receipts(self, run: Run, receipts: Mapping[str, str], generation: int) -> None:
        run.executemany(
            "INSERT INTO receipts (memory, name, value, generation, checksum) VALUES (?, ?, ?, ?, ?)",
            [(self._memory, name, value, generation, checksum(name, value)) for name, value in receipts.items()],
        )
        # Receipts beyond the limit are those of the generations before that of the oldest one kept.
        run.execute(
            "DELETE FROM receipts WHERE memory = ? AND generation < (SELECT generation FROM receipts"
            " WHERE memory = ? ORDER BY generation DESC LIMIT 1 OFFSET ?)",
            (self._memory, self._memory, RECEIPTS_KEPT - 1),
        )

    def _labels_gone(self, run: Run, before: Iterable[Row]) -> list[str]:
        """The names among these rows' labels that no row has any more."""
        labels = {label_text(row.label): str(row.label) for row in before}
        query = f"SELECT label FROM classes WHERE memory = ? AND label {self.one_of}"
        left = {label for (label,) in run.execute(query, (self._memory, self._list(list(labels)))).fetchall()}
        return [name for label, name in labels.items() if label not in left and label[0] == "t"]

    def _erase_receipts(self, run: Run, names: Iterable[str]) -> None:
        """Remove the receipts in which a name stands."""
        for name in filter(None, names):
            # As the name stands within JSON.
            pattern = "".join(f"^{letter}" if letter in "^%_" else letter for letter in json.dumps(name)[1:-1])
            query = "DELETE FROM receipts WHERE memory = ? AND value LIKE ? ESCAPE '^'"
            run.execute(query, (self._memory, f"%{pattern}%"))


def _names_sources(change: RowUpdate) -> bool:
    return not change.rebuilt and any(share.source is not None for share in change.shares)


def _require_unchanged(write: Write, found: Mapping[int, Row]) -> None:
    """Refuse a write to rows that do not exist, or that have changed since they were read."""
    for id in write.touched:
        if id not in found:
            raise RowChanged(f"there is no row {id} to replace; nothing was written")
    for change in write.update:
        if change.seen_generation not in (None, found[change.id].generation):
            raise RowChanged(f"row {change.id} has been changed by another process; nothing was written")
