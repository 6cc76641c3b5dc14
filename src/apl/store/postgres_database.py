"""A PostgreSQL database as a home of memories: its tables, its version, and its errors in plain words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from apl.store.errors import MissingExtra, NewerSchema, StoreBusy, StoreError
from apl.store.rows import SCHEMA_VERSION, MemoryInfo

try:
    import psycopg
    from pgvector.psycopg import register_vector
    from psycopg import errors, sql
    from psycopg.conninfo import conninfo_to_dict
except ModuleNotFoundError as missing:
    raise MissingExtra(
        f"memories on PostgreSQL need the library {missing.name}: pip install 'apl-memory[postgres]'"
    ) from missing

LOCK_CLASS = 0x41504C
"""Sets our advisory locks apart from those of other programs in the database."""
RETRY_SECONDS = 0.05
HNSW_WIDEST = 2000
"""pgvector indexes no longer vectors than this."""

# `key` has no fixed length, so that memories of several encoders fit into one table.
SCHEMA = """
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
"""
MEMORIES = """SELECT name, fingerprint, width, created,
              (SELECT count(*) FROM apl.rows WHERE memory = m.id), id FROM apl.memories AS m"""


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
    except psycopg.OperationalError as error:
        raise StoreError(f"{place(url)} does not answer ({str(error).strip()}): open the memory anew") from error
    except psycopg.Error as error:
        raise StoreError(f"{place(url)}: {str(error).strip()}") from error


def connect(url: str, read_only: bool) -> psycopg.Connection[Any]:
    try:
        connection = psycopg.connect(url, autocommit=True, application_name="apl")
    except psycopg.Error as error:
        raise StoreError(f"{place(url)} cannot be reached: {str(error).strip()}") from error
    with plain_errors(url):
        connection.execute("SET synchronous_commit = on")
        if read_only:
            connection.execute("SET default_transaction_read_only = on")
    return connection


def has_tables(connection: psycopg.Connection[Any], url: str) -> bool:
    if connection.execute("SELECT to_regclass('apl.schema_version')").fetchone()[0] is None:
        return False
    (version,) = connection.execute("SELECT max(version) FROM apl.schema_version").fetchone()
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"the memories in {place(url)} were written by a later version of apl (schema {version}, "
            f"this one reads up to {SCHEMA_VERSION}): upgrade apl; nothing was touched"
        )
    register_vector(connection)
    return True


def create_memory(connection: psycopg.Connection[Any], url: str, name: str, fingerprint: str, width: int) -> None:
    with connection.transaction():
        # Two processes may be making the tables, or the same memory, at once.
        connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", (LOCK_CLASS,))
        if not has_tables(connection, url):
            try:
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            except (errors.FeatureNotSupported, errors.UndefinedFile) as error:
                raise StoreError(f"{place(url)} lacks the extension vector: install pgvector there") from error
            connection.execute(SCHEMA)
            connection.execute("INSERT INTO apl.schema_version VALUES (%s)", (SCHEMA_VERSION,))
        connection.execute(
            "INSERT INTO apl.memories (name, fingerprint, width, created, next_id, generation)"
            " VALUES (%s, %s, %s, %s, 1, 0) ON CONFLICT (name) DO NOTHING",
            (name, fingerprint, width, time.time()),
        )
    has_tables(connection, url)


def find_memory(connection: psycopg.Connection[Any], name: str) -> tuple[MemoryInfo, int] | None:
    record = connection.execute(f"{MEMORIES} WHERE name = %s", (name,)).fetchone()
    return record and (info_of(record), record[-1])


def info_of(record: tuple[Any, ...]) -> MemoryInfo:
    name, fingerprint, width, created, rows, _ = record
    return MemoryInfo(name, fingerprint, width, created, SCHEMA_VERSION, rows)


def lock_for_writing(connection: psycopg.Connection[Any], url: str, name: str, memory: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not connection.execute("SELECT pg_try_advisory_lock(%s, %s)", (LOCK_CLASS, memory)).fetchone()[0]:
        if time.monotonic() >= deadline:
            raise StoreBusy(
                f"memory {name!r} in {place(url)} is open for writing elsewhere: close it there, "
                "or open it here for reading only"
            )
        time.sleep(RETRY_SECONDS)


def make_index(connection: psycopg.Connection[Any], memory: int, width: int) -> None:
    statement = sql.SQL(
        "CREATE INDEX IF NOT EXISTS {name} ON apl.rows USING hnsw ((key::vector({width})) vector_l2_ops)"
        " WHERE memory = {memory}"
    )
    name = sql.Identifier(f"rows_hnsw_{memory}")
    connection.execute(statement.format(name=name, width=sql.Literal(width), memory=sql.Literal(memory)))
