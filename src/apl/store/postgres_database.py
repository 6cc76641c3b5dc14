"""A PostgreSQL database of memories: its tables, its version, connections, and its errors in plain words."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from apl.config import Metric
from apl.store.answers import Record
from apl.store.errors import MissingExtra, StoreBusy, StoreError, StoreUnavailable
from apl.store.opening import RECORD, RECORDS, as_record
from apl.store.schema import POSTGRES_SCHEMA, SCHEMA_VERSION, other_schema

try:
    import psycopg
    from pgvector.psycopg import register_vector
    from psycopg import Connection, errors, sql
    from psycopg.conninfo import conninfo_to_dict
    from psycopg_pool import ConnectionPool
except ModuleNotFoundError as missing:
    raise MissingExtra(
        f"memories on PostgreSQL need the library {missing.name}: pip install 'apl-memory[postgres]'"
    ) from missing

LOCK_CLASS = 0x41504C
"""Sets our advisory locks apart from those of other programs in the database."""
POOL_SIZE = 8
"""Connections of one process to one database, for all memories that it shares with others."""
UNAVAILABLE_SECONDS = 5.0
"""How long a call waits for a database that does not answer, before it raises."""
CHECKED_AFTER_SECONDS = 1.0
"""A connection that was idle for this time is tried out before it is used."""
HUNG_SECONDS = 60.0
"""The server ends a transaction in which nothing happens for this time."""
OPERATORS: dict[Metric, str] = {"euclidean": "<->", "cosine": "<=>"}
HNSW_WIDEST = 2000
"""pgvector indexes no longer vectors than this."""

_FUNCTION = """
CREATE FUNCTION apl.add_sums(double precision[], double precision[]) RETURNS double precision[]
    LANGUAGE sql IMMUTABLE AS 'SELECT array_agg(x + y ORDER BY n) FROM unnest($1, $2) WITH ORDINALITY AS sums (x, y, n)';
"""
_INDEXES = """
CREATE TABLE apl.indexes (
    memory bigint NOT NULL REFERENCES apl.memories ON DELETE CASCADE, name text NOT NULL, epoch text NOT NULL,
    filled bigint NOT NULL, settled bigint NOT NULL, pending bigint NOT NULL, pending_at double precision NOT NULL,
    PRIMARY KEY (memory, name));
