"""Memories on a PostgreSQL server with the `vector` extension (pgvector), for several machines.

The tables live in the schema `apl` of the database and hold any number of memories. A write is one transaction with
`synchronous_commit`, and two round trips: what has to be read, then what is written.

Any number of processes write a memory at once: transactions of one memory queue up at its record in `memories`, so generations
are in the order of commits. A row that two of them update at once is updated by one; the other gets `RowChanged` if it gave
the generation that it had seen.

A connection that was lost is made anew at the next call; until the server answers, calls raise `StoreUnavailable`.

`recall` searches on the server and is exact. With `approximate=True` it goes through an HNSW index, made when the memory is
first opened so for writing: faster on a large memory, and it misses neighbours (docs/SCALE.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from apl.store import postgres_database as database
from apl.store.answers import MemoryInfo, Record
from apl.store.errors import StoreError
from apl.store.opening import LISTING, Options, as_record
from apl.store.postgres_database import psycopg, sql
from apl.store.reading import Query, Run
from apl.store.rows import Row
from apl.store.schema import TABLES
from apl.store.writing import Store

MANY = 50
"""Records from which on psycopg's own `executemany` is faster."""


class PostgresRun:
    """A connection within a transaction. Answers are waited for when they are fetched."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def execute(self, statement: str, values: Sequence[object] = (), /) -> Any:
        return self.connection.execute(statement.replace("?", "%s"), values, binary=True)

    def executemany(self, statement: str, records: Sequence[Sequence[object]], /) -> None:
        statement = statement.replace("?", "%s")
        if len(records) >= MANY:
            self.connection.cursor().executemany(statement, records)
            return
        # Without the round trips at the beginning and the end of psycopg's own.
        for record in records:
            self.connection.execute(statement, record)


@contextmanager
def pipelined(connection: psycopg.Connection[Any], begin: str = "BEGIN") -> Iterator[PostgresRun]:
    """A transaction whose statements are sent without waiting. psycopg's own would wait at its beginning and end."""
    try:
        with connection.pipeline():
            connection.execute(begin)
            yield PostgresRun(connection)
            connection.execute("COMMIT")
    except BaseException:
        with suppress(psycopg.Error):
            connection.rollback()
        raise


