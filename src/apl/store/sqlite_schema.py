"""The tables of a SQLite file of memories, their checksums, and how a file of an older version becomes a new one.

Every record carries a checksum of its content, because neither SQLite nor most disks notice a single flipped bit.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib

APPLICATION_ID = 0x41504C6D
"""Written into the file's header: "APLm"."""
FILE_SCHEMA = 2
"""1: as version 0.1.0 wrote it. 2: checksums, counts, what examples were merged, and what changed when."""

# Payloads have a table of their own, so that loading all keys does not read past all pictures; so have the examples
# that were merged into rows. `label ANY` in a STRICT table keeps 7 and "7" apart. New columns stand last, where an
# older file gets them.
TABLES = (
    """CREATE TABLE memories (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, fingerprint TEXT NOT NULL, width INTEGER NOT NULL,
        created REAL NOT NULL, next_id INTEGER NOT NULL, generation INTEGER NOT NULL,
        rows INTEGER NOT NULL DEFAULT 0, known_since INTEGER NOT NULL DEFAULT 0, checksum INTEGER) STRICT""",
    """CREATE TABLE rows (
        memory INTEGER NOT NULL, id INTEGER NOT NULL, label ANY NOT NULL, surprise_nats REAL NOT NULL,
        written_at REAL NOT NULL, source TEXT, key BLOB NOT NULL, count INTEGER NOT NULL DEFAULT 1, extra BLOB,
        generation INTEGER NOT NULL DEFAULT 0, checksum INTEGER, PRIMARY KEY (memory, id)) STRICT""",
    """CREATE TABLE payloads (
        memory INTEGER NOT NULL, id INTEGER NOT NULL, payload BLOB NOT NULL, checksum INTEGER,
        PRIMARY KEY (memory, id)) STRICT""",
    """CREATE TABLE settings (
        memory INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, checksum INTEGER,
        PRIMARY KEY (memory, key)) STRICT""",
)
ADDED_TABLES = (
    """CREATE TABLE merged (
        memory INTEGER NOT NULL, id INTEGER NOT NULL, number INTEGER NOT NULL, source TEXT, key BLOB,
        checksum INTEGER, PRIMARY KEY (memory, id, number)) STRICT, WITHOUT ROWID""",
    "CREATE INDEX merged_source ON merged (memory, source, id)",
    """CREATE TABLE removed (
        memory INTEGER NOT NULL, generation INTEGER NOT NULL, id INTEGER NOT NULL,
        PRIMARY KEY (memory, generation, id)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE receipts (
        memory INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, generation INTEGER NOT NULL, checksum INTEGER,
        PRIMARY KEY (memory, key)) STRICT, WITHOUT ROWID""",
    "CREATE INDEX receipts_generation ON receipts (memory, generation)",
    "CREATE INDEX rows_generation ON rows (memory, generation)",
)
ADDED_COLUMNS = (
    "memories ADD COLUMN rows INTEGER NOT NULL DEFAULT 0",
    "memories ADD COLUMN known_since INTEGER NOT NULL DEFAULT 0",
    "memories ADD COLUMN checksum INTEGER",
    "rows ADD COLUMN count INTEGER NOT NULL DEFAULT 1",
    "rows ADD COLUMN extra BLOB",
    "rows ADD COLUMN generation INTEGER NOT NULL DEFAULT 0",
    "rows ADD COLUMN checksum INTEGER",
    "payloads ADD COLUMN checksum INTEGER",
    "settings ADD COLUMN checksum INTEGER",
)
MEMORY_CONTENT = "id, name, fingerprint, width, created, next_id, generation, rows, known_since"
ROW_CONTENT = "id, label, surprise_nats, written_at, source, key, count, extra, generation"

_numbers = struct.Struct("<qddqq")


def row_checksum(
    id: int,
    label: str | int,
    surprise: float,
    written_at: float,
    source: str | None,
    key: bytes,
    count: int,
    extra: bytes | None,
    generation: int,
) -> int:
    # By hand rather than through `checksum`: it runs once for every row of a memory that is opened.
    numbers = _numbers.pack(id, surprise, written_at, count, generation)
    text = f"{type(label).__name__}{label}\0{source is None}{source}".encode()
    return zlib.crc32(extra or b"", zlib.crc32(text, zlib.crc32(key, zlib.crc32(numbers))))


def checksum(*cells: object) -> int:
    """Of cells of any type, with their types and lengths."""
    total = 0
    for cell in cells:
        content = cell if isinstance(cell, bytes) else repr(cell).encode("utf-8", "surrogatepass")
        total = zlib.crc32(content, zlib.crc32(f"{type(cell).__name__}{len(content)}".encode(), total))
    return total


def create_tables(run: sqlite3.Connection) -> None:
    for statement in TABLES + ADDED_TABLES:
        run.execute(statement)
    run.execute(f"PRAGMA application_id={APPLICATION_ID}")
    run.execute(f"PRAGMA user_version={FILE_SCHEMA}")


def migrate(run: sqlite3.Connection) -> None:
    """From version 1, within a transaction: rows stay as they are, count 1, and get their checksums."""
    for change in ADDED_COLUMNS:
        run.execute(f"ALTER TABLE {change}")
    for statement in ADDED_TABLES:
        run.execute(statement)
    run.create_function("row_checksum", 9, row_checksum, deterministic=True)
    run.create_function("checksum", -1, checksum, deterministic=True)
    run.execute(
        "UPDATE memories SET known_since = generation, rows = (SELECT count(*) FROM rows WHERE memory = memories.id)"
    )
    run.execute(f"UPDATE memories SET checksum = checksum({MEMORY_CONTENT})")
    run.execute(f"UPDATE rows SET checksum = row_checksum({ROW_CONTENT})")
    run.execute("UPDATE payloads SET checksum = checksum(id, payload)")
    run.execute("UPDATE settings SET checksum = checksum(key, value)")
    run.execute(f"PRAGMA user_version={FILE_SCHEMA}")
