"""A memory that ends with the process, with the same verbs as those that last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from apl.store.contract import Store
from apl.store.rows import Label, NewRow, Row, Snapshot


class RamStore(Store):
    """Rows in a dictionary, in the order of their ids."""

    def __init__(self, name: str, fingerprint: str, width: int) -> None:
        super().__init__(name, fingerprint, width, created=time.time(), read_only=False)
        self._rows: dict[int, Row] = {}
        self._values: dict[str, str] = {}
        self._next_id = 1
        self._writes = 0

    def _write(self, remove: list[int], add: list[NewRow], settings: dict[str, str]) -> list[int]:
        for id in remove:
            del self._rows[id]
        ids = list(range(self._next_id, self._next_id + len(add)))
        for id, row in zip(ids, add, strict=True):
            self._rows[id] = Row(id, **vars(row))
        self._next_id += len(add)
        self._values |= settings
        self._writes += 1
        return ids

    def _existing(self, ids: list[int]) -> list[int]:
        return [id for id in ids if id in self._rows]

    def _labelled(self, label: Label) -> list[int]:
        return [id for id, row in self._rows.items() if row.label == label]

    def _from_source(self, source: str) -> list[int]:
        return [id for id, row in self._rows.items() if row.source == source]

    def _load(self) -> Snapshot:
        rows = self._rows.values()
        return Snapshot(
            ids=np.fromiter(self._rows, np.int64, len(rows)),
            keys=np.array([row.key for row in rows], np.float32).reshape(len(rows), self.width),
            labels=[row.label for row in rows],
            surprise_nats=np.array([row.surprise_nats for row in rows], np.float64),
            written_at=np.array([row.written_at for row in rows], np.float64),
            sources=[row.source for row in rows],
            generation=self._writes,
        )

    def _ids(self) -> list[int]:
        return list(self._rows)

    def _fetch(self, ids: list[int]) -> list[Row]:
        return [self._rows[id] for id in self._existing(ids)]

    def _settings(self) -> dict[str, str]:
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