class PostgresStore(Store):
    """One memory on a PostgreSQL server."""

    one_of = "= ANY(?)"
    # The binary forms as they are: much faster than turning every number into text and back.
    key_cell, sum_cell = "vector_send(key)", "array_send(total)"
    takes_bytes = False
    shared = True
    driver_errors = (psycopg.Error,)

    def __init__(self, url: str, record: Record, options: Options) -> None:
        super().__init__(record, options.read_only)
        self.approximate = options.approximate
        self._url, self._next_id = url, 1
        self._pool = database.pool_for(url)

    @classmethod
    def open(cls, place: str, name: str, options: Options) -> PostgresStore:
        if options.approximate and (options.width or 0) > database.HNSW_WIDEST:
            most, width = database.HNSW_WIDEST, options.width
            raise StoreError(f"pgvector can index at most {most} numbers a key, these have {width}")
        with database.connect(place) as connection, database.plain_errors(place):
            record = database.find_record(connection, place, name)
            if record is None:
                new = options.new_record(database.shown(place), name)
                database.make_tables(connection, place)
                record = database.insert(connection, place, new)
            options.require_same(record)
            if options.approximate and not options.read_only and options.index is None:
                database.make_index(connection, record.id, record.width, record.metric)
        return cls(place, record, options)

    @classmethod
    def listing(cls, place: str) -> list[MemoryInfo]:
        with database.connect(place) as connection, database.plain_errors(place):
            found = connection.execute(LISTING).fetchall() if database.has_tables(connection, place) else []
            return [as_record(record, place).info(rows) for *record, rows in found]

    # --- connections and transactions -------------------------------------------------------------

    @contextmanager
    def _session(self, writing: bool = False) -> Iterator[psycopg.Connection[Any]]:
        with self._using(writing), self._pool.connection() as connection:
            yield connection

    def _ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        with self._session() as connection:
            if len(queries) == 1:
                return [PostgresRun(connection).execute(*queries[0]).fetchall()]
            # Answers are fetched after the pipeline has ended, which is one round trip for all.
            with pipelined(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ") as run:
                answers = [run.execute(*query) for query in queries]
            return [answer.fetchall() for answer in answers]

    @contextmanager
    def _writing(self, reads_first: bool = False) -> Iterator[Run]:
        with self._session(writing=True) as connection, pipelined(connection) as run:
            if reads_first:
                run.execute("SELECT id FROM memories WHERE id = ? FOR UPDATE", (self._memory,))
            yield run

    def _advance(self, run: Run, state: str | None, queries: Mapping[str, Query]) -> tuple[int, dict[str, list[Any]]]:
        moved = run.execute(
            "UPDATE memories SET next_id = GREATEST(next_id, ?), generation = generation + 1,"
            " state = COALESCE(?, state) WHERE id = ? RETURNING generation",
            (self._next_id, state, self._memory),
        )
        # Everything is asked before anything is fetched.
        asked = {name: run.execute(*query) for name, query in queries.items()}
        found = moved.fetchone()
        if found is None:
            raise self._deleted()
        return int(found[0]), {name: answer.fetchall() for name, answer in asked.items()}

    def _reserve(self, count: int) -> int:
        query = "UPDATE memories SET next_id = next_id + ? WHERE id = ? RETURNING next_id"
        with self._session(writing=True) as connection:
            found = PostgresRun(connection).execute(query, (count, self._memory)).fetchone()
        if found is None:
            raise self._deleted()
        self._next_id = int(found[0])
        return self._next_id - count

    def _recall_query(self, k: int) -> str:
        # The index is over key::vector(width), so a question about the bare column never goes through it.
        column = f"key::vector({self.width:d})" if self.approximate else "key"
        # Distances are enough to sort by; the keys of the few that are left are fetched afterwards. The memory is a
        # literal: the planner must see that the index covers it.
        nearest = (
            f"SELECT id FROM rows WHERE memory = {self._memory:d}"
            f" ORDER BY {column} {database.OPERATORS[self.metric]} ?{'' if self.approximate else ', id'} LIMIT {k:d}"
        )
        return self._rows_query(f"AND id IN ({nearest})")[0].replace("memory = ?", f"memory = {self._memory:d}", 1)

    def _recall(self, keys: np.ndarray, k: int) -> tuple[list[list[Row]], int]:
        query = self._recall_query(k)
        queries: list[Query] = [self._state_query, *((query, (key,)) for key in keys)]
        if self.approximate:
            queries.insert(1, ("SELECT set_config('hnsw.ef_search', ?, false)", (str(min(1000, 40 + 2 * k)),)))
        state, *answers = self._ask(queries)
        return [self._as_rows(answer) for answer in answers[-len(keys) :]], self._as_state(state).generation

    # --- how values travel ------------------------------------------------------------------------

    def _list(self, values: Sequence[int] | Sequence[str]) -> object:
        return list(values)

    def _keys(self, cells: Sequence[bytes]) -> np.ndarray:
        # As pgvector sends them: two 16-bit numbers (length, unused), then big-endian floats.
        numbers = np.frombuffer(b"".join(cells), ">f4").reshape(-1, self.width + 1)
        return numbers[:, 1:].astype(np.float32)

    def _sum(self, cell: bytes) -> np.ndarray:
        """An array of numbers as PostgreSQL sends it: a head, then the length and the value of each."""
        head, number = 20, np.dtype([("length", ">i4"), ("value", ">f8")])
        return np.frombuffer(cell, number, offset=head)["value"].astype(np.float64)

    def _place(self) -> str:
        return database.shown(self._url)

    # --- looking after the memory -----------------------------------------------------------------

    def drop(self) -> None:
        with self._session(writing=True) as connection, connection.transaction():
            index = sql.Identifier("apl", database.index_name(self._memory))
            connection.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(index))
            connection.execute("DELETE FROM memories WHERE id = %s", (self._memory,))

    def compact(self) -> None:
        with self._session(writing=True) as connection:
            for table in TABLES:
                connection.execute(f"VACUUM apl.{table}")

    def _explained(self, error: Exception) -> StoreError:
        return database.explained(self._url, error)

    def _close(self) -> None:
        database.leave_pool(self._url)
