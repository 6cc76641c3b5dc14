"""A memory that ends with the process, with the same verbs as those that last."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from apl.store.contract import GENERATIONS_FOLLOWED, RECEIPTS_KEPT, Store, require_rows
from apl.store.errors import AlreadyAnswered
from apl.store.rows import Changes, Forgotten, Label, MemoryInfo, Row, Snapshot, SourceShare, Write, updated_row
from apl.store.schema import new_identity
from apl.store.sources import Left, added_shares, by_source, kept_shares, without_source


class RamStore(Store):
    """Rows in a dictionary, in the order of their ids."""

    def __init__(self, name: str, fingerprint: str, width: int, keep_sources: bool = True) -> None:
        info = MemoryInfo(name, fingerprint, width, time.time(), 0, new_identity(), keep_sources)
        super().__init__(info, read_only=False)
        self._rows: dict[int, Row] = {}
        self._row_shares: dict[int, list[SourceShare]] = {}
        self._changed: dict[int, int] = {}
        """The generation in which a row was last written or removed."""
        self._known_since = 0
        self._values: dict[str, str] = {}
        self._receipts: dict[str, str] = {}
        self._next_id = 1
        self._writes = 0

    def _write(self, write: Write) -> None:
        touched = write.touched
        require_rows(touched, self._rows, write.seen)
        for key in write.receipts:
            if key in self._receipts:
                raise AlreadyAnswered(key)
        after = {change.id: updated_row(self._rows[change.id], change) for change in write.update}
        shares = {change.id: self._shares_after(change.id, after[change.id], write) for change in write.update}
        self._writes += 1
        for id in write.remove:
            del self._rows[id]
            self._row_shares.pop(id, None)
        for row in sorted(write.add, key=lambda row: row.id or 0):
            cells = {name: value for name, value in vars(row).items() if name != "shares"}
            self._put(Row(**cells), list(row.shares))
        for id, changed in after.items():
            self._put(changed, shares[id])
        self._changed |= dict.fromkeys((*touched, *(row.id for row in write.add if row.id)), self._writes)
        if len(self._changed) > 2 * len(self._rows) + GENERATIONS_FOLLOWED:
            self._changed, self._known_since = {}, self._writes
        self._values |= write.settings
        self._receipts |= write.receipts
        if write.erase:
            names = [json.dumps(name)[1:-1] for name in write.erase if name]
            self._receipts = {k: v for k, v in self._receipts.items() if not any(name in v for name in names)}
        while len(self._receipts) > RECEIPTS_KEPT:
            del self._receipts[next(iter(self._receipts))]

    def _put(self, row: Row, shares: list[SourceShare]) -> None:
        self._rows[row.id] = replace(row, has_shares=bool(shares), generation=self._writes)
        if shares:
            self._row_shares[row.id] = shares
        else:
            self._row_shares.pop(row.id, None)

    def _shares_after(self, id: int, after: Row, write: Write) -> list[SourceShare]:
        change = next(change for change in write.update if change.id == id)
        if change.rebuilt:
            left = [share for share in self._row_shares.get(id, ()) if share.source != write.forget]
            return kept_shares(change.shares if write.forget is None else left, after.source)
        added = added_shares(self._rows[id], after, change) if self.keep_sources else []
        return list(by_source([*self._row_shares.get(id, ()), *added]).values())

    def _forget_source(self, source: str, settings: dict[str, str]) -> Forgotten:
        gone, rebuilt = [], []
        for id in self._rows_of_source(source):
            left = [share for share in self._row_shares.get(id, ()) if share.source != source]
            change = without_source(self._rows[id], Left.of(left), source)
            if change is None:
                gone.append(id)
            else:
                rebuilt.append(change)
        if gone or rebuilt:
            self._write(Write(gone, [], rebuilt, settings, erase=(source,), forget=source))
        return Forgotten(gone, [change.id for change in rebuilt])

    def _receipt(self, key: str) -> str | None:
        return self._receipts.get(key)

    def _reserve(self, count: int) -> int:
        self._next_id += count
        return self._next_id - count

    def _existing(self, ids: list[int]) -> list[int]:
        return [id for id in ids if id in self._rows]

    def _labelled(self, label: Label) -> list[int]:
        return [id for id, row in self._rows.items() if row.label == label]

    def _shares(self, ids: list[int]) -> dict[int, list[SourceShare]]:
        return {id: list(self._row_shares[id]) for id in ids if id in self._row_shares}

    def _rows_of_source(self, source: str) -> list[int]:
        parts = {id for id, shares in self._row_shares.items() if any(share.source == source for share in shares)}
        return [id for id, row in self._rows.items() if row.source == source or id in parts]

    def _sources(self) -> list[tuple[str, Label]]:
        own = {(row.source, row.label) for row in self._rows.values()}
        parts = {(share.source, self._rows[id].label) for id, shares in self._row_shares.items() for share in shares}
        return [(source, label) for source, label in own | parts if source is not None]

    def _load(self) -> Snapshot:
        return Snapshot.of(list(self._rows.values()), self.width, self._writes)

    def _changes(self, since: int) -> Changes | None:
        if since < self._known_since:
            return None
        touched = sorted(id for id, generation in self._changed.items() if generation > since)
        rows = [self._rows[id] for id in touched if id in self._rows]
        return Changes(Snapshot.of(rows, self.width, self._writes), [id for id in touched if id not in self._rows])

    def _ids(self, after: int = 0, most: int | None = None) -> list[int]:
        return [id for id in self._rows if id > after][:most]

    def _fetch(self, ids: list[int]) -> list[Row]:
        return [self._rows[id] for id in self._existing(ids)]

    def _settings(self, key: str | None = None) -> dict[str, str]:
        return dict(self._values)

    def _count(self) -> int:
        return len(self._rows)

    def _generation(self) -> int:
        return self._writes

    def _close(self) -> None:
        self._rows.clear()

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        yield
