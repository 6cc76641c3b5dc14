"""Memories on a PostgreSQL server with the `vector` extension (pgvector), for several machines.

The tables live in the schema `apl` of the database and hold any number of memories. A write is one transaction with
`synchronous_commit`, and two round trips: what has to be read, then what is written.

By default a writer has its memory exclusively, by an advisory lock that lasts as long as its connection. With `shared=True`
any number of processes write it at once: transactions of one memory queue up at its record in `memories`, so generations
are in the order of commits. A row that two of them update at once is updated by one; the other gets `RowChanged` if it gave
the generation that it had seen.

A connection that was lost is made anew at the next call; until the server answers, calls raise `StoreUnavailable`.

`recall` searches on the server and is exact. With `approximate=True` it goes through an HNSW index, made when the memory is
first opened so for writing: faster on a large memory, and it misses neighbours (docs/SCALE.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np

from apl.config import Metric
from apl.store.contract import GENERATIONS_FOLLOWED, agree, require_creatable
from apl.store.errors import StoreBusy, StoreError, StoreUnavailable
from apl.store.index import Index
from apl.store.postgres_database import (
    HNSW_WIDEST,
    LOCK_CLASS,
    connect,
    create_memory,
    has_tables,
    index_name,
    leave_pool,
    list_all,
    lock_for_writing,
    make_index,
    make_tables,
    one,
    place,
    plain_errors,
    pool_for,
    psycopg,
    sql,
)
from apl.store.rows import MemoryInfo, NewRow, Row, Write
from apl.store.schema import TABLES
from apl.store.sql import ROW_COLUMNS, Answer, Result, Run, SqlStore

OPERATORS: dict[Metric, str] = {"euclidean": "<->", "cosine": "<=>"}
RETRY_AFTER_SECONDS = 0.5
"""A server that did not answer is not asked again for this time."""
COPY_ROWS = 50
"""From this number of rows on, COPY is faster than INSERT."""
ROW_TYPES = ["int8", "int8", "text", "float8", "float8", "text", "vector", "int8", "int8", "int8", "int8"]


def open_postgres(
    url: str,
    name: str,
    *,
    fingerprint: str | None,
    width: int | None,
    read_only: bool,
    timeout: float,
    approximate: bool,
    shared: bool,
    metric: Metric | None,
    keep_sources: bool | None,
    index: Index | None = None,
) -> PostgresStore:
    if approximate and width is not None and width > HNSW_WIDEST:
        raise StoreError(f"pgvector can index at most {HNSW_WIDEST} numbers a key, these have {width}")
    connection = connect(url, read_only)
    try:
        with plain_errors(url):
            found = list_all(connection, name) if has_tables(connection, url) else []
            if not found:
                require_creatable(place(url), name, fingerprint, width, read_only)
                make_tables(connection, url)
                create_memory(connection, name, fingerprint, width, keep_sources is not False, metric or "euclidean")
                found = list_all(connection, name)
            [(info, memory, kept)] = found
            agree(info, fingerprint, width, keep_sources)
            if not read_only and not shared:
                lock_for_writing(connection, url, name, memory, timeout)
            if not read_only and approximate and index is None:
                make_index(connection, memory, info.width, metric or kept)
        if index is None:
            store = PostgresStore(url, connection, info, memory, kept, read_only, approximate, shared)
        else:
            from apl.store.indexed import IndexedStore

            store = IndexedStore(url, connection, info, memory, kept, read_only, approximate, shared)
        store._use_metric(metric)
        if isinstance(index, Index):
            store._use_index(index)
        return store
    except BaseException:
        connection.close()
        raise


def list_postgres(url: str) -> list[MemoryInfo]:
    with connect(url, read_only=True) as connection, plain_errors(url):
        return [info for info, _, _ in list_all(connection)] if has_tables(connection, url) else []


def delete_postgres(url: str, name: str) -> None:
    options: dict[str, Any] = dict.fromkeys(("fingerprint", "width", "metric", "keep_sources"))
    store = open_postgres(url, name, read_only=False, timeout=0.0, approximate=False, shared=False, **options)
    with store:
        store._drop()


class PostgresRun:
    """A connection within a transaction; in a pipeline, answers are waited for when they are fetched."""

    def __init__(self, connection: psycopg.Connection[Any], pipeline: psycopg.Pipeline | None = None) -> None:
        self.connection = connection
        self._pipeline = pipeline

    def settle(self) -> None:
        if self._pipeline is not None:
            self._pipeline.sync()

    def execute(self, statement: str, values: Sequence[object] = ()) -> Result:
        return self.connection.execute(statement, values, binary=True)

    def executemany(self, statement: str, records: Sequence[Sequence[object]]) -> None:
        if len(records) >= COPY_ROWS:
            with self.connection.cursor() as cursor:
                cursor.executemany(statement, records)
            return
        for record in records:
            self.connection.execute(statement, record)


@contextmanager
def pipelined(connection: psycopg.Connection[Any], begin: str = "BEGIN") -> Iterator[PostgresRun]:
    """A transaction whose statements are sent without waiting. psycopg's own would wait at its beginning and end."""
    try:
        with connection.pipeline() as pipeline:
            connection.execute(begin)
            yield PostgresRun(connection, pipeline)
            connection.execute("COMMIT")
    except BaseException:
        with suppress(psycopg.Error):
            connection.rollback()
        raise