"""
UNAVAILABLE = ("08", "57P", "53300", "55P03", "40001", "40P01", "25P03", "57014")
"""Beginnings of the codes of errors that say something about the server; any other is an error of the request."""


def shown(url: str) -> str:
    """The URL without its password, for messages."""
    known = conninfo_to_dict(url)
    return f"postgresql://{known.get('host') or 'localhost'}/{known.get('dbname') or ''}"


@contextmanager
def plain_errors(url: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise explained(url, error) from error


def explained(url: str, error: Exception) -> StoreError:
    """An error of PostgreSQL or its client in plain words."""
    if isinstance(error, (errors.DiskFull, errors.OutOfMemory)):
        return StoreError(f"{shown(url)} has no room left; nothing of this write was kept")
    if isinstance(error, (errors.ReadOnlySqlTransaction, errors.InsufficientPrivilege)):
        return StoreError(f"{shown(url)} must not be written by this user; nothing was written")
    # Without a code there is no connection.
    if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(UNAVAILABLE):
        return StoreUnavailable(f"{shown(url)} does not answer ({_sentence(error)}): try again soon")
    return StoreError(f"{shown(url)} refused this request: {_sentence(error)}; nothing was written")


def _sentence(error: Exception) -> str:
    """The first line of an error; the others show the statement."""
    return str(error).strip().partition("\n")[0]


def connect(url: str) -> Connection[Any]:
    try:
        connection = psycopg.connect(url, **_options(url))
    except psycopg.Error as error:
        raise StoreUnavailable(f"{shown(url)} cannot be reached: {str(error).strip()}") from error
    with plain_errors(url):
        _configure(connection)
    return connection


def _options(url: str) -> dict[str, Any]:
    """A host that swallows everything is given up like one that refuses."""
    patience = {} if "connect_timeout" in conninfo_to_dict(url) else {"connect_timeout": int(UNAVAILABLE_SECONDS)}
    return {"autocommit": True, "application_name": "apl", **patience}


def one(connection: Connection[Any], query: str, values: tuple[object, ...] = ()) -> tuple[Any, ...]:
    """The one record of an answer that has one."""
    record = connection.execute(query, values or None).fetchone()
    assert record is not None
    return tuple(record)


def _configure(connection: Connection[Any]) -> None:
    connection.execute("SET synchronous_commit = on")
    # A process that hangs in the middle of a write must not hold up all others for good.
    connection.execute(f"SET lock_timeout = '{UNAVAILABLE_SECONDS:g}s'")
    connection.execute(f"SET idle_in_transaction_session_timeout = '{HUNG_SECONDS:g}s'")
    # The statements name their tables without a schema.
    connection.execute("SELECT set_config('search_path', 'apl, ' || current_setting('search_path'), false)")
    if one(connection, "SELECT to_regtype('vector')")[0] is not None:
        register_vector(connection)


_used: WeakKeyDictionary[Connection[Any], float] = WeakKeyDictionary()


def _check_if_idle(connection: Connection[Any]) -> None:
    """A round trip, saved where the connection has just been used."""
    now = time.monotonic()
    if now - _used.get(connection, 0.0) > CHECKED_AFTER_SECONDS:
        ConnectionPool.check_connection(connection)
    _used[connection] = now


_pools: dict[str, tuple[ConnectionPool, int]] = {}
_pools_lock = threading.Lock()


def pool_for(url: str) -> ConnectionPool:
    """The connections of this process to a database; `leave_pool` when they are no longer needed."""
    with _pools_lock:
        if url in _pools:
            pool, users = _pools[url]
        else:
            users, pool = (
                0,
                ConnectionPool(
                    url,
                    min_size=1,
                    max_size=POOL_SIZE,
                    timeout=UNAVAILABLE_SECONDS,
                    reconnect_timeout=UNAVAILABLE_SECONDS,
                    configure=_configure,
                    check=_check_if_idle,
                    kwargs=_options(url),
                    open=True,
                ),
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


def has_tables(connection: Connection[Any], url: str) -> bool:
    """Whether the tables exist; those of another version are refused."""
    if one(connection, "SELECT to_regclass('apl.schema_version')")[0] is None:
        return False
    (version,) = one(connection, "SELECT max(version) FROM apl.schema_version")
    if version != SCHEMA_VERSION:
        raise other_schema(f"the schema apl of {shown(url)}", version)
    return True


def make_tables(connection: Connection[Any], url: str) -> None:
    # Two processes may be making the tables at once. A transaction that waited for the lock would not see what the other
    # has made: the lock comes first.
    connection.execute("SELECT pg_advisory_lock(%s, 0)", (LOCK_CLASS,))
    try:
        with connection.transaction():
            if not has_tables(connection, url):
                if one(connection, "SELECT to_regtype('vector')")[0] is None:
                    _make_extension(connection, url)
                connection.execute("CREATE SCHEMA IF NOT EXISTS apl")
                connection.execute(POSTGRES_SCHEMA)
                connection.execute(_FUNCTION)
                connection.execute(_INDEXES)
                connection.execute("CREATE TABLE apl.schema_version (version integer NOT NULL)")
                connection.execute("INSERT INTO apl.schema_version VALUES (%s)", (SCHEMA_VERSION,))
    except errors.InsufficientPrivilege as error:
        raise StoreError(
            f"this user may not make tables in {shown(url)}: let a user who may open a memory there for writing once, "
            "or GRANT CREATE ON DATABASE; nothing was made"
        ) from error
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s, 0)", (LOCK_CLASS,))
    register_vector(connection)


def _make_extension(connection: Connection[Any], url: str) -> None:
    try:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except (errors.FeatureNotSupported, errors.UndefinedFile) as error:
        raise StoreError(f"{shown(url)} lacks the extension vector: install pgvector there") from error
    except errors.InsufficientPrivilege as error:
        raise StoreError(
            f"{shown(url)} lacks the extension vector, and this user may not add it: ask an administrator for "
            "CREATE EXTENSION vector; nothing was made"
        ) from error


def find_record(connection: Connection[Any], url: str, name: str) -> Record | None:
    """The record of the memory of this name, if there is one."""
    if not has_tables(connection, url):
        return None
    found = connection.execute(f"{RECORDS} WHERE name = %s", (name,)).fetchone()
    return None if found is None else as_record(found, shown(url))


def insert(connection: Connection[Any], url: str, new: Record) -> Record:
    """A new memory's record, or that of one that another process made meanwhile."""
    _, *rest = vars(new).values()
    cells = (*rest, 0)
    connection.execute(
        f"INSERT INTO memories ({RECORD.removeprefix('id, ')}, checksum) VALUES ({', '.join(['%s'] * len(cells))})"
        " ON CONFLICT (name) DO NOTHING",
        cells,
    )
    found = find_record(connection, url, new.name)
    if found is None:
        raise StoreBusy(f"memory {new.name!r} in {shown(url)} was deleted while it was opened: open it anew")
    return found


def index_name(memory: int) -> str:
    return f"rows_hnsw_{memory}"


def make_index(connection: Connection[Any], memory: int, width: int, metric: Metric) -> None:
    statement = sql.SQL(
        "CREATE INDEX IF NOT EXISTS {name} ON rows USING hnsw ((key::vector({width})) {operators})"
        " WHERE memory = {memory}"
    )
    operators = sql.SQL({"euclidean": "vector_l2_ops", "cosine": "vector_cosine_ops"}[metric])
    names = {"name": sql.Identifier(index_name(memory)), "operators": operators}
    connection.execute(statement.format(**names, width=sql.Literal(width), memory=sql.Literal(memory)))
