"""Memories on a PostgreSQL server with the `vector` extension (pgvector), for several machines.

The tables live in the schema `apl` of the database and hold any number of memories. A write is one
transaction with `synchronous_commit`.

Alone or shared: by default a writer has its memory alone, by an advisory lock that lasts as long as its connection.
With `shared=True` any number of processes write it at once: transactions of one memory queue up at its record in
`apl.memories`, so generations are in the order of commits, nothing is lost and no half of a write is seen. A row that
two of them update at once is updated by one; the other is told (`RowChanged`) if it said what it had seen.

A connection that was lost is made anew at the next call; until the server answers, calls raise `StoreAway`.

`nearest` searches on the server and is exact. With `approximate=True` it goes through an HNSW index, made
when the memory is first opened so for writing: faster on a large memory, and it misses neighbours (docs/SCALE.md).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np

from apl.config import Metric
from apl.store.contract import METRIC_SETTING, ROWS_PER_BLOCK, Store, agree, require_creatable
from apl.store.errors import NoSuchMemory, StoreAway, StoreBusy, StoreError
from apl.store.postgres_database import (
    HNSW_WIDEST,
    bring_up_to_date,
    connect,
    create_memory,
    find_memory,
    index_name,
    leave_pool,
    list_all,
    lock_for_writing,
    make_index,
    place,
    plain_errors,
    pool_for,
    psycopg,
    require_up_to_date,
    schema_version,
    share_for_writing,
    sql,
)
from apl.store.postgres_write import PostgresTransaction
from apl.store.rows import (
    Changes,
    Label,
    LabelTotal,
    MemoryInfo,
    MergedExample,
    Row,
    Snapshot,
    Totals,
    Write,
    key_of,
    label_of,
    snapshot_of,
)

OPERATORS: dict[Metric, str] = {"euclidean": "<->", "cosine": "<=>"}
RETRY_AFTER_SECONDS = 0.5
"""A server that did not answer is left alone for so long."""
# vector_send gives a key's bytes as they are: much faster than turning every number into text and back.
CELLS = "id, label_text, label_integer, surprise_nats, written_at, source, vector_send(key), {payload}, count, extra"


def open_postgres(
    url: str,
    name: str,
    fingerprint: str | None,
    width: int | None,
    read_only: bool,
    timeout: float,
    approximate: bool,
    shared: bool = False,
    metric: Metric | None = None,
) -> PostgresStore:
    if approximate and width is not None and width > HNSW_WIDEST:
        raise StoreError(f"pgvector can index at most {HNSW_WIDEST} numbers a key, these have {width}")
    connection = connect(url, read_only)
    try:
        with plain_errors(url):
            version = schema_version(connection, url)
            found = find_memory(connection, name) if version is not None else None
            if found is None:
                require_creatable(place(url), name, fingerprint, width, read_only)
            if read_only:
                require_up_to_date(version, url)
            else:
                bring_up_to_date(connection, url)
                if found is None:
                    create_memory(connection, name, fingerprint, width)
                    found = find_memory(connection, name)
            info, memory = found
            agree(info, fingerprint, width)
            if not read_only and not shared:
                lock_for_writing(connection, url, name, memory, timeout)
            kept = connection.execute(
                "SELECT value FROM apl.settings WHERE memory = %s AND key = %s", (memory, METRIC_SETTING)
            ).fetchone()
            kept = json.loads(kept[0]) if kept else "euclidean"
            if not read_only and approximate:
                make_index(connection, memory, info.width, metric or kept)
        store = PostgresStore(url, connection, info, memory, read_only, approximate, shared)
        store.metric = kept
        if metric is not None and metric != kept:
            with store._using(writing=True):
                store._sum_anew(metric)
        return store
    except BaseException:
        connection.close()
        raise


def list_postgres(url: str) -> list[MemoryInfo]:
    with connect(url, read_only=True) as connection, plain_errors(url):
        version = schema_version(connection, url)
        if version is None:
            return []
        require_up_to_date(version, url)
        return list_all(connection)


def delete_postgres(url: str, name: str) -> None:
    with open_postgres(url, name, None, None, read_only=False, timeout=0.0, approximate=False) as store:
        store._drop()


class PostgresStore(Store):
    """One memory on a PostgreSQL server."""

    def __init__(
        self,
        url: str,
        connection: psycopg.Connection[Any],
        info: MemoryInfo,
        memory: int,
        read_only: bool,
        approximate: bool,
        shared: bool,
    ) -> None:
        super().__init__(info.name, info.fingerprint, info.width, info.created, read_only)
        self.shared = shared
        self.approximate = approximate
        self._url = url
        self._connection = connection
        self._memory = memory
        self._written: int | None = None
        self._away_until = 0.0
        self._pool = pool_for(url) if shared else None
        if shared:
            connection.close()

    @contextmanager
    def _session(self) -> Iterator[psycopg.Connection[Any]]:
        if self._pool is not None:
            with self._pool.connection() as connection:
                yield connection
            return
        if self._connection.closed:
            self._reconnect()
        yield self._connection

    def _reconnect(self) -> None:
        if time.monotonic() < self._away_until:
            raise StoreAway(f"{place(self._url)} does not answer: try again soon")
        try:
            self._connection = connect(self._url, self.read_only)
        except StoreAway:
            self._away_until = time.monotonic() + RETRY_AFTER_SECONDS
            raise
        if not self.read_only:
            try:
                lock_for_writing(self._connection, self._url, self.name, self._memory, 0.0)
                query = "SELECT generation FROM apl.memories WHERE id = %s"
                now = self._found(self._connection.execute(query, (self._memory,)).fetchone())[0]
                if self._written is not None and now != self._written:
                    raise StoreBusy(f"memory {self.name!r} was written by somebody else meanwhile: open it anew")
            except BaseException:
                self._connection.close()
                raise

    # --- writing ----------------------------------------------------------------------------------

    def _write(self, write: Write) -> None:
        touched = sorted({*write.remove, *(change.id for change in write.update)})
        next_id = max((row.id + 1 for row in write.add), default=1)
        with self._session() as connection, connection.transaction(), connection.cursor(binary=True) as run:
            if self.shared:
                share_for_writing(connection, self._url, self.name, self._memory)
            transaction = PostgresTransaction(run, self._memory, self.width, self.metric, next_id)
            transaction.write(write, self._rows(run, "AND id = ANY(%s)", touched) if touched else [])
        self._written = transaction.generation

    def _sum_anew(self, metric: Metric) -> None:
        """Work out the totals of classes by another metric, and keep them by that."""
        self.metric = metric
        with self._session() as connection, connection.transaction(), connection.cursor(binary=True) as run:
            transaction = PostgresTransaction(run, self._memory, self.width, metric)
            run.execute("UPDATE apl.classes SET rows = 0, examples = 0 WHERE memory = %s", (self._memory,))
            last = 0
            while rows := self._rows(run, "AND id > %s", last, most=ROWS_PER_BLOCK):
                transaction.put_totals([], rows)
                last = rows[-1].id
            transaction.put_settings({METRIC_SETTING: json.dumps(metric)})
        self._written = transaction.generation

    def _next_id(self) -> int:
        return self._cell("SELECT next_id FROM apl.memories WHERE id = %s")

    def _reserve(self, count: int) -> int:
        if not self.shared:
            return super()._reserve(count)
        with self._session() as run:
            query = "UPDATE apl.memories SET next_id = next_id + %s WHERE id = %s RETURNING next_id"
            return self._found(run.execute(query, (count, self._memory)).fetchone())[0] - count

    # --- reading ----------------------------------------------------------------------------------

    def _existing(self, ids: list[int]) -> list[int]:
        return self._column("SELECT id FROM apl.rows WHERE memory = %s AND id = ANY(%s) ORDER BY id", ids)

    def _labelled(self, label: Label) -> list[int]:
        column = "label_text" if isinstance(label, str) else "label_integer"
        return self._column(f"SELECT id FROM apl.rows WHERE memory = %s AND {column} = %s ORDER BY id", label)

    def _from_source(self, source: str) -> list[int]:
        return self._column("SELECT id FROM apl.rows WHERE memory = %s AND source = %s ORDER BY id", source)

    def _ids(self, after: int = 0, most: int | None = None) -> list[int]:
        return self._column("SELECT id FROM apl.rows WHERE memory = %s AND id > %s ORDER BY id LIMIT %s", after, most)

    def _rows(
        self,
        run: psycopg.Cursor[Any],
        which: str,
        *values: object,
        payloads: bool = False,
        most: int | None = None,
        order: str = "id",
    ) -> list[Row]:
        cells = CELLS.format(payload="payload" if payloads else "NULL::bytea")
        query = f"SELECT {cells} FROM apl.rows WHERE memory = %s {which} ORDER BY {order} LIMIT %s"
        return self._as_rows(run.execute(query, (self._memory, *values, most)).fetchall())

    def _as_rows(self, records: Sequence[tuple[Any, ...]]) -> list[Row]:
        keys = self._keys([record[6] for record in records])
        return [
            Row(id, integer if text is None else text, key, surprise, written_at, source, payload, count, extra)
            for (id, text, integer, surprise, written_at, source, _, payload, count, extra), key in zip(
                records, keys, strict=True
            )
        ]

    def _load(self) -> Snapshot:
        with self._at_one_moment() as (run, generation, _):
            return snapshot_of(self._rows(run, ""), self.width, generation)

    def _oldest(self, most: int) -> Snapshot:
        with self._at_one_moment() as (run, generation, _):
            return snapshot_of(self._rows(run, "", most=most), self.width, generation)

    def _changes(self, since: int) -> Changes | None:
        # What changed is little: it must not be looked for among all rows, whatever the server's statistics say.
        with self._at_one_moment("SET LOCAL enable_seqscan = off") as (run, generation, known_since):
            if since < known_since:
                return None
            query = "SELECT DISTINCT id FROM apl.removed WHERE memory = %s AND generation > %s ORDER BY id"
            removed = [id for (id,) in run.execute(query, (self._memory, since))]
            rows = self._rows(run, "AND generation > %s", since, order="generation")
            rows.sort(key=lambda row: row.id)
            return Changes(snapshot_of(rows, self.width, generation), removed)

    @contextmanager
    def _at_one_moment(self, setting: str = "") -> Iterator[tuple[psycopg.Cursor[Any], int, int]]:
        """A cursor for which the memory stands still, its generation, and since when it knows what changed."""
        with self._session() as connection, connection.transaction(), connection.cursor(binary=True) as run:
            connection.execute(f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; {setting}")
            query = "SELECT generation, known_since FROM apl.memories WHERE id = %s"
            yield run, *self._found(run.execute(query, (self._memory,)).fetchone())

    def _fetch(self, ids: list[int]) -> list[Row]:
        with self._session() as connection, connection.cursor(binary=True) as run:
            return self._rows(run, "AND id = ANY(%s)", ids, payloads=True)

    def _merged(self, ids: list[int]) -> dict[int, list[MergedExample]]:
        found: dict[int, list[MergedExample]] = {}
        query = "SELECT id, source, key FROM apl.merged WHERE memory = %s AND id = ANY(%s) ORDER BY id, number"
        with self._session() as connection, connection.cursor(binary=True) as run:
            for id, source, key in run.execute(query, (self._memory, ids)):
                found.setdefault(id, []).append(MergedExample(source, key_of(key, self.width)))
        return found

    def _merged_from(self, source: str) -> list[int]:
        return self._column("SELECT DISTINCT id FROM apl.merged WHERE memory = %s AND source = %s ORDER BY id", source)

    def _recall_query(self, k: int) -> str:
        # The index is over key::vector(width), so a question about the bare column never goes through it.
        column = f"key::vector({self.width:d})" if self.approximate else "key"
        # Distances are enough to sort by; the keys of the few that are left are fetched afterwards. The memory is a
        # literal: the planner must see that the index covers it.
        nearest = (
            f"SELECT id FROM apl.rows WHERE memory = {self._memory:d}"
            f" ORDER BY {column} {OPERATORS[self.metric]} %b{'' if self.approximate else ', id'} LIMIT {k:d}"
        )
        cells = CELLS.format(payload="NULL::bytea")
        return f"SELECT {cells} FROM apl.rows WHERE memory = {self._memory:d} AND id IN ({nearest})"

    def _recall(self, keys: np.ndarray, k: int) -> list[list[Row]]:
        query = self._recall_query(k)
        with self._session() as connection, connection.transaction(), connection.cursor(binary=True) as run:
            if self.approximate:
                run.execute("SELECT set_config('hnsw.ef_search', %s, true)", (str(min(1000, 40 + 2 * k)),))
            return [self._as_rows(run.execute(query, (key,)).fetchall()) for key in keys]

    def _has_index(self) -> bool:
        with self._session() as run:
            name = "apl." + index_name(self._memory, self.metric)
            return run.execute("SELECT to_regclass(%s)", (name,)).fetchone()[0] is not None

    def _compared(self, key: np.ndarray, k: int) -> tuple[list[Row], list[Row]]:
        way, answers = self.approximate, []
        try:
            for self.approximate in (False, True):
                answers += self._recall(key[None], k)
        finally:
            self.approximate = way
        return answers[0], answers[1]

    def _totals(self, since: int | None) -> Totals:
        which = "rows > 0" if since is None else f"c.generation > {since:d}"
        # One statement, so that generation and classes are of one moment.
        query = (
            "SELECT m.generation, label, rows, examples, array_send(total) FROM apl.memories AS m"
            f" LEFT JOIN apl.classes AS c ON c.memory = m.id AND {which} WHERE m.id = %s ORDER BY first_id, label"
        )
        with self._session() as connection, connection.cursor(binary=True) as run:
            records = run.execute(query, (self._memory,)).fetchall()
        generation = self._found(records[0] if records else None)[0]
        classes = [
            LabelTotal(label_of(label), rows, examples, _numbers(total, self.width))
            for _, label, rows, examples, total in records
            if label is not None
        ]
        return Totals(generation, classes, complete=since is None)

    def _class_counts(self) -> dict[Label, tuple[int, int]]:
        query = "SELECT label, rows, examples FROM apl.classes WHERE memory = %s AND rows > 0 ORDER BY first_id, label"
        with self._session() as connection, connection.cursor(binary=True) as run:
            return {label_of(label): (rows, count) for label, rows, count in run.execute(query, (self._memory,))}

    def _settings(self, key: str | None = None) -> dict[str, str]:
        query = "SELECT key, value FROM apl.settings WHERE memory = %s AND key = COALESCE(%s, key)"
        with self._session() as run:
            return dict(run.execute(query, (self._memory, key)).fetchall())

    def _receipt(self, key: str) -> str | None:
        query = "SELECT value FROM apl.receipts WHERE memory = %s AND key = %s"
        with self._session() as run:
            record = run.execute(query, (self._memory, key)).fetchone()
        return record and record[0]

    def _count(self) -> int:
        return self._cell("SELECT COALESCE(sum(rows), 0)::bigint FROM apl.classes WHERE memory = %s")

    def _generation(self) -> int:
        return self._cell("SELECT generation FROM apl.memories WHERE id = %s")

    def _drop(self) -> None:
        with self._using(writing=True), self._session() as run, run.transaction():
            for metric in OPERATORS:
                index = sql.Identifier("apl", index_name(self._memory, metric))
                run.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(index))
            run.execute("DELETE FROM apl.memories WHERE id = %s", (self._memory,))

    def _close(self) -> None:
        # The server notices a closed connection a moment later; who opens the memory next need not wait for that.
        with suppress(psycopg.Error):
            self._connection.execute("SELECT pg_advisory_unlock_all()")
        self._connection.close()
        if self._pool is not None:
            leave_pool(self._url)

    def _plain_errors(self) -> AbstractContextManager[None]:
        return plain_errors(self._url)

    def _found(self, record: tuple[Any, ...] | None) -> tuple[Any, ...]:
        if record is None:
            raise NoSuchMemory(f"memory {self.name!r} has been deleted from {place(self._url)}")
        return record

    def _cell(self, query: str) -> Any:
        with self._session() as run:
            return self._found(run.execute(query, (self._memory,)).fetchone())[0]

    def _column(self, query: str, *values: object) -> list[int]:
        with self._session() as run:
            return [id for (id,) in run.execute(query, (self._memory, *values))]

    def _keys(self, keys: Sequence[bytes]) -> np.ndarray:
        # As pgvector sends them: two 16-bit numbers (length, unused), then big-endian floats.
        numbers = np.frombuffer(b"".join(keys), ">f4").reshape(-1, self.width + 1)
        return numbers[:, 1:].astype(np.float32)


def _numbers(array: bytes, width: int) -> np.ndarray:
    """An array of numbers as PostgreSQL sends it: a head, then the length and the value of each; an empty one is zeros."""
    head, cell = 20, np.dtype([("length", ">i4"), ("value", ">f8")])
    if len(array) < head + cell.itemsize:
        return np.zeros(width)
    return np.frombuffer(array, cell, offset=head)["value"].astype(np.float64)
