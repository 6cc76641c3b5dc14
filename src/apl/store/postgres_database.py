"""A PostgreSQL database as a home of memories: its tables, its version, connections, and its errors in plain words."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from apl.config import Metric
from apl.store.errors import MissingExtra, NewerSchema, StoreAway, StoreBusy, StoreError
from apl.store.rows import SCHEMA_VERSION, MemoryInfo

try:
    import psycopg
    from pgvector.psycopg import register_vector
    from psycopg import errors, sql
    from psycopg.conninfo import conninfo_to_dict
    from psycopg_pool import ConnectionPool, PoolTimeout
except ModuleNotFoundError as missing:
    raise MissingExtra(
        f"memories on PostgreSQL need the library {missing.name}: pip install 'apl-memory[postgres]'"
    ) from missing

LOCK_CLASS = 0x41504C
"""Sets our advisory locks apart from those of other programs in the database."""
RETRY_SECONDS = 0.05
POOL_SIZE = 8
"""Connections of one process to one database, for all memories that it shares with others."""
AWAY_SECONDS = 5.0
"""How long a call waits for a database that does not answer, before it says so."""
HUNG_SECONDS = 60.0
"""A transaction in which nothing happens for so long is ended by the server."""
HNSW_WIDEST = 2000
"""pgvector indexes no longer vectors than this."""

# `key` has no fixed length, so that memories of several encoders fit into one table.
FIRST_SCHEMA = """
CREATE SCHEMA IF NOT EXISTS apl;
CREATE TABLE apl.schema_version (version integer NOT NULL);
CREATE TABLE apl.memories (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE, fingerprint text NOT NULL,
    width integer NOT NULL, created double precision NOT NULL, next_id bigint NOT NULL,
    generation bigint NOT NULL);
CREATE TABLE apl.rows (
    memory integer NOT NULL REFERENCES apl.memories ON DELETE CASCADE, id bigint NOT NULL,
    label_text text, label_integer bigint, surprise_nats double precision NOT NULL,
    written_at double precision NOT NULL, source text, key vector NOT NULL, payload bytea,
    PRIMARY KEY (memory, id), CHECK (num_nonnulls(label_text, label_integer) = 1));
CREATE TABLE apl.settings (
    memory integer NOT NULL REFERENCES apl.memories ON DELETE CASCADE, key text NOT NULL, value text NOT NULL,
    PRIMARY KEY (memory, key));
INSERT INTO apl.schema_version VALUES (1);
"""
# Version 2: counts, what examples were merged, what changed when, receipts, and the totals of classes.
SECOND_SCHEMA = """
ALTER TABLE apl.memories ADD COLUMN known_since bigint NOT NULL DEFAULT 0;
UPDATE apl.memories SET known_since = generation;
ALTER TABLE apl.rows ADD COLUMN count bigint NOT NULL DEFAULT 1, ADD COLUMN extra bytea,
    ADD COLUMN generation bigint NOT NULL DEFAULT 0;
CREATE INDEX rows_generation ON apl.rows (memory, generation);
CREATE INDEX rows_text ON apl.rows (memory, label_text) WHERE label_text IS NOT NULL;
CREATE INDEX rows_integer ON apl.rows (memory, label_integer) WHERE label_integer IS NOT NULL;
CREATE INDEX rows_source ON apl.rows (memory, source) WHERE source IS NOT NULL;
CREATE TABLE apl.merged (
    memory integer NOT NULL REFERENCES apl.memories ON DELETE CASCADE, id bigint NOT NULL, number integer NOT NULL,
    source text, key bytea, PRIMARY KEY (memory, id, number));
CREATE INDEX merged_source ON apl.merged (memory, source);
CREATE TABLE apl.removed (
    memory integer NOT NULL REFERENCES apl.memories ON DELETE CASCADE, generation bigint NOT NULL, id bigint NOT NULL,
    PRIMARY KEY (memory, generation, id));
CREATE TABLE apl.receipts (
    memory integer NOT NULL REFERENCES apl.memories ON DELETE CASCADE, key text NOT NULL, value text NOT NULL,
    generation bigint NOT NULL, PRIMARY KEY (memory, key));
CREATE INDEX receipts_generation ON apl.receipts (memory, generation);
CREATE TABLE apl.classes (
    memory integer NOT NULL REFERENCES apl.memories ON DELETE CASCADE, label text NOT NULL, rows bigint NOT NULL,
    examples bigint NOT NULL, total double precision[] NOT NULL, first_id bigint NOT NULL, generation bigint NOT NULL,
    PRIMARY KEY (memory, label));
