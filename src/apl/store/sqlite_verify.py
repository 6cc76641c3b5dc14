"""`apl memory verify` for a memory in a SQLite file: everything that is wrong with it, a sentence each."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import numpy as np

from apl.store.contract import key_problems
from apl.store.sqlite_schema import MEMORY_CONTENT, ROW_CONTENT, checksum, row_checksum

KEY_DTYPE = np.dtype("<f4")


def holds(record: tuple[Any, ...]) -> bool:
    """Whether a row's record, its checksum last, is as it was written. Damage may have changed types, too."""
    try:
        return row_checksum(*record[:-1]) == record[-1]
    except Exception:
        return False


def sqlite_problems(run: sqlite3.Connection, memory: int, width: int, sealed: bool) -> list[str]:
    found = [line for (line,) in run.execute("PRAGMA integrity_check") if line != "ok"]
    if found:
        return found

    def column(query: str, *values: object) -> list[Any]:
        return [value for (value,) in run.execute(query, (memory, *values))]

    size = width * KEY_DTYPE.itemsize
    wrong = run.execute(
        "SELECT id, length(key) FROM rows WHERE memory = ? AND length(key) != ? ORDER BY id", (memory, size)
    ).fetchall()
    found += [f"row {id}: the key has {length} bytes instead of {size}" for id, length in wrong]
    found += [
        f"row {id}: the label is neither text nor an integer"
        for id in column("SELECT id FROM rows WHERE memory = ? AND typeof(label) NOT IN ('text', 'integer')")
    ]
    found += [
        f"row {id}: its id was never given out"
        for id in column(
            "SELECT rows.id FROM rows JOIN memories ON memories.id = memory"
            " WHERE memory = ? AND (rows.id < 1 OR rows.id >= next_id) ORDER BY rows.id"
        )
    ]
    found += [
        f"payload {id} belongs to no row"
        for id in column(
            "SELECT id FROM payloads AS p WHERE memory = ?"
            " AND NOT EXISTS (SELECT 1 FROM rows WHERE memory = p.memory AND id = p.id)"
        )
    ]
    for key, value in run.execute("SELECT key, value FROM settings WHERE memory = ? ORDER BY key", (memory,)):
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            found.append(f"setting {key!r}: its value is no JSON")
    if not wrong:
        records = run.execute("SELECT id, key FROM rows WHERE memory = ? ORDER BY id", (memory,)).fetchall()
        keys = np.frombuffer(b"".join(key for _, key in records), KEY_DTYPE).reshape(-1, width)
        found += key_problems([id for id, _ in records], keys)
    return found + (_broken_seals(run, memory) if sealed else [])


def _broken_seals(run: sqlite3.Connection, memory: int) -> list[str]:
    found = []
    record = run.execute(f"SELECT {MEMORY_CONTENT}, checksum FROM memories WHERE id = ?", (memory,)).fetchone()
    if checksum(*record[:-1]) != record[-1]:
        found.append("the memory's own record is not as it was written")
    rows = 0
    for row in run.execute(f"SELECT {ROW_CONTENT}, checksum FROM rows WHERE memory = ? ORDER BY id", (memory,)):
        rows += 1
        if not holds(row):
            found.append(f"row {row[0]}: it is not as it was written")
    if rows != record[7]:
        found.append(f"{rows} rows are left of {record[7]}")
    for what, table, content in (
        ("payload", "payloads", "id, payload"),
        ("setting", "settings", "key, value"),
        ("receipt", "receipts", "key, value"),
        ("example merged into row", "merged", "id, number, source, key"),
    ):
        for name, *rest, kept in run.execute(f"SELECT {content}, checksum FROM {table} WHERE memory = ?", (memory,)):
            if checksum(name, *rest) != kept:
                found.append(f"{what} {name}: it is not as it was written")
    return found
