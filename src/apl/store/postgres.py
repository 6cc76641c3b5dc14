"""Memories on a PostgreSQL server with the `vector` extension (pgvector), for several machines.

The tables live in the schema `apl` of the database and hold any number of memories. A write is one
transaction with `synchronous_commit`. The writer holds an advisory lock for as long as its connection lasts.

`nearest` searches on the server and is exact. With `approximate=True` it goes through an HNSW index, made
when the memory is first opened so for writing: faster on a large memory, and it misses neighbours. On 20,000
rows of 64 numbers, k = 16, it found 0.99 of them where the rows form 200 clusters and 0.91 where they have no
structure; wider keys and more rows without structure bring it down to half.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from apl.store.contract import Store, agree, require_creatable
from apl.store.errors import NoSuchMemory, StoreError
from apl.store.postgres_database import (
    HNSW_WIDEST,
    MEMORIES,
    connect,
    create_memory,
    find_memory,
    has_tables,
    info_of,
    lock_for_writing,
    make_index,
    place,
    plain_errors,
    psycopg,
    sql,
)
from apl.store.rows import Label, MemoryInfo, Nearest, NewRow, Row, Snapshot

# vector_send gives a key's bytes as they are: much faster than turning every number into text and back.
ROWS = """SELECT id, label_text, label_integer, surprise_nats, written_at, source, vector_send(key){more}
          FROM apl.rows WHERE memory = %s {which} ORDER BY id"""


def open_postgres(
    url: str,
    name: str,
    fingerprint: str | None,
    width: int | None,
    read_only: bool,
    timeout: float,
    approximate: bool,
) -> PostgresStore:
    if approximate and width is not None and width > HNSW_WIDEST:
        raise StoreError(f"pgvector can index at most {HNSW_WIDEST} numbers a key, these have {width}")
    connection = connect(url, read_only)
    try:
        with plain_errors(url):
            found = find_memory(connection, name) if has_tables(connection, url) else None
            if found is None:
                require_creatable(place(url), name, fingerprint, width, read_only)
                create_memory(connection, url, name, fingerprint, width)
                found = find_memory(connection, name)
            info, memory = found
            agree(info, fingerprint, width)
            if not read_only:
                lock_for_writing(connection, url, name, memory, timeout)
                if approximate:
                    make_index(connection, memory, info.width)
        return PostgresStore(url, connection, info, memory, read_only, approximate)
    except BaseException:
        connection.close()
        raise


def list_postgres(url: str) -> list[MemoryInfo]:
    with connect(url, read_only=True) as connection, plain_errors(url):
        if not has_tables(connection, url):
            return []
        return [info_of(record) for record in connection.execute(f"{MEMORIES} ORDER BY name")]


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
    ) -> None:
        super().__init__(info.name, info.fingerprint, info.width, info.created, read_only)
        self._url = url
        self._connection = connection
        self._memory = memory
        self._approximate = approximate

    def _write(self, remove: list[int], add: list[NewRow], settings: dict[str, str]) -> list[int]:
        with self._connection.transaction(), self._connection.cursor() as run:
            record = run.execute(
                "UPDATE apl.memories SET next_id = next_id + %s, generation = generation + 1 WHERE id = %s"
                " RETURNING next_id",
                (len(add), self._memory),
            ).fetchone()
            first = self._found(record)[0] - len(add)
            ids = list(range(first, first + len(add)))
            if remove:
                run.execute("DELETE FROM apl.rows WHERE memory = %s AND id = ANY(%s)", (self._memory, remove))
            if add:
                run.executemany(
                    "INSERT INTO apl.rows VALUES (%s, %s, %s, %s, %s, %s, %s, %b, %s)",
                    [(self._memory, id, *_cells(row)) for id, row in zip(ids, add, strict=True)],
                )
            if settings:
                run.executemany(
                    "INSERT INTO apl.settings VALUES (%s, %s, %s)"
                    " ON CONFLICT (memory, key) DO UPDATE SET value = excluded.value",
                    [(self._memory, key, value) for key, value in settings.items()],
                )
        return ids

    def _existing(self, ids: list[int]) -> list[int]:
        return self._column("SELECT id FROM apl.rows WHERE memory = %s AND id = ANY(%s) ORDER BY id", ids)

    def _labelled(self, label: Label) -> list[int]:
        column = "label_text" if isinstance(label, str) else "label_integer"
        return self._column(f"SELECT id FROM apl.rows WHERE memory = %s AND {column} = %s ORDER BY id", label)

    def _from_source(self, source: str) -> list[int]:
        return self._column("SELECT id FROM apl.rows WHERE memory = %s AND source = %s ORDER BY id", source)

    def _ids(self) -> list[int]:
        return self._column("SELECT id FROM apl.rows WHERE memory = %s ORDER BY id")

    def _load(self) -> Snapshot:
        with self._connection.transaction(), self._connection.cursor(binary=True) as run:
            run.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            generation = self._generation()
            records = run.execute(ROWS.format(more="", which=""), (self._memory,)).fetchall()
        ids, texts, integers, surprise, written_at, sources, keys = zip(*records, strict=True) if records else [()] * 7
        return Snapshot(
            ids=np.array(ids, np.int64),
            keys=self._keys(keys),
            labels=[integer if text is None else text for text, integer in zip(texts, integers, strict=True)],
            surprise_nats=np.array(surprise, np.float64),
            written_at=np.array(written_at, np.float64),
            sources=list(sources),
            generation=generation,
        )

    def _fetch(self, ids: list[int]) -> list[Row]:
        with self._connection.cursor(binary=True) as run:
            records = run.execute(
                ROWS.format(more=", payload", which="AND id = ANY(%s)"), (self._memory, ids)
            ).fetchall()
        keys = self._keys([record[6] for record in records])
        return [
            Row(id, integer if text is None else text, key, surprise, written_at, source, payload)
            for (id, text, integer, surprise, written_at, source, _, payload), key in zip(records, keys, strict=True)
        ]

    def _nearest(self, key: np.ndarray, k: int) -> Nearest:
        # The index is over key::vector(width), so a question about the bare column never goes through it.
        column = f"key::vector({self.width:d})" if self._approximate else "key"
        with self._connection.transaction():
            if self._approximate:
                wider = str(min(1000, 40 + 2 * k))
                self._connection.execute("SELECT set_config('hnsw.ef_search', %s, true)", (wider,))
            # The memory as a literal: the planner must see that the index covers it.
            records = self._connection.execute(
                f"SELECT id, {column} <-> %b AS distance FROM apl.rows WHERE memory = {self._memory:d}"
                f" ORDER BY distance{'' if self._approximate else ', id'} LIMIT %s",
                (key, k),
            ).fetchall()
        ids, distances = zip(*sorted(records, key=lambda r: (r[1], r[0])), strict=True) if records else ((), ())
        return Nearest(np.array(ids, np.int64), np.array(distances, np.float32))

    def _settings(self) -> dict[str, str]:
        query = "SELECT key, value FROM apl.settings WHERE memory = %s"
        return dict(self._connection.execute(query, (self._memory,)).fetchall())

    def _count(self) -> int:
        return self._connection.execute("SELECT count(*) FROM apl.rows WHERE memory = %s", (self._memory,)).fetchone()[
            0
        ]

    def _generation(self) -> int:
        query = "SELECT generation FROM apl.memories WHERE id = %s"
        return self._found(self._connection.execute(query, (self._memory,)).fetchone())[0]

    def _drop(self) -> None:
        with self._using(writing=True), self._connection.transaction():
            index = sql.Identifier("apl", f"rows_hnsw_{self._memory}")
            self._connection.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(index))
            self._connection.execute("DELETE FROM apl.memories WHERE id = %s", (self._memory,))

    def _close(self) -> None:
        self._connection.close()

    def _plain_errors(self) -> AbstractContextManager[None]:
        return plain_errors(self._url)

    def _found(self, record: tuple[Any, ...] | None) -> tuple[Any, ...]:
        if record is None:
            raise NoSuchMemory(f"memory {self.name!r} has been deleted from {place(self._url)}")
        return record

    def _column(self, query: str, *values: object) -> list[int]:
        return [id for (id,) in self._connection.execute(query, (self._memory, *values))]

    def _keys(self, keys: Sequence[bytes]) -> np.ndarray:
        # As pgvector sends them: two 16-bit numbers (length, unused), then big-endian floats.
        numbers = np.frombuffer(b"".join(keys), ">f4").reshape(-1, self.width + 1)
        return numbers[:, 1:].astype(np.float32)


def _cells(row: NewRow) -> tuple[Any, ...]:
    text, integer = (row.label, None) if isinstance(row.label, str) else (None, row.label)
    return text, integer, row.surprise_nats, row.written_at, row.source, row.key, row.payload
