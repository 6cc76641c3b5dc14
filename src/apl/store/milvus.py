"""Memories on a Milvus server, for those who outgrow one machine.

Atomic: rows are inserted with the number of their batch, and count only once the journal says so
(`milvus_journal`). What a writer that died left unfinished is dropped, or finished, when the memory is next
opened for writing; readers never see it. The one exception is the removal of more than 2,000 rows at once,
which goes by blocks of 2,000. A row that is updated is written anew under its id, and its earlier version is removed.
Visible: reads wait until the server has caught up (consistency level Strong).
Durable: as much as the message log of the server is.
One writer: Milvus has no locks. Whoever opens a memory for writing last has it, and the one before is told so
by `StoreBusy` at its next write; until then its copy in RAM may be stale.

Each memory has a collection of its own with a FLAT index, so `nearest` is exact; which of several rows at the
very distance of the last one are returned is left to the server. With `approximate=True` the index is HNSW,
which the server builds for full segments (many thousands of rows) and which misses neighbours there.
Payloads have at most 48 kB. Tested with Milvus 2.3.5.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from apl.store.contract import Store, agree, require_creatable
from apl.store.errors import AlreadyAnswered, NoSuchMemory, StoreBusy, StoreError
from apl.store.milvus_journal import (
    STRONG,
    TEXT_LIMIT,
    Journal,
    MilvusClient,
    Record,
    connect,
    make_ready,
    place,
    plain_errors,
    text_hash,
)
from apl.store.milvus_notes import Notes, notes_of
from apl.store.milvus_rows import collection_name, entity_of, make_rows, row_of
from apl.store.rows import (
    SCHEMA_VERSION,
    Changes,
    Label,
    LabelTotal,
    MemoryInfo,
    MergedExample,
    Row,
    Snapshot,
    Totals,
    Write,
    label_of,
    label_text,
    snapshot_of,
    updated_row,
)

REMOVED_AT_ONCE = 2000
"""So many ids fit into a record of the journal beside the settings."""
INSERT_BYTES = 16 << 20
READ_IDS = 4096
FIRST_COLUMNS = ["id", "label", "surprise_nats", "written_at", "source", "key"]
COLUMNS = [*FIRST_COLUMNS, "count", "extra"]
GENERATIONS_FOLLOWED = 10_000
"""A copy that is further behind has to be loaded anew."""
SWEEP_EVERY = 1000
"""Once in so many writes, removals that are older than that are forgotten."""


def open_milvus(
    address: str, name: str, fingerprint: str | None, width: int | None, read_only: bool, approximate: bool
) -> MilvusStore:
    client = connect(address)
    try:
        with plain_errors(address):
            journal = Journal(client)
            record = journal.newest(name) if journal.exists() else None
            if record is None:
                require_creatable(place(address), name, fingerprint, width, read_only)
                journal.make()
                Notes(client, name).make_ready()
                record = Record(name, fingerprint, width, created=time.time())
                make_rows(client, record, approximate)
                journal.commit(record)
            agree(record.info(rows=0), fingerprint, width)
            if record.schema_version == 1:
                if read_only:
                    raise StoreError(f"memory {name!r} is of an earlier version: open it for writing once")
                record = _brought_up_to_date(client, journal, record, approximate)
            Notes(client, name).make_ready()
            make_ready(client, collection_name(name), "key", "HNSW" if approximate else "FLAT")
            store = MilvusStore(address, client, record, read_only, approximate)
            if not read_only:
                store._take_over()
        return store
    except BaseException:
        client.close()
        raise


def list_milvus(address: str) -> list[MemoryInfo]:
    client = connect(address)
    try:
        with plain_errors(address):
            journal = Journal(client)
            records = journal.memories() if journal.exists() else []
            return [record.info(_count_rows(client, record)) for record in records]
    finally:
        client.close()


def delete_milvus(address: str, name: str) -> None:
    with open_milvus(address, name, None, None, read_only=False, approximate=False) as store:
        store._drop()


def _count_rows(client: MilvusClient, record: Record) -> int:
    filter = f"batch <= {record.batch}"
    if record.removed:
        filter += f" and {_primary(record)} not in {record.removed}"
    name = collection_name(record.memory, record.schema_version)
    return client.query(name, filter, output_fields=["count(*)"], consistency_level=STRONG)[0]["count(*)"]


def _primary(record: Record) -> str:
    return "id" if record.schema_version == 1 else "version"


def _brought_up_to_date(client: MilvusClient, journal: Journal, record: Record, approximate: bool) -> Record:
    """Copy the rows of a memory of the first version, where a row could not be updated, and turn settings into notes."""
    old = collection_name(record.memory, 1)
    make_ready(client, old, "key", "FLAT")
    make_rows(client, record, approximate)
    new = replace(record, schema_version=SCHEMA_VERSION, removed=[], settings={}, known_since=record.batch)
    copied: list[Row] = []
    for start in range(1, record.next_id, READ_IDS):
        within = f"batch <= {record.batch} and id >= {start} and id < {start + READ_IDS}"
        found = client.query(old, within, output_fields=[*FIRST_COLUMNS, "payload"], consistency_level=STRONG)
        rows = [row_of(entity) for entity in found if entity["id"] not in set(record.removed)]
        if rows:
            client.insert(collection_name(record.memory), [entity_of(record.batch, row) for row in rows])
            copied += [replace(row, payload=None) for row in rows]
    notes = Notes(client, record.memory)
    notes.make_ready()
    notes.erase()
    notes.write(notes_of(Write([], [], [], record.settings, {})), record.batch)
    notes.write(notes.changed_totals([], copied, record.width, 0), record.batch)
    new = replace(new, batch=record.batch + 1)
    journal.commit(new)
    client.drop_collection(old)
    return new


class MilvusStore(Store):
    """One memory on a Milvus server."""

    def __init__(self, address: str, client: MilvusClient, record: Record, read_only: bool, approximate: bool) -> None:
        super().__init__(record.memory, record.fingerprint, record.width, record.created, read_only)
        self._address = address
        self._client = client
        self._collection = collection_name(record.memory)
        self._journal = Journal(client)
        self._notes = Notes(client, record.memory)
        self.approximate = approximate
        self._own = record
        """The journal's newest record as a writer knows it; readers ask the server."""
        self._unfinished = False
        self._token = f"apl_writer_{uuid.uuid4().hex}"

    # --- writing ----------------------------------------------------------------------------------

    def _take_over(self) -> None:
        # Aliases of a collection are seen by everybody at once, and cheaply: the writer's token is one.
        for token in self._tokens():
            self._client.drop_alias(token)
        self._client.create_alias(self._collection, self._token)
        recovered = self._recovered(self._current())
        self._own = replace(recovered, batch=recovered.batch + 1, removed=[])
        self._journal.commit(self._own)
        wanted = "HNSW" if self.approximate else "FLAT"
        if self._index_type() != wanted:
            self._client.release_collection(self._collection)
            self._client.drop_index(self._collection, "key")
            make_ready(self._client, self._collection, "key", wanted)

    def _recovered(self, record: Record) -> Record:
        """Drop the rows of a write that never reached the journal; finish the deletions of one that did."""
        torn = self._query(f"batch > {record.batch}", ["version", "id"])
        self._erase([entity["version"] for entity in torn] + record.removed)
        self._notes.drop_after(record.batch)
        return replace(record, next_id=max([record.next_id, *(entity["id"] + 1 for entity in torn)]))

    def _write(self, write: Write) -> None:
        for row in (*write.add, *write.update):
            if isinstance(row.payload, bytes) and len(row.payload) > TEXT_LIMIT // 4 * 3 - 3:
                raise StoreError(f"a payload of {len(row.payload)} bytes is too large for Milvus; nothing was written")
        for key in write.receipts:
            if self._receipt(key) is not None:
                raise AlreadyAnswered(key)
        while len(write.remove) + len(write.update) > REMOVED_AT_ONCE and len(write.remove) > REMOVED_AT_ONCE:
            self._commit(Write(write.remove[:REMOVED_AT_ONCE], [], [], {}, {}))
            write = replace(write, remove=write.remove[REMOVED_AT_ONCE:])
        self._commit(write)

    def _commit(self, write: Write) -> None:
        if self._token not in self._tokens():
            raise StoreBusy(
                f"memory {self.name!r} at {place(self._address)} has since been opened for writing "
                "elsewhere; nothing was written here, open it anew"
            )
        if self._unfinished:
            self._own, self._unfinished = self._recovered(self._current()), False
        changes = {change.id: change for change in write.update}
        touched = sorted({*write.remove, *changes})
        before = self._select(f"id in {touched}", [*COLUMNS, "payload", "version"], self._own) if touched else []
        updated = [updated_row(row_of(e), changes[e["id"]]) for e in before if e["id"] in changes]
        batch = self._own.batch + 1
        self._unfinished = True
        rows = [*write.add, *updated]
        per_call = max(1, INSERT_BYTES // (4 * self.width + TEXT_LIMIT))
        for start in range(0, len(rows), per_call):
            chunk = rows[start : start + per_call]
            self._client.insert(self._collection, [entity_of(batch, row) for row in chunk])
        totals = self._notes.changed_totals([row_of(e) for e in before], rows, self.width, self._own.batch)
        self._notes.write([*notes_of(write), *totals], batch)
        removed = [entity["version"] for entity in before]
        sweeping = batch % SWEEP_EVERY == 0
        record = replace(
            self._own,
            batch=batch,
            next_id=max([self._own.next_id, *(row.id + 1 for row in write.add)]),
            removed=removed,
            known_since=max(self._own.known_since, batch - GENERATIONS_FOLLOWED if sweeping else 0),
        )
        self._journal.commit(record)
        self._erase(removed)
        self._own, self._unfinished = record, False
        self._notes.sweep("setting", write.settings, batch)
        self._notes.sweep("total", {note.name for note in totals}, batch)
        if sweeping:
            self._notes.forget_removed(record.known_since)

    def _tokens(self) -> list[str]:
        return self._client.describe_collection(self._collection)["aliases"]

    def _erase(self, versions: list[int]) -> None:
        if versions:
            self._client.delete(self._collection, ids=versions)

    def _next_id(self) -> int:
        return self._known().next_id

    # --- reading ----------------------------------------------------------------------------------

    def _current(self) -> Record:
        record = self._journal.newest(self.name)
        if record is None:
            raise NoSuchMemory(f"memory {self.name!r} has been deleted from {place(self._address)}")
        return record

    def _known(self) -> Record:
        return self._current() if self.read_only or self._unfinished else self._own

    def _query(self, filter: str, columns: list[str]) -> list[dict[str, Any]]:
        return self._client.query(self._collection, filter, output_fields=columns, consistency_level=STRONG)

    def _select(self, condition: str, columns: list[str], record: Record) -> list[dict[str, Any]]:
        """The rows that count, in the order of their ids."""
        removed = set(record.removed)
        found = self._query(f"batch <= {record.batch} and {condition}", [*columns, "id", "version"])
        return sorted((e for e in found if e["version"] not in removed), key=lambda entity: entity["id"])

    def _scan(self, columns: list[str], record: Record, after: int = 0) -> Iterator[dict[str, Any]]:
        """All rows, a range of ids at a time: a server sends no more than 16,384 rows for one question."""
        for start in range(after + 1, record.next_id, READ_IDS):
            yield from self._select(f"id >= {start} and id < {start + READ_IDS}", columns, record)

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
        return [entity["id"] for entity in islice(self._scan(["id"], self._known(), after), most)]

    def _load(self) -> Snapshot:
        while True:
            record = self._known()
            rows = [row_of(entity) for entity in self._scan(COLUMNS, record)]
            # A reader may have read across a write; then it reads again.
            if not self.read_only or self._known().batch == record.batch:
                break
        return snapshot_of(rows, self.width, record.batch)

    def _changes(self, since: int) -> Changes | None:
        while True:
            record = self._known()
            removed = self._notes.removed(since, record.batch) if since >= record.known_since else None
            if removed is None:
                return None
            found = self._select(f"batch > {since}", COLUMNS, record)
            if not self.read_only or self._known().batch == record.batch:
                return Changes(snapshot_of([row_of(entity) for entity in found], self.width, record.batch), removed)

    def _merged(self, ids: list[int]) -> dict[int, list[MergedExample]]:
        return self._notes.merged(self._existing(ids), self._known().batch, self.width)

    def _merged_from(self, source: str) -> list[int]:
        candidates = self._merged(self._notes.rows_with(source, self._known().batch))
        return [id for id, examples in candidates.items() if any(example.source == source for example in examples)]

    def _receipt(self, key: str) -> str | None:
        return self._notes.receipt(key, self._known().batch)

    def _fetch(self, ids: list[int]) -> list[Row]:
        return [row_of(entity) for entity in self._select(f"id in {ids}", [*COLUMNS, "payload"], self._known())]

    def _totals(self, since: int | None) -> Totals:
        record = self._known()
        found = self._notes.totals(record.batch)
        there = sorted(((total["first"], label, total) for label, total in found.items()), key=lambda entry: entry[:2])
        classes = [
            LabelTotal(
                label_of(label),
                total["rows"],
                total["examples"],
                np.frombuffer(base64.b64decode(total["total"]), "<f8").astype(np.float64),
            )
            for _, label, total in there
            if total["rows"]
        ]
        return Totals(record.batch, classes, complete=True)

    def _recall(self, keys: np.ndarray, k: int) -> list[list[Row]]:
        if not self.approximate and self._index_type() != "FLAT":
            raise StoreError(f"the index of memory {self.name!r} is approximate: open it with approximate=True")
        record = self._known()
        answers = self._client.search(
            self._collection,
            keys.tolist(),
            filter=f"batch <= {record.batch}" + (f" and version not in {record.removed}" if record.removed else ""),
            limit=k,
            output_fields=COLUMNS,
            search_params={"metric_type": "L2", "params": {"ef": max(64, 2 * k)} if self.approximate else {}},
            consistency_level=STRONG,
        )
        return [[row_of(hit["entity"]) for hit in hits] for hits in answers]

    def _index_type(self) -> str:
        return self._client.describe_index(self._collection, "key")["index_type"]

    def _settings(self, key: str | None = None) -> dict[str, str]:
        return self._notes.settings(self._known().batch)

    def _count(self) -> int:
        return _count_rows(self._client, self._known())

    def _generation(self) -> int:
        return self._current().batch

    def _drop(self) -> None:
        with self._using(writing=True):
            self._journal.erase(self.name)
            self._notes.erase()
            self._client.drop_alias(self._token)
            self._client.drop_collection(self._collection)

    def _close(self) -> None:
        self._client.close()

    def _plain_errors(self) -> AbstractContextManager[None]:
        return plain_errors(self._address)
