"""`apl memory verify` for a memory in a SQLite file: everything that is wrong with it, a sentence each."""

from __future__ import annotations

import json

import numpy as np

from apl.store.rows import label_of
from apl.store.schema import checksum, row_checksum, share_checksum
from apl.store.tables import Run

SEALED = (
    ("payload", "payloads", "id, payload"),
    ("setting", "settings", "name, value"),
    ("receipt", "receipts", "name, value"),
)


def sqlite_problems(run: Run, memory: int, width: int) -> list[str]:
    found = [line for (line,) in run.execute("PRAGMA integrity_check").fetchall() if line != "ok"]
    if found:
        return found
    found = _wrong_rows(run, memory, width) + _wrong_classes(run, memory)
    for table in ("payloads", "shares"):
        query = (
            f"SELECT DISTINCT id FROM {table} AS p WHERE memory = ?"
            " AND NOT EXISTS (SELECT 1 FROM rows WHERE memory = p.memory AND id = p.id)"
        )
        found += [f"{table[:-1]} {id} belongs to no row" for (id,) in run.execute(query, (memory,)).fetchall()]
    for name, value in run.execute("SELECT name, value FROM settings WHERE memory = ?", (memory,)).fetchall():
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            found.append(f"setting {name!r}: its value is no JSON")
    for what, table, content in SEALED:
        query = f"SELECT {content}, checksum FROM {table} WHERE memory = ?"
        for name, *rest, seal in run.execute(query, (memory,)).fetchall():
            if checksum(name, *rest) != seal:
                found.append(f"{what} {name}: it is not as it was written")
    query = "SELECT id, source, total, count, checksum FROM shares WHERE memory = ?"
    for id, *cells, seal in run.execute(query, (memory,)).fetchall():
        if share_checksum(id, *cells) != seal:
            found.append(f"a source's share of row {id}: it is not as it was written")
    return found


def _wrong_rows(run: Run, memory: int, width: int) -> list[str]:
    (next_id,) = run.execute("SELECT next_id FROM memories WHERE id = ?", (memory,)).fetchone()
    query = (
        "SELECT id, label, surprise_nats, written_at, source, key, count, has_shares, generation, checksum"
        " FROM rows WHERE memory = ? ORDER BY id"
    )
    found = []
    for *cells, seal in run.execute(query, (memory,)).fetchall():
        id, label, key = cells[0], cells[1], cells[5]
        if not 0 < id < next_id:
            found.append(f"row {id}: its id was never given out")
        if not _is_label(label):
            found.append(f"row {id}: the label is neither text nor an integer")
        if len(key) != 4 * width:
            found.append(f"row {id}: the key has {len(key)} bytes instead of {4 * width}")
        elif not np.isfinite(np.frombuffer(key, "<f4")).all():
            found.append(f"row {id}: the key contains NaN or infinity")
        if row_checksum(*cells) != seal:
            found.append(f"row {id}: it is not as it was written")
    return found


def _is_label(text: str) -> bool:
    try:
        label_of(text)
    except (ValueError, IndexError):
        return False
    return text[0] in "ti"


def _wrong_classes(run: Run, memory: int) -> list[str]:
    """Classes whose stored counters are not those of their rows."""
    query = "SELECT label, COUNT(*), SUM(count) FROM rows WHERE memory = ? GROUP BY label"
    counted = {label: (rows, examples) for label, rows, examples in run.execute(query, (memory,)).fetchall()}
    query = "SELECT label, rows, examples FROM classes WHERE memory = ?"
    stored = {label: (rows, examples) for label, rows, examples in run.execute(query, (memory,)).fetchall()}
    return [
        f"class {label[1:]!r}: {counted.get(label, (0, 0))[0]} rows are left of {stored.get(label, (0, 0))[0]}"
        for label in sorted(counted.keys() | stored.keys())
        if counted.get(label) != stored.get(label)
    ]
