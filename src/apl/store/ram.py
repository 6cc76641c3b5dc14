"""A memory that ends with the process, with the same verbs as those that last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from apl.store.contract import RECEIPTS_KEPT, Store
from apl.store.errors import AlreadyAnswered
from apl.store.rows import Changes, Label, MergedExample, Row, Snapshot, Write, snapshot_of, updated_row

REMOVED_REMEMBERED = 10_000


class RamStore(Store):
    """Rows in a dictionary, in the order of their ids."""

    def __init__(self, name: str, fingerprint: str, width: int) -> None:
        super().__init__(name, fingerprint, width, created=time.time(), read_only=False)
        self._rows: dict[int, Row] = {}
        self._examples: dict[int, tuple[MergedExample, ...]] = {}
        self._changed: dict[int, int] = {}
        """The generation in which a row was last written, or removed."""
        self._known_since = 0
        self._values: dict[str, str] = {}
        self._receipts: dict[str, str] = {}
        self._following_id = 1
        self._writes = 0

    def _write(self, write: Write) -> None:
        for key in write.receipts:
            if key in self._receipts:
                raise AlreadyAnswered(key)
        self._writes += 1
        for id in write.remove:
            del self._rows[id]
            self._examples.pop(id, None)
        for row in sorted(write.add, key=lambda row: row.id):
            self._rows[row.id] = Row(**{name: value for name, value in vars(row).items() if name != "merged"})
            self._examples[row.id] = row.merged
            self._following_id = max(self._following_id, row.id + 1)
        for change in write.update:
            self._rows[change.id] = updated_row(self._rows[change.id], change)
            earlier = () if change.rebuilt else self._examples[change.id]
            self._examples[change.id] = earlier + change.merged
        touched = (*write.remove, *(row.id for row in write.add), *(change.id for change in write.update))
        self._changed |= dict.fromkeys(touched, self._writes)
        if len(self._changed) > 2 * len(self._rows) + REMOVED_REMEMBERED:
            self._changed, self._known_since = {}, self._writes
        self._values |= write.settings
        self._receipts |= write.receipts
        while len(self._receipts) > RECEIPTS_KEPT:
            del self._receipts[next(iter(self._receipts))]

    def _receipt(self, key: str) -> str | None:
        return self._receipts.get(key)

    def _next_id(self) -> int:
        return self._following_id

    def _existing(self, ids: list[int]) -> list[int]:
        return [id for id in ids if id in self._rows]

    def _labelled(self, label: Label) -> list[int]:
        return [id for id, row in self._rows.items() if row.label == label]

    def _from_source(self, source: str) -> list[int]:
        return [id for id, row in self._rows.items() if row.source == source]

    def _merged(self, ids: list[int]) -> dict[int, list[MergedExample]]:
        return {id: list(self._examples[id]) for id in ids if self._examples.get(id)}

    def _merged_from(self, source: str) -> list[int]:
        return [id for id in self._rows if any(example.source == source for example in self._examples[id])]

    def _load(self) -> Snapshot:
        return snapshot_of(list(self._rows.values()), self.width, self._writes)

    def _changes(self, since: int) -> Changes | None:
        if since < self._known_since:
            return None
        touched = [id for id, generation in self._changed.items() if generation > since]
        rows = [self._rows[id] for id in sorted(touched) if id in self._rows]
        return Changes(
            snapshot_of(rows, self.width, self._writes), sorted(id for id in touched if id not in self._rows)
        )

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
