"""One transaction that writes a memory on PostgreSQL, statement by statement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apl.config import Metric
from apl.store.contract import METRIC_SETTING, RECEIPTS_KEPT
from apl.store.errors import AlreadyAnswered, NoSuchMemory, RowChanged, StoreBusy
from apl.store.postgres_database import psycopg
from apl.store.rows import KEEP, Label, NewRow, Row, Write, key_bytes, total_changes, updated_row

GENERATIONS_FOLLOWED = 10_000
"""A copy that is further behind has to be loaded anew."""
COPY_ROWS = 50
"""From so many rows on, COPY is faster than INSERT."""
COLUMNS = (
    "memory, id, label_text, label_integer, surprise_nats, written_at, source, key, payload, count, extra, generation"
)
TYPES = ["int4", "int8", "text", "int8", "float8", "float8", "text", "vector", "bytea", "int8", "bytea", "int8"]


class PostgresTransaction:
    """Until it ends, no other begins in this memory: they queue up at its record."""

    def __init__(self, run: psycopg.Cursor[Any], memory: int, width: int, metric: Metric, next_id: int = 1) -> None:
        self.run, self.memory, self.width, self.metric = run, memory, width, metric
        record = run.execute(
            "UPDATE apl.memories SET next_id = GREATEST(next_id, %s), generation = generation + 1,"
            " known_since = GREATEST(known_since, generation + 1 - %s) WHERE id = %s RETURNING generation,"
            " (SELECT value FROM apl.settings WHERE memory = %s AND key = %s)",
            (next_id, GENERATIONS_FOLLOWED, memory, memory, METRIC_SETTING),
        ).fetchone()
        if record is None:
            raise NoSuchMemory("the memory has been deleted; nothing was written")
        self.generation, kept = record
        self.kept_metric: Metric = json.loads(kept) if kept else "euclidean"

    def write(self, write: Write, rows: Sequence[Row]) -> None:
        """`rows` are those to be removed or updated, as they are now."""
        if self.metric != self.kept_metric:
            raise StoreBusy("the memory was opened with another metric meanwhile: open it anew; nothing was written")
        self.put_receipts(write.receipts)
        touched, before = {*write.remove, *(change.id for change in write.update)}, {row.id: row for row in rows}
        if len(before) < len(touched):
            raise RowChanged(f"there is no row {min(touched - set(before))} to replace; nothing was written")
        for id, row in before.items():
            if write.seen.get(id, row.count) != row.count:
                raise RowChanged(f"row {id} has been changed by somebody else; nothing was written")
        if write.remove:
            for table in ("rows", "merged"):
                query = f"DELETE FROM apl.{table} WHERE memory = %s AND id = ANY(%s)"
                self.run.execute(query, (self.memory, write.remove))
            query = "INSERT INTO apl.removed SELECT %s, %s, unnest(%s::bigint[])"
            self.run.execute(query, (self.memory, self.generation, write.remove))
        self.put_rows(write.add)
        after = self.update(write, before)
        self.put_merged(write)
        self.put_settings(write.settings)
        self.put_totals(rows, [*write.add, *after])
        query = "DELETE FROM apl.removed WHERE memory = %s AND generation <= %s"
        self.run.execute(query, (self.memory, self.generation - GENERATIONS_FOLLOWED))

    def update(self, write: Write, before: Mapping[int, Row]) -> list[Row]:
        after = []
        for change in write.update:
            old = before[change.id]
            new = updated_row(old, change)
            after.append(new)
            payload = "" if change.payload is KEEP else ", payload = %b"
            self.run.execute(
                "UPDATE apl.rows SET label_text = %s, label_integer = %s, source = %s, key = %b, count = %s, extra = %b,"
                f" generation = %s{payload} WHERE memory = %s AND id = %s",
                (
                    *(*_label_cells(new.label), new.source, new.key, new.count, new.extra, self.generation),
                    *(() if change.payload is KEEP else (change.payload,)),
                    *(self.memory, change.id),
                ),
            )
        return after

    def put_rows(self, rows: Sequence[NewRow]) -> None:
        records = (
            (
                *(self.memory, row.id, *_label_cells(row.label), row.surprise_nats, row.written_at, row.source),
                *(row.key, row.payload, row.count, row.extra, self.generation),
            )
            for row in rows
        )
        if len(rows) < COPY_ROWS:
            places = ", ".join(["%s"] * 7 + ["%b", "%b", "%s", "%b", "%s"])
            self.run.executemany(f"INSERT INTO apl.rows ({COLUMNS}) VALUES ({places})", list(records))
            return
        with self.run.copy(f"COPY apl.rows ({COLUMNS}) FROM STDIN WITH (FORMAT BINARY)") as copy:
            copy.set_types(TYPES)
            for record in records:
                copy.write_row(record)

    def put_merged(self, write: Write) -> None:
        rebuilt = [change.id for change in write.update if change.rebuilt]
        if rebuilt:
            self.run.execute("DELETE FROM apl.merged WHERE memory = %s AND id = ANY(%s)", (self.memory, rebuilt))
        for row in (*write.add, *write.update):
            if not row.merged:
                continue
            query = "SELECT count(*) FROM apl.merged WHERE memory = %s AND id = %s"
            (first,) = self.run.execute(query, (self.memory, row.id)).fetchone()
            self.run.executemany(
                "INSERT INTO apl.merged (memory, id, number, source, key) VALUES (%s, %s, %s, %s, %b)",
                [
                    (self.memory, row.id, number, example.source, key_bytes(example.key))
                    for number, example in enumerate(row.merged, first)
                ],
            )

    def put_settings(self, settings: Mapping[str, str]) -> None:
        if settings:
            self.run.executemany(
                "INSERT INTO apl.settings VALUES (%s, %s, %s)"
                " ON CONFLICT (memory, key) DO UPDATE SET value = excluded.value",
                [(self.memory, key, value) for key, value in settings.items()],
            )

    def put_receipts(self, receipts: Mapping[str, str]) -> None:
        for key, value in receipts.items():
            self.run.execute(
                "INSERT INTO apl.receipts VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
                (self.memory, key, value, self.generation),
            )
            if not self.run.rowcount:
                raise AlreadyAnswered(key)
        if receipts:
            self.run.execute(
                "DELETE FROM apl.receipts WHERE memory = %s AND key IN (SELECT key FROM apl.receipts"
                " WHERE memory = %s ORDER BY generation DESC OFFSET %s)",
                (self.memory, self.memory, RECEIPTS_KEPT),
            )

    def put_totals(self, before: Sequence[Row], after: Sequence[NewRow | Row]) -> None:
        """Keep the totals of the classes: what was is subtracted, what is is added."""
        changes = total_changes(before, after, self.width, self.metric)
        if not changes:
            return
        query = "SELECT label, rows, examples, total, first_id FROM apl.classes WHERE memory = %s AND label = ANY(%s)"
        known = {label: cells for label, *cells in self.run.execute(query, (self.memory, list(changes)))}
        records = []
        for label, (rows, examples, total, first) in changes.items():
            rows_before, examples_before, total_before, first_before = known.get(label, (0, 0, None, first))
            if rows_before:
                total, first = total + np.array(total_before), first_before
            # A class that is gone stays as one without rows: those who follow have to hear of it.
            total = total.tolist() if rows_before + rows else []
            records.append(
                (self.memory, label, rows_before + rows, examples_before + examples, total, first, self.generation)
            )
        self.run.executemany(
            "INSERT INTO apl.classes VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (memory, label) DO UPDATE SET"
            " rows = excluded.rows, examples = excluded.examples, total = excluded.total, first_id = excluded.first_id,"
            " generation = excluded.generation",
            records,
        )


def _label_cells(label: Label) -> tuple[str | None, int | None]:
    return (label, None) if isinstance(label, str) else (None, label)