CREATE INDEX classes_generation ON apl.classes (memory, generation);
INSERT INTO apl.classes SELECT memory, COALESCE('t' || label_text, 'i' || label_integer), count(*), count(*),
    sum(key)::real[]::double precision[], min(id), 0 FROM apl.rows GROUP BY 1, 2;
UPDATE apl.schema_version SET version = 2;
"""


def place(url: str) -> str:
    """The URL without its password, for messages."""
    known = conninfo_to_dict(url)
    return f"postgresql://{known.get('host') or 'localhost'}/{known.get('dbname') or ''}"


@contextmanager
def plain_errors(url: str) -> Iterator[None]:
    try:
        yield
    except (errors.DiskFull, errors.OutOfMemory) as error:
        raise StoreError(f"{place(url)} has no room left; nothing of this write was kept") from error
    except (errors.ReadOnlySqlTransaction, errors.InsufficientPrivilege) as error:
        raise StoreError(f"{place(url)} must not be written by this user; nothing was written") from error
    except (psycopg.OperationalError, PoolTimeout) as error:
        raise StoreAway(f"{place(url)} does not answer ({str(error).strip()}): try again soon") from error
    except psycopg.Error as error:
        raise StoreError(f"{place(url)}: {str(error).strip()}") from error


def connect(url: str, read_only: bool) -> psycopg.Connection[Any]:
    try:
        connection = psycopg.connect(url, **_options(url))
    except psycopg.Error as error:
        raise StoreAway(f"{place(url)} cannot be reached: {str(error).strip()}") from error
    with plain_errors(url):
        _configure(connection)
        if read_only:
            connection.execute("SET default_transaction_read_only = on")
    return connection


def _options(url: str) -> dict[str, Any]:
    """A host that swallows everything is given up like one that refuses."""
    patience = {} if "connect_timeout" in conninfo_to_dict(url) else {"connect_timeout": int(AWAY_SECONDS)}
    return {"autocommit": True, "application_name": "apl", **patience}


def _configure(connection: psycopg.Connection[Any]) -> None:
    connection.execute("SET synchronous_commit = on")
    # A process that hangs in the middle of a write must not hold up all others for good.
    connection.execute(f"SET lock_timeout = '{AWAY_SECONDS:g}s'")
    connection.execute(f"SET idle_in_transaction_session_timeout = '{HUNG_SECONDS:g}s'")
    if connection.execute("SELECT to_regtype('vector')").fetchone()[0] is not None:
        register_vector(connection)


_pools: dict[str, tuple[ConnectionPool, int]] = {}
_pools_lock = threading.Lock()


def pool_for(url: str) -> ConnectionPool:
    """The connections of this process to a database; `leave_pool` when they are no longer needed."""
    with _pools_lock:
        pool, users = _pools.get(url, (None, 0))
        if pool is None:
            pool = ConnectionPool(
                url,
                min_size=1,
                max_size=POOL_SIZE,
                timeout=AWAY_SECONDS,
                reconnect_timeout=AWAY_SECONDS,
                configure=_configure,
                check=ConnectionPool.check_connection,
                kwargs=_options(url),
                open=True,
            )
        _pools[url] = (pool, users + 1)
        return pool


def leave_pool(url: str) -> None:
    with _pools_lock:
        pool, users = _pools.pop(url)
        if users > 1:
            _pools[url] = (pool, users - 1)
            return
    pool.close()


def schema_version(connection: psycopg.Connection[Any], url: str) -> int | None:
    """The version of the tables, None if there are none yet."""
    if connection.execute("SELECT to_regclass('apl.schema_version')").fetchone()[0] is None:
        return None
    (version,) = connection.execute("SELECT max(version) FROM apl.schema_version").fetchone()
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"the memories in {place(url)} were written by a later version of apl (schema {version}, "
            f"this one reads up to {SCHEMA_VERSION}): upgrade apl; nothing was touched"
        )
    return version


def require_up_to_date(version: int | None, url: str) -> None:
    if version != SCHEMA_VERSION:
        raise StoreError(f"the memories in {place(url)} are of an earlier version: open one for writing once")


def bring_up_to_date(connection: psycopg.Connection[Any], url: str) -> None:
    """Make the tables, or those that an earlier version lacked."""
    if schema_version(connection, url) == SCHEMA_VERSION:
        return
    # Two processes may be making the tables at once. A transaction that waited for the lock would not see what the other
    # has made: the lock comes first.
    connection.execute("SELECT pg_advisory_lock(%s, 0)", (LOCK_CLASS,))
    try:
        with connection.transaction():
            version = schema_version(connection, url)
            if version is None:
                if connection.execute("SELECT to_regtype('vector')").fetchone()[0] is None:
                    _make_extension(connection, url)
                connection.execute(FIRST_SCHEMA)
            if version != SCHEMA_VERSION:
                connection.execute(SECOND_SCHEMA)
    except errors.InsufficientPrivilege as error:
        raise StoreError(
            f"this user may not make tables in {place(url)}: let somebody who may open a memory there for writing once, "
            "or GRANT CREATE ON DATABASE; nothing was made"
        ) from error
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s, 0)", (LOCK_CLASS,))
    register_vector(connection)


def _make_extension(connection: psycopg.Connection[Any], url: str) -> None:
    try:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except (errors.FeatureNotSupported, errors.UndefinedFile) as error:
        raise StoreError(f"{place(url)} lacks the extension vector: install pgvector there") from error
    except errors.InsufficientPrivilege as error:
        raise StoreError(
            f"{place(url)} lacks the extension vector, and this user may not add it: ask an administrator for "
            "CREATE EXTENSION vector; nothing was made"
        ) from error


def create_memory(connection: psycopg.Connection[Any], name: str, fingerprint: str, width: int) -> None:
    connection.execute(
        "INSERT INTO apl.memories (name, fingerprint, width, created, next_id, generation)"
        " VALUES (%s, %s, %s, %s, 1, 0) ON CONFLICT (name) DO NOTHING",
        (name, fingerprint, width, time.time()),
    )


def find_memory(connection: psycopg.Connection[Any], name: str) -> tuple[MemoryInfo, int] | None:
    """A memory (without its number of rows) and its number in the tables."""
    query = f"SELECT name, fingerprint, width, created, {SCHEMA_VERSION}, 0, id FROM apl.memories WHERE name = %s"
    record = connection.execute(query, (name,)).fetchone()
    return record and (MemoryInfo(*record[:-1]), record[-1])


def list_all(connection: psycopg.Connection[Any]) -> list[MemoryInfo]:
    query = (
        f"SELECT name, fingerprint, width, created, {SCHEMA_VERSION}, COALESCE((SELECT sum(rows) FROM apl.classes WHERE memory = m.id), 0)"
        "::bigint FROM apl.memories AS m ORDER BY name"
    )
    return [MemoryInfo(*record) for record in connection.execute(query)]


def lock_for_writing(connection: psycopg.Connection[Any], url: str, name: str, memory: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not connection.execute("SELECT pg_try_advisory_lock(%s, %s)", (LOCK_CLASS, memory)).fetchone()[0]:
        if time.monotonic() >= deadline:
            raise StoreBusy(
                f"memory {name!r} in {place(url)} is open for writing elsewhere: close it there, "
                "or open it here for reading only"
            )
        time.sleep(RETRY_SECONDS)


def share_for_writing(connection: psycopg.Connection[Any], url: str, name: str, memory: int) -> None:
    """For one transaction: others may share the memory, but nobody may have it alone."""
    query = "SELECT pg_try_advisory_xact_lock_shared(%s, %s)"
    if not connection.execute(query, (LOCK_CLASS, memory)).fetchone()[0]:
        raise StoreBusy(f"memory {name!r} in {place(url)} is open for writing elsewhere, by one who does not share it")


def index_name(memory: int, metric: Metric) -> str:
    return f"rows_hnsw_{memory}" if metric == "euclidean" else f"rows_hnsw_{metric}_{memory}"


def make_index(connection: psycopg.Connection[Any], memory: int, width: int, metric: Metric) -> None:
    statement = sql.SQL(
        "CREATE INDEX IF NOT EXISTS {name} ON apl.rows USING hnsw ((key::vector({width})) {operators})"
        " WHERE memory = {memory}"
    )
    operators = sql.SQL({"euclidean": "vector_l2_ops", "cosine": "vector_cosine_ops"}[metric])
    names = {"name": sql.Identifier(index_name(memory, metric)), "operators": operators}
    connection.execute(statement.format(**names, width=sql.Literal(width), memory=sql.Literal(memory)))