class PostgresStore(SqlStore):
    """One memory on a PostgreSQL server."""

    one_of = "= ANY(%s)"
    # The binary forms as they are: much faster than turning every number into text and back.
    key_cell, sum_cell = "vector_send(key)", "array_send(total)"
    returns_generation = True

    def __init__(
        self,
        url: str,
        connection: psycopg.Connection[Any],
        info: MemoryInfo,
        memory: int,
        metric: Metric,
        read_only: bool,
        approximate: bool,
        shared: bool,
    ) -> None:
        super().__init__(info, read_only)
        self.shared = shared
        self.approximate = approximate
        self.metric = self._kept_metric = metric
        self._url = url
        self._connection = connection
        self._memory = memory
        self._written: int | None = None
        """The generation that the exclusive writer last wrote."""
        self._next_id: int | None = None
        self._unavailable_until = 0.0
        self._pool = pool_for(url) if shared else None
        if shared:
            connection.close()

    # --- connections ------------------------------------------------------------------------------

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
        if time.monotonic() < self._unavailable_until:
            raise StoreUnavailable(f"{place(self._url)} does not answer: try again soon")
        try:
            self._connection = connect(self._url, self.read_only)
        except StoreUnavailable:
            self._unavailable_until = time.monotonic() + RETRY_AFTER_SECONDS
            raise
        if not self.read_only:
            try:
                lock_for_writing(self._connection, self._url, self.name, self._memory, 0.0)
                if self._written not in (None, self._state(PostgresRun(self._connection))[0]):
                    raise StoreBusy(f"memory {self.name!r} was written by another process meanwhile: open it anew")
            except BaseException:
                self._connection.close()
                raise

    def _read(self, ask: Callable[[Run], Answer], snapshot: bool = True) -> Answer:
        with self._session() as connection:
            if not snapshot:
                return ask(PostgresRun(connection))
            with pipelined(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ") as run:
                return ask(run)

    def _ask(self, queries: Sequence[tuple[str, Sequence[object]]]) -> list[list[Any]]:
        with self._session() as connection:
            if len(queries) == 1:
                return [connection.execute(*queries[0], binary=True).fetchall()]
            # Answers are fetched after the pipeline has ended, which is one round trip for all.
            with connection.pipeline():
                answers = [connection.execute(*query, binary=True) for query in queries]
            return [answer.fetchall() for answer in answers]

    @contextmanager
    def _writing(self, write: Write | None = None) -> Iterator[Run]:
        with self._session() as connection:
            # COPY cannot be part of a pipeline.
            if write is not None and len(write.add) >= COPY_ROWS:
                with connection.transaction():
                    self._admit(connection)
                    yield PostgresRun(connection)
            else:
                with pipelined(connection) as run:
                    self._admit(connection)
                    if write is None:
                        # What follows reads first: other writers wait from here on.
                        connection.execute("SELECT id FROM memories WHERE id = %s FOR UPDATE", (self._memory,))
                    yield run

    def _admit(self, connection: psycopg.Connection[Any]) -> None:
        """Find out whether another process has the memory exclusively."""
        self._admitted: Result | None = None
        if self.shared:
            query = "SELECT pg_try_advisory_xact_lock_shared(%s, %s::integer)"
            self._admitted = connection.execute(query, (LOCK_CLASS, self._memory))

    def _advance(self, run: Run, next_id: int, state: str | None) -> Callable[[], int]:
        moved = run.execute(
            "UPDATE memories SET next_id = GREATEST(next_id, %s), generation = generation + 1,"
            " known_since = GREATEST(known_since, generation + 1 - %s), state = COALESCE(%s, state) WHERE id = %s"
            " RETURNING generation, metric",
            (next_id, GENERATIONS_FOLLOWED, state, self._memory),
        )
        known: list[int] = []

        def generation() -> int:
            if known:
                return known[0]
            if self._admitted is not None and not self._admitted.fetchone()[0]:
                raise StoreBusy(f"memory {self.name!r} in {self._place()} is held exclusively by another process")
            now, metric = self._found(moved.fetchone())
            if metric != self._kept_metric:
                raise StoreBusy(
                    "the memory was opened with another metric meanwhile: open it anew; nothing was written"
                )
            known.append(now)
            self._written = now
            return int(now)

        return generation

    def _state_query(self) -> tuple[str, tuple[object, ...]]:
        return "SELECT generation, known_since, state FROM memories WHERE id = %s", (self._memory,)

    def _as_state(self, record: Any) -> tuple[int, int, str | None]:
        generation, known_since, state = self._found(record)
        return generation, known_since, state

    def _reserve(self, count: int) -> int:
        if not self.shared and self._next_id is not None:
            self._next_id += count
            return self._next_id - count
        with self._session() as connection:
            query = "UPDATE memories SET next_id = next_id + %s WHERE id = %s RETURNING next_id"
            self._next_id = int(self._found(connection.execute(query, (count, self._memory)).fetchone())[0])
        return self._next_id - count

    def _use_metric(self, metric: Metric | None) -> None:
        if metric is not None and metric != self._kept_metric and not self.read_only:
            with self._using(writing=True), self._session() as connection, connection.transaction():
                run = PostgresRun(connection)
                self._admit(connection)
                generation = self._advance(run, 1, None)()
                run.execute("UPDATE memories SET metric = %s WHERE id = %s", (metric, self._memory))
                self._sum_anew(run, metric, generation)
            self._kept_metric = metric
        self.metric = metric or self.metric

    def _put_rows(self, run: Run, rows: Sequence[NewRow | Row], generation: int) -> None:
        if len(rows) < COPY_ROWS or not all(isinstance(row, NewRow) for row in rows):
            super()._put_rows(run, rows, generation)
            return
        assert isinstance(run, PostgresRun)
        statement = f"COPY rows ({ROW_COLUMNS}) FROM STDIN WITH (FORMAT BINARY)"
        with run.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(ROW_TYPES)
            for row in rows:
                copy.write_row(self._record(row, generation))

    def _use_index(self, index: Index) -> None:
        raise NotImplementedError

    # --- searching --------------------------------------------------------------------------------

    def _recall_query(self, k: int) -> str:
        # The index is over key::vector(width), so a question about the bare column never goes through it.
        column = f"key::vector({self.width:d})" if self.approximate else "key"
        # Distances are enough to sort by; the keys of the few that are left are fetched afterwards. The memory is a
        # literal: the planner must see that the index covers it.
        nearest = (
            f"SELECT id FROM rows WHERE memory = {self._memory:d}"
            f" ORDER BY {column} {OPERATORS[self.metric]} %s{'' if self.approximate else ', id'} LIMIT {k:d}"
        )
        return self._rows_query(f"AND id IN ({nearest})")[0].replace("memory = %s", f"memory = {self._memory:d}", 1)

    def _recall(self, keys: np.ndarray, k: int) -> tuple[list[list[Row]], int | None]:
        query = self._recall_query(k)

        questions: list[tuple[str, Sequence[object]]] = [(query, (key,)) for key in keys]
        if self.approximate:
            width = str(min(1000, 40 + 2 * k))
            questions.append(("SELECT set_config('hnsw.ef_search', %s, false)", (width,)))
            questions = questions[-1:] + questions[:-1]
        # The generation first: an answer may be newer than the generation it is said to be of, never older.
        state, *answers = self._ask([self._state_query(), *questions])
        generation = self._as_state(state[0] if state else None)[0]
        return [self._as_rows(answer) for answer in answers[-len(keys) :]], generation

    def _has_index(self) -> bool:
        name = "apl." + index_name(self._memory, self.metric)
        with self._session() as connection:
            return one(connection, "SELECT to_regclass(%s)", (name,))[0] is not None

    def _compared(self, key: np.ndarray, k: int) -> tuple[list[Row], list[Row]]:
        asked, answers = self.approximate, []
        try:
            for self.approximate in (False, True):
                answers += self._recall(key[None], k)[0]
        finally:
            self.approximate = asked
        return answers[0], answers[1]

    # --- how values travel ------------------------------------------------------------------------

    def _list(self, values: Sequence[int] | Sequence[str]) -> object:
        return list(values)

    def _key_value(self, key: np.ndarray) -> object:
        return key

    def _sum_value(self, total: np.ndarray) -> object:
        return total.tolist()

    def _keys(self, cells: Sequence[bytes]) -> np.ndarray:
        # As pgvector sends them: two 16-bit numbers (length, unused), then big-endian floats.
        numbers = np.frombuffer(b"".join(cells), ">f4").reshape(-1, self.width + 1)
        return numbers[:, 1:].astype(np.float32)

    def _sum(self, cell: bytes) -> np.ndarray:
        """An array of numbers as PostgreSQL sends it: a head, then the length and the value of each."""
        head, number = 20, np.dtype([("length", ">i4"), ("value", ">f8")])
        return np.frombuffer(cell, number, offset=head)["value"].astype(np.float64)

    def _place(self) -> str:
        return place(self._url)

    # --- looking after the memory -----------------------------------------------------------------

    def _drop(self) -> None:
        with self._using(writing=True), self._session() as connection, connection.transaction():
            for metric in OPERATORS:
                index = sql.Identifier("apl", index_name(self._memory, metric))
                connection.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(index))
            connection.execute("DELETE FROM memories WHERE id = %s", (self._memory,))

    def _compact(self) -> None:
        with self._session() as connection:
            for table in TABLES:
                connection.execute(f"VACUUM apl.{table}")

    def _close(self) -> None:
        # The server notices a closed connection a moment later; the next process need not wait for that.
        with suppress(psycopg.Error):
            self._connection.execute("SELECT pg_advisory_unlock_all()")
        self._connection.close()
        if self._pool is not None:
            leave_pool(self._url)

    def _plain_errors(self) -> AbstractContextManager[None]:
        return plain_errors(self._url)
