"""One transaction on a memory: a new generation, rows and what sources contributed to them, classes, settings, receipts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from apl.store.errors import AlreadyAnswered, RowChanged
from apl.store.reading import CLASS_GONE, GENERATIONS_FOLLOWED, ROW_CELLS, STATE_SETTING, Query, Reading, Run, Shares
from apl.store.rows import (
    NewRow,
    Row,
    RowUpdate,
    Write,
    added_shares,
    by_source,
    checksum,
    kept_shares,
    label_text,
    payload_checksum,
    row_checksum,
    share_checksum,
    source_text,
    total_bytes,
    total_changes,
)
from apl.store.schema import receipt_name

RECEIPTS_KEPT = 10_000
"""Each new receipt replaces the oldest."""
ERASED = "{}"
"""The value of a receipt that named something forgotten."""
PUT_ROWS = (
    f"INSERT INTO rows (memory, {ROW_CELLS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (memory, id) DO UPDATE SET"
    " label = excluded.label, source = excluded.source, key = excluded.key, count = excluded.count,"
    " has_shares = excluded.has_shares, generation = excluded.generation, checksum = excluded.checksum"
)
PUT_CLASSES = (
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
PUT_RECEIPTS = "INSERT INTO receipts (memory, name, value, generation, checksum) VALUES (?, ?, ?, ?, ?)"


class Writing(Reading):
    """Writes one memory."""

    written: int | None = None
    """The generation of this store's latest write."""

    def _write_in(self, run: Run, write: Write) -> None:
        """Move the memory's record on to a new generation, read what will change, and write. The questions come before the first
        change, so that a connection that pipelines needs two round trips."""
        settings, queries, receipts = dict(write.settings), dict[str, Query](), dict[str, str]()
        if write.remove or write.update:
            queries["rows"] = self._rows_of(write.touched)
        if write.receipts:
            receipts = {receipt_name(key): value for key, value in write.receipts.items()}
            query = f"SELECT name FROM receipts WHERE memory = ? AND name {self.one_of}"
            queries["answered"] = query, (self._memory, self._list(list(receipts)))
        now, found = self._advance(run, settings.pop(STATE_SETTING, None), queries)
        self.written = now
        if answered := found.get("answered"):
            raise AlreadyAnswered(next(key for key in write.receipts if receipt_name(key) == answered[0][0]))
        before, after, shares, payloads = dict[int, Row](), list[Row](), Shares(), bool(write.update)
        for row in write.add:
            after.append(row.written(now))
            if row.shares:
                shares[after[-1].id] = list(row.shares)
            payloads = payloads or row.payload is not None
        if "rows" in found:
            before = {row.id: row for row in self._as_rows(found["rows"])}
            _require_unchanged(write, before)
            after += self._updated(run, write, before, now)
        if write.remove:
            self._remove(run, write.remove, now)
        if after:
            run.executemany(PUT_ROWS, list(map(self._record, after)))
        if payloads:
            self._put_payloads(run, write)
        if shares:
            self._put_shares(run, shares)
        emptied = self._put_classes(run, before.values(), after, now)
        if settings:
            records = [(self._memory, name, value, checksum(name, value)) for name, value in settings.items()]
            run.executemany(PUT_SETTINGS, records)
        if receipts:
            self._put_receipts(run, receipts, now)
        if write.erase is not None:
            self._erase_receipts(run, [*write.erase, *(label[1:] for label in emptied if label[0] == "t")])

    def _record(self, row: Row) -> tuple[object, ...]:
        head = (row.id, label_text(row.label), row.surprise_nats, row.written_at, row.source)
        tail = (row.count, int(row.has_shares), row.generation)
        key = row.key.astype("<f4").tobytes()
        return (self._memory, *head, key if self.takes_bytes else row.key, *tail, row_checksum(*head, key, *tail))

    def _remove(self, run: Run, ids: Sequence[int], generation: int) -> None:
        for table in ("rows", "payloads", "shares"):
            self._delete_of(run, table, ids)
        run.executemany("INSERT INTO removed VALUES (?, ?, ?)", [(self._memory, generation, id) for id in ids])
        forgotten = generation - GENERATIONS_FOLLOWED
        run.execute("DELETE FROM removed WHERE memory = ? AND generation <= ?", (self._memory, forgotten))

    def _delete_of(self, run: Run, table: str, ids: Sequence[int]) -> None:
        if ids:
            run.execute(f"DELETE FROM {table} WHERE memory = ? AND id {self.one_of}", (self._memory, self._list(ids)))

    def _put_payloads(self, run: Run, write: Write) -> None:
        records, rows = [], list[NewRow | RowUpdate](write.add)
        rows += write.update
        for row in rows:
            if isinstance(row.payload, bytes):
                records.append((self._memory, row.id, row.payload, payload_checksum(row.id or 0, row.payload)))
        if write.update:
            self._delete_of(run, "payloads", [change.id for change in write.update if change.payload is None])
        if records:
            run.executemany(PUT_PAYLOADS, records)

    # --- updated rows, and the shares of their sources --------------------------------------------

    def _updated(self, run: Run, write: Write, before: Mapping[int, Row], now: int) -> list[Row]:
        """The updated rows. What sources contribute to them is written."""
        known = self._shares_to_add_to(run, write, before)
        new: Shares = {}
        stale, rows = [], []
        for change in write.update:
            old = before[change.id]
            row, has_shares = change.applied(old, now), old.has_shares
            if write.left is not None:
                has_shares = write.left[row.id] > 1
                stale += [] if has_shares else [row.id]
            elif change.rebuilt:
                new[row.id] = kept_shares(change.shares, row.source)
                has_shares = bool(new[row.id])
                stale.append(row.id)
            elif row.count != old.count and self.keep_sources:
                added = added_shares(old, row, change)
                touched = {share.source for share in added}
                joined = by_source([*known.get(row.id, []), *added]).values()
                new[row.id] = [share for share in joined if share.source in touched]
                has_shares = old.has_shares or bool(added)
            rows.append(row if has_shares == row.has_shares else replace(row, has_shares=has_shares))
        self._delete_of(run, "shares", stale)
        self._put_shares(run, new)
        return rows

    def _shares_to_add_to(self, run: Run, write: Write, before: Mapping[int, Row]) -> Shares:
        """Of the rows that gain examples, the stored shares of those sources that may be among these."""
        if write.left is not None:
            return {}
        growing = [change for change in write.update if before[change.id].has_shares and not change.rebuilt]
        sources = {share.source for change in growing for share in change.shares} | {None}
        ids = [change.id for change in growing]
        return self._as_shares(run.execute(*self._shares_query(ids, list(sources))).fetchall()) if ids else {}

    def _put_shares(self, run: Run, shares: Shares) -> None:
        records = []
        for id, some in shares.items():
            for share in some:
                cells = (id, source_text(share.source), total_bytes(share.total, share.count), share.count)
                records.append((self._memory, *cells, share_checksum(*cells)))
        if records:
            run.executemany(PUT_SHARES, records)

    # --- classes ----------------------------------------------------------------------------------

    def _put_classes(self, run: Run, before: Iterable[Row], after: Iterable[Row], generation: int) -> list[str]:
        """Keep counters and sums of the classes. Returns the labels that no row has any more."""
        records, fewer = [], False
        for label, change in total_changes(before, after, self.metric).items():
            total = change.total.astype("<f8").tobytes() if self.takes_bytes else change.total.tolist()
            records.append((self._memory, label, change.rows, change.examples, total, change.first_id, generation))
            fewer = fewer or change.rows < 0
        if records:
            run.executemany(PUT_CLASSES, records)
        if not fewer:
            return []
        empty = "FROM classes WHERE memory = ? AND rows = 0"
        emptied = [label for (label,) in run.execute(f"SELECT label {empty}", (self._memory,)).fetchall()]
        if emptied:
            run.execute("INSERT INTO removed VALUES (?, ?, ?)", (self._memory, generation, CLASS_GONE))
            run.execute(f"DELETE {empty}", (self._memory,))
        return emptied

    # --- receipts ---------------------------------------------------------------------------------

    def _put_receipts(self, run: Run, receipts: Mapping[str, str], generation: int) -> None:
        cells = [(self._memory, name, value, generation, checksum(name, value)) for name, value in receipts.items()]
        run.executemany(PUT_RECEIPTS, cells)
        # Receipts beyond the limit are those of the generations before that of the oldest one kept.
        run.execute(
            "DELETE FROM receipts WHERE memory = ? AND generation < (SELECT generation FROM receipts"
            " WHERE memory = ? ORDER BY generation DESC LIMIT 1 OFFSET ?)",
            (self._memory, self._memory, RECEIPTS_KEPT - 1),
        )

    def _erase_receipts(self, run: Run, names: Iterable[str]) -> None:
        """Empty the receipts in which a name stands. They stay, so that what they stand for does not happen again."""
        erased = list[tuple[object, ...]]()
        for name in filter(None, names):
            # As the name stands within JSON.
            pattern = "".join(f"^{letter}" if letter in "^%_" else letter for letter in json.dumps(name)[1:-1])
            query = "SELECT name FROM receipts WHERE memory = ? AND value LIKE ? ESCAPE '^'"
            for (key,) in run.execute(query, (self._memory, f"%{pattern}%")).fetchall():
                erased.append((ERASED, checksum(key, ERASED), self._memory, key))
        if erased:
            run.executemany("UPDATE receipts SET value = ?, checksum = ? WHERE memory = ? AND name = ?", erased)


def _require_unchanged(write: Write, found: Mapping[int, Row]) -> None:
    """Refuse a write to rows that do not exist, or that have changed since they were read."""
    for id in write.touched:
        if id not in found:
            raise RowChanged(f"there is no row {id} to replace; nothing was written")
    for change in write.update:
        if change.seen_generation not in (None, found[change.id].generation):
            raise RowChanged(f"row {change.id} has been changed by another process; nothing was written")
