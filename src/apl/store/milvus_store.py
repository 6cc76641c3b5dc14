"""One memory on Milvus at work: its writes, which are transactions of our own making, and its reads (`milvus`)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np

from apl.config import Metric
from apl.store.contract import METRIC_SETTING, SPARE, Store
from apl.store.errors import AlreadyAnswered, NoSuchMemory, RowChanged, StoreBusy, StoreError
from apl.store.milvus_journal import (
    METRICS,
    STRONG,
    TEXT_LIMIT,
    Journal,
    MilvusClient,
    MilvusException,
    Record,
    RpcError,
    make_ready,
    place,
    plain_errors,
    text_hash,
)
from apl.store.milvus_notes import EVERY, Kind, Note, Notes, notes_of, total_notes
from apl.store.milvus_rows import collection_name, entity_of, row_of
from apl.store.milvus_turn import Turn
from apl.store.rows import (
    Changes,
    Label,
    LabelTotal,
    MergedExample,
    Row,
    Snapshot,
    Totals,
    Write,
    label_of,
    label_text,
    snapshot_of,
    total_changes,
    updated_row,
)

REMOVED_AT_ONCE = 2000
"""So many ids fit into a record of the journal beside the settings."""
INSERT_BYTES = 16 << 20
READ_IDS, FEWEST_IDS = 4096, 256
"""A range of ids to read at once. There may be gaps: who wants few rows begins with a short one."""
FIRST_COLUMNS = ["id", "label", "surprise_nats", "written_at", "source", "key"]
COLUMNS = [*FIRST_COLUMNS, "count", "extra"]
GENERATIONS_FOLLOWED = 10_000
"""A copy that is further behind has to be loaded anew."""
IDS_RESERVED = 100
"""So many ids are reserved at a time where several write: a turn for each would cost too much."""
VOID_KEPT = 100
"""So many void batches are remembered."""
EF_SEARCH, EF_WIDE = 64, 32_768
"""How many rows a search through the index keeps in view, and the most the server allows."""
SWEEP_NOTES = 8
"""Once in so many writes, notes that newer ones have replaced are deleted."""
SWEPT_AT_ONCE = 100
"""After a write that changed more classes than this, that is done at once: whoever opens the memory reads them all."""
SWEEP_EVERY = 1000
"""Once in so many writes, removals that are older than that are forgotten."""


def count_rows(client: MilvusClient, record: Record) -> int:
    filter = record.counted()
    if record.removed:
        filter += f" and {_primary(record)} not in {record.removed}"
    name = collection_name(record.memory, record.schema_version)
    return client.query(name, filter, output_fields=["count(*)"], consistency_level=STRONG)[0]["count(*)"]


def _primary(record: Record) -> str:
    return "id" if record.schema_version == 1 else "version"


class MilvusStore(Store):
    """One memory on a Milvus server."""

    tells_generation = True

    def __init__(
        self, address: str, client: MilvusClient, record: Record, read_only: bool, approximate: bool, shared: bool
    ) -> None:
        super().__init__(record.memory, record.fingerprint, record.width, record.created, read_only)
        self._address = address
        self._client = client
        self._collection = collection_name(record.memory)
        self._journal = Journal(client)
        self._notes = Notes(client, record.memory)
        self._turn = Turn(client, self._collection, record.memory)
        self.approximate = approximate
        self.shared = shared
        self._own = record
        """The journal's newest record as last seen; true for as long as the memory is ours alone."""
        self._unfinished = False
        self._searchable = True
        self._replaced: dict[Kind, set[str]] = {"setting": set(), "total": set()}
        self._ids_kept = range(0)
        """Reserved, and not given out yet."""
        self._beside = ThreadPoolExecutor(1)
        """Reads the journal while the rows are searched: each waits for the server to catch up, better at once."""

    def _open(self, metric: Metric | None) -> None:
        self.metric = json.loads(self._notes.settings(self._own).get(METRIC_SETTING, '"euclidean"'))
        metric = metric or self.metric
        wanted = ("HNSW" if self.approximate else "FLAT", METRICS[metric])
        make_ready(self._client, self._collection, "key", wanted[0], metric)
        self._own_index = self._index()
        if self.read_only:
            self._searchable = self._own_index == wanted
            return
        if not self.shared:
            self._turn.take_alone()
            self._own = self._recovered(self._current())
        elif self._turn.is_held_alone():
            with self._writing(by_force=True):
                """Whoever opens a memory last has it, and shares it from now on."""
        if self._own_index != wanted or metric != self.metric:
            with self._writing(by_force=True) as record:
                self._search_by(record, wanted, metric)
            self._own_index = self._index()

    # --- writing ----------------------------------------------------------------------------------

    @contextmanager
    def _writing(self, by_force: bool = False) -> Iterator[Record]:
        """Nobody else writes meanwhile. Gives the journal's newest record."""
        if not self.shared:
            if not self._turn.is_mine():
                raise StoreBusy(
                    f"memory {self.name!r} at {place(self._address)} has since been opened for writing "
                    "elsewhere; nothing was written here, open it anew"
                )
            if self._unfinished:
                self._own, self._unfinished = self._recovered(self._current()), False
            yield self._own
            return
        taken_over = self._turn.take(by_force)
        # If the following fails, the turn is not given back: whoever takes it over cleans up first.
        self._own = self._recovered(self._current()) if taken_over else self._current()
        try:
            yield self._own
        except BaseException:
            if self._unfinished:
                self._recovered(self._current())
            self._turn.give_back()
            raise
        self._turn.give_back()

    def _recovered(self, record: Record) -> Record:
        """Declare void, and drop, what was written by one who never reached the journal; finish the deletions of one
        who did."""
        torn = self._query(f"batch > {record.batch} or batch in {record.void or [-1]}", ["version", "id"])
        self._erase([entity["version"] for entity in torn] + record.removed)
        self._notes.drop_after(record.batch)
        recovered = replace(
            record,
            batch=record.batch + 2,
            void=[*record.void, record.batch + 1][-VOID_KEPT:],
            removed=[],
            next_id=max([record.next_id, *(entity["id"] + 1 for entity in torn)]),
        )
        self._journal.commit(recovered)
        return recovered

    def _search_by(self, record: Record, index: tuple[str, str], metric: Metric) -> None:
        """Another index, and totals of classes by another metric."""
        if self._index() != index:
            self._client.release_collection(self._collection)
            self._client.drop_index(self._collection, "key")
            make_ready(self._client, self._collection, "key", index[0], metric)
        if metric == self.metric:
            return
        changes: dict[str, tuple[int, int, np.ndarray, int]] = {}
        for entity in self._scan(COLUMNS, record):
            for label, (rows, examples, total, first) in total_changes(
                [], [row_of(entity)], self.width, metric
            ).items():
                before = changes.get(label, (0, 0, 0.0, first))
                changes[label] = (before[0] + rows, before[1] + examples, before[2] + total, before[3])
        notes = [note for label, change in changes.items() for note in total_notes(label, change)]
        setting = Write([], [], [], {METRIC_SETTING: json.dumps(metric)}, {})
        self._finish(record, setting, [], [*notes_of(setting), *notes], set(changes))
        self.metric = metric

    def _write(self, write: Write) -> None:
        for row in (*write.add, *write.update):
            if isinstance(row.payload, bytes) and len(row.payload) > TEXT_LIMIT // 4 * 3 - 3:
                raise StoreError(f"a payload of {len(row.payload)} bytes is too large for Milvus; nothing was written")
        while len(write.remove) + len(write.update) > REMOVED_AT_ONCE and len(write.remove) > REMOVED_AT_ONCE:
            with self._writing() as record:
                self._commit(record, Write(write.remove[:REMOVED_AT_ONCE], [], [], {}, {}, write.seen))
            write = replace(write, remove=write.remove[REMOVED_AT_ONCE:])
        with self._writing() as record:
            self._commit(record, write)

    def _commit(self, record: Record, write: Write) -> None:
        for key in self._notes.receipts(write.receipts, record):
            raise AlreadyAnswered(key)
        changes = {change.id: change for change in write.update}
        touched = sorted({*write.remove, *changes})
        before = self._select(f"id in {touched}", [*COLUMNS, "payload", "version"], record) if touched else []
        if len(before) < len(touched):
            gone = min(set(touched) - {entity["id"] for entity in before})
            raise RowChanged(f"memory {self.name!r} has no row {gone} to replace; nothing was written")
        old = [row_of(entity) for entity in before]
        for row in old:
            if write.seen.get(row.id, row.count) != row.count:
                raise RowChanged(f"row {row.id} has been changed by somebody else; nothing was written")
        rows = [*write.add, *(updated_row(row, changes[row.id]) for row in old if row.id in changes)]
        totals = self._notes.changed_totals(old, rows, record, self.metric)
        removed = [entity["version"] for entity in before]
        self._unfinished = True
        entities, size = [], 0
        for row in rows:
            entities.append(entity_of(record.batch + 1, row))
            size += 4 * self.width + 512 + len(entities[-1]["payload"])
            if size > INSERT_BYTES:
                self._turn.renew()
                self._client.insert(self._collection, entities)
                entities, size = [], 0
        if entities:
            self._client.insert(self._collection, entities)
        self._finish(record, write, removed, [*notes_of(write), *totals], {note.name for note in totals})

    def _finish(self, record: Record, write: Write, removed: list[int], notes: list[Note], labels: set[str]) -> None:
        """Write the notes, then the record that makes it all count, then tidy up."""
        self._unfinished = True
        batch = record.batch + 1
        self._notes.write(notes, batch)
        sweeping = batch % SWEEP_EVERY == 0
        record = replace(
            record,
            batch=batch,
            next_id=max([record.next_id, *(row.id + 1 for row in write.add)]),
            removed=removed,
            known_since=max(record.known_since, batch - GENERATIONS_FOLLOWED if sweeping else 0),
        )
        self._turn.renew()
        self._journal.commit(record)
        if not self._turn.is_mine() and not self._current().is_counted(batch):
            raise StoreBusy(f"the write to memory {self.name!r} took too long and was given up; nothing was written")
        self._erase(removed)
        self._own, self._unfinished = record, False
        self._replaced["setting"].update(write.settings)
        self._replaced["total"].update(labels)
        if batch % SWEEP_NOTES == 0 or len(labels) > SWEPT_AT_ONCE:
            for kind, names in self._replaced.items():
                self._notes.sweep(kind, names, batch)
                names.clear()
        if sweeping:
            self._notes.forget_old(record.known_since)

    def _erase(self, versions: list[int]) -> None:
        if versions:
            self._client.delete(self._collection, ids=versions)

    def _reserve(self, count: int) -> int:
        if not self.shared:
            return super()._reserve(count)
        if len(self._ids_kept) < count:
            wanted = max(count, IDS_RESERVED)
            with self._writing() as record:
                self._unfinished = True
                self._own = replace(record, batch=record.batch + 1, next_id=record.next_id + wanted, removed=[])
                self._journal.commit(self._own)
                self._unfinished = False
            self._ids_kept = range(record.next_id, record.next_id + wanted)
        first, self._ids_kept = self._ids_kept.start, self._ids_kept[count:]
        return first

    def _next_id(self) -> int:
        return self._known().next_id

    # --- reading ----------------------------------------------------------------------------------

    def _current(self) -> Record:
        record = self._journal.newest(self.name)
        if record is None:
            raise NoSuchMemory(f"memory {self.name!r} has been deleted from {place(self._address)}")
        return record

    def _known(self) -> Record:
        if self.read_only or self.shared or self._unfinished:
            self._own = self._current()
        return self._own

    def _query(self, filter: str, columns: list[str]) -> list[dict[str, Any]]:
        return self._client.query(self._collection, filter, output_fields=columns, consistency_level=STRONG)

    def _select(self, condition: str, columns: list[str], record: Record) -> list[dict[str, Any]]:
        """The rows that count, in the order of their ids."""
        removed = set(record.removed)
        found = self._query(f"{record.counted()} and {condition}", [*columns, "id", "version"])
        return sorted((e for e in found if e["version"] not in removed), key=lambda entity: entity["id"])

    def _scan(
        self, columns: list[str], record: Record, after: int = 0, most: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """All rows, or so many, a range of ids at a time: a server sends no more than 16,384 rows for one question."""

        def blocks() -> Iterator[list[dict[str, Any]]]:
            start, at_once = after + 1, min(READ_IDS, max(most or READ_IDS, FEWEST_IDS))
            while start < record.next_id:
                yield self._select(f"id >= {start} and id < {start + at_once}", columns, record)
                start, at_once = start + at_once, min(READ_IDS, 2 * at_once)

        return islice(chain.from_iterable(blocks()), most)

    def _existing(self, ids: list[int]) -> list[int]:
        record, found = self._known(), []
        for start in range(0, len(ids), READ_IDS):
            found += self._select(f"id in {ids[start : start + READ_IDS]}", ["id"], record)
        return [entity["id"] for entity in found]

    def _labelled(self, label: Label) -> list[int]:
        return self._matching("label", label_text(label))

    def _from_source(self, source: str) -> list[int]:
        return self._matching("source", f"={source}")

    def _matching(self, column: str, text: str) -> list[int]:
        record, found = self._known(), []
        for start in range(1, record.next_id, READ_IDS):
            within = f"{column}_hash == {text_hash(text)} and id >= {start} and id < {start + READ_IDS}"
            found += self._select(within, [column], record)
        return [entity["id"] for entity in found if entity[column] == text]

    def _ids(self, after: int = 0, most: int | None = None) -> list[int]:
        return [entity["id"] for entity in self._scan(["id"], self._known(), after, most)]

    def _oldest(self, most: int) -> Snapshot:
        record = self._known()
        found = self._scan(COLUMNS, record, most=most)
        return snapshot_of([row_of(entity) for entity in found], self.width, record.batch)

    def _load(self) -> Snapshot:
        while True:
            record = self._known()
            rows = [row_of(entity) for entity in self._scan(COLUMNS, record)]
            # Somebody may have written meanwhile; then this is read again.
            if self._known().batch == record.batch:
                break
        return snapshot_of(rows, self.width, record.batch)

    def _changes(self, since: int) -> Changes | None:
        while True:
            record = self._known()
            removed = self._notes.removed(since, record) if since >= record.known_since else None
            if removed is None:
                return None
            found = self._select(f"batch > {since}", COLUMNS, record)
            if self._known().batch == record.batch:
                return Changes(snapshot_of([row_of(entity) for entity in found], self.width, record.batch), removed)

    def _merged(self, ids: list[int]) -> dict[int, list[MergedExample]]:
        return self._notes.merged(self._existing(ids), self._known(), self.width)

    def _merged_from(self, source: str) -> list[int]:
        candidates = self._merged(self._notes.rows_with(source, self._known()))
        return [id for id, examples in candidates.items() if any(example.source == source for example in examples)]

    def _receipt(self, key: str) -> str | None:
        return self._notes.receipts([key], self._own).get(key)

    def _fetch(self, ids: list[int]) -> list[Row]:
        return [row_of(entity) for entity in self._select(f"id in {ids}", [*COLUMNS, "payload"], self._known())]

    def _totals(self, since: int | None) -> Totals:
        # If any of them is newer than this record, that is found out there.
        record = self._own
        found = self._notes.totals(record, EVERY if since is None else f"batch > {since}")
        classes = [
            LabelTotal(
                label_of(label),
                total["rows"],
                total["examples"],
                np.frombuffer(base64.b64decode(total["total"]) or bytes(8 * self.width), "<f8").astype(np.float64),
            )
            for label, total in sorted(found.items(), key=lambda entry: (entry[1]["first"], entry[0]))
            if total["rows"] or since is not None
        ]
        return Totals(record.batch, classes, complete=since is None)

    def _recall(self, keys: np.ndarray, k: int) -> list[list[Row]]:
        if not self._searchable:
            raise StoreError(f"memory {self.name!r} is searched in another way: open it so for writing once")
        # No condition: who counts is decided here, so that a row that is just being updated is found in one version or
        # the other.
        shared = self.shared or self.read_only
        newest = self._beside.submit(self._current) if shared else None
        hits = self._search(keys, k, "")
        if newest is not None:
            self._own = newest.result()
        if any(hit["batch"] > self._own.batch for near in hits for hit in near):
            self._own = self._current()
        record, removed = self._own, set(self._own.removed)
        found = []
        for near in hits:
            there = [hit for hit in near if record.is_counted(hit["batch"]) and hit["version"] not in removed]
            latest = {hit["id"]: hit for hit in sorted(there, key=lambda hit: hit["batch"])}
            found.append([row_of(hit) for hit in latest.values()])
        if any(len(rows) < len(near) - SPARE for rows, near in zip(found, hits, strict=True)):
            without = f" and version not in {record.removed}" if record.removed else ""
            return [[row_of(hit) for hit in near] for near in self._search(keys, k, record.counted() + without)]
        return found

    def _recalled_at(self) -> int:
        return self._own.batch

    def _has_index(self) -> bool:
        return self._index()[0] == "HNSW"

    def _compared(self, key: np.ndarray, k: int) -> tuple[list[Row], list[Row]]:
        # A graph that is searched hundreds of times as widely misses next to nothing.
        wide, found = (self._search(key[None], k, "", ef)[0] for ef in (EF_WIDE, max(EF_SEARCH, 2 * (k + SPARE))))
        return [row_of(hit) for hit in wide], [row_of(hit) for hit in found]

    def _search(self, keys: np.ndarray, k: int, filter: str, ef: int | None = None) -> list[list[dict[str, Any]]]:
        answers = self._client.search(
            self._collection,
            keys.tolist(),
            filter=filter,
            limit=k,
            output_fields=[*COLUMNS, "batch", "version"],
            search_params={
                "metric_type": METRICS[self.metric],
                "params": {"ef": ef or max(EF_SEARCH, 2 * k)} if self._own_index[0] == "HNSW" else {},
            },
            consistency_level=STRONG,
        )
        return [[hit["entity"] for hit in hits] for hits in answers]

    def _index(self) -> tuple[str, str]:
        """Its type and its metric."""
        index = self._client.describe_index(self._collection, "key")
        return index["index_type"], index["metric_type"]

    def _settings(self, key: str | None = None) -> dict[str, str]:
        return self._notes.settings(self._own, key)

    def _count(self) -> int:
        return count_rows(self._client, self._known())

    def _generation(self) -> int:
        return self._known().batch

    def _drop(self) -> None:
        with self._using(writing=True):
            self._journal.erase(self.name)
            self._notes.erase()
            self._turn.drop()
            self._client.drop_collection(self._collection)

    def _close(self) -> None:
        if not self.read_only and not self.shared and not self._unfinished:
            with suppress(MilvusException, RpcError):
                if self._turn.is_mine():
                    self._turn.give_back()
        self._beside.shutdown()
        self._client.close()

    def _plain_errors(self) -> AbstractContextManager[None]:
        return plain_errors(self._address)
