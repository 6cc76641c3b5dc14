"""Memories on a Milvus server, for those who outgrow one machine.

Atomic: rows are inserted with the number of their batch, and count only once the journal says so
(`milvus_journal`). What a writer that died left unfinished is void, and dropped by whoever writes next;
readers never see it. The one exception is the removal of more than 2,000 rows at once,
which goes by blocks of 2,000. A row that is updated is written anew under its id, and its earlier version is removed.
Visible: reads wait until the server has caught up (consistency level Strong).
Durable: as much as the message log of the server is.
Alone or shared: writers take turns (`milvus_turn`). Alone, whoever opens a memory for writing last has it, and the one
before is told so by `StoreBusy` at its next write; until then its copy in RAM may be stale. Shared, any number of processes
write, one transaction at a time; a row that two of them update at once is updated by one, and the other is told
(`RowChanged`) if it said what it had seen.

Each memory has a collection of its own with a FLAT index, so `recall` is exact. With `approximate=True` the index is
HNSW, which the server builds for full segments (many thousands of rows) and which misses neighbours there.
Payloads have at most 48 kB. Tested with Milvus 2.3.5.
"""

from __future__ import annotations

import time
from dataclasses import replace

from apl.config import Metric
from apl.store.contract import agree, require_creatable
from apl.store.errors import StoreError
from apl.store.milvus_journal import (
    STRONG,
    Journal,
    MilvusClient,
    Record,
    connect,
    make_ready,
    place,
    plain_errors,
)
from apl.store.milvus_notes import Notes, notes_of
from apl.store.milvus_rows import collection_name, entity_of, make_rows, row_of
from apl.store.milvus_store import FIRST_COLUMNS, READ_IDS, MilvusStore, count_rows
from apl.store.milvus_turn import LEASE_SECONDS, POLL_SECONDS, Turn
from apl.store.rows import (
    SCHEMA_VERSION,
    MemoryInfo,
    Row,
    Write,
)


def open_milvus(
    address: str,
    name: str,
    fingerprint: str | None,
    width: int | None,
    read_only: bool,
    approximate: bool,
    shared: bool = False,
    metric: Metric | None = None,
) -> MilvusStore:
    client = connect(address)
    try:
        with plain_errors(address):
            journal = Journal(client)
            record = journal.newest(name) if journal.exists() else None
            if record is None:
                require_creatable(place(address), name, fingerprint, width, read_only)
                record = _made(client, journal, Record(name, fingerprint, width, created=time.time()))
            agree(record.info(rows=0), fingerprint, width)
            if record.schema_version == 1:
                if read_only:
                    raise StoreError(f"memory {name!r} is of an earlier version: open it for writing once")
                record = _brought_up_to_date(client, journal, record)
            Notes(client, name).make_ready()
            store = MilvusStore(address, client, record, read_only, approximate, shared)
            store._open(metric)
        return store
    except BaseException:
        client.close()
        raise


def _made(client: MilvusClient, journal: Journal, record: Record) -> Record:
    """A new memory, or the one that somebody else is making at this moment."""
    journal.make()
    Notes(client, record.memory).make_ready()
    deadline = time.monotonic() + LEASE_SECONDS
    while not make_rows(client, record):
        while time.monotonic() < deadline:
            if (found := journal.newest(record.memory)) is not None:
                return found
            time.sleep(POLL_SECONDS)
        # Left behind by somebody who died before the journal knew of it.
        client.drop_collection(collection_name(record.memory))
    turn = Turn(client, collection_name(record.memory), record.memory)
    turn.drop()
    turn.make()
    journal.commit(record)
    return record


def list_milvus(address: str) -> list[MemoryInfo]:
    client = connect(address)
    try:
        with plain_errors(address):
            journal = Journal(client)
            records = journal.memories() if journal.exists() else []
            return [record.info(count_rows(client, record)) for record in records]
    finally:
        client.close()


def delete_milvus(address: str, name: str) -> None:
    with open_milvus(address, name, None, None, read_only=False, approximate=False) as store:
        store._drop()


def _brought_up_to_date(client: MilvusClient, journal: Journal, record: Record) -> Record:
    """Copy the rows of a memory of the first version, where a row could not be updated, and turn settings into notes."""
    old = collection_name(record.memory, 1)
    make_ready(client, old, "key")
    if client.has_collection(collection_name(record.memory)):
        # Left behind by somebody who died half way.
        client.drop_collection(collection_name(record.memory))
    make_rows(client, record)
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
    notes.write(notes.changed_totals([], copied, record, "euclidean"), record.batch)
    new = replace(new, batch=record.batch + 1)
    journal.commit(new)
    client.drop_collection(old)
    return new
