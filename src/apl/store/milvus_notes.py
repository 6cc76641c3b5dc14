"""What a memory on Milvus keeps beside its rows: settings, receipts, merged examples, totals of classes,
and which rows were removed when.

Each is an entity of one collection that serves all memories of a server, with the number of the batch it was written
with: like a row it counts once the journal has come to that batch (`milvus_journal`), so it is part of the same
transaction. A setting that is written again is a newer note; examples are void if a row was rebuilt after them.
Values of any length are cut into parts, as no text in Milvus is longer than 65,535 bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from apl.config import Metric
from apl.store.milvus_journal import (
    STRONG,
    TEXT_LIMIT,
    DataType,
    Journal,
    MilvusClient,
    Record,
    make_collection,
    make_ready,
    text_hash,
)
from apl.store.rows import (
    TEXT_LIMIT_BYTES,
    MergedExample,
    NewRow,
    Row,
    Write,
    key_bytes,
    key_of,
    total_changes,
)

NOTES = "apl_notes"
PART_BYTES = TEXT_LIMIT // 4
"""Characters of a part: each has at most 4 bytes."""
MOST_NOTES = 16_384
"""A server sends no more entities for one question."""
EVERY = "batch >= 0"
HASHES = (-(2**63), 2**63 - 1)
ROWS_ASKED = 8
"""The examples behind so many rows are asked for at a time."""

Kind = Literal["setting", "receipt", "merged", "rebuilt", "removed", "total"]


@dataclass(frozen=True)
class Note:
    """One thing noted. What `number` and `part` mean depends on the kind: a row, or a place in an order."""

    kind: Kind
    name: str = ""
    number: int = 0
    part: int = 0
    value: str = ""


def notes_of(write: Write) -> list[Note]:
    found = []
    for kind, values in (("setting", write.settings), ("receipt", write.receipts)):
        for name, value in values.items():
            found += [Note(kind, name, part=part, value=text) for part, text in enumerate(_parts(value))]
    found += [Note("removed", number=id) for id in write.remove]
    found += [Note("rebuilt", number=change.id) for change in write.update if change.rebuilt]
    for row in (*write.add, *write.update):
        for part, example in enumerate(row.merged):
            key = "" if example.key is None else "=" + base64.b64encode(key_bytes(example.key)).decode()
            source = "" if example.source is None else f"={example.source}"
            found.append(Note("merged", source, row.id, part, key))
    return found


class Notes:
    """The notes of one memory."""

    def __init__(self, client: MilvusClient, memory: str) -> None:
        self._client = client
        self._journal = Journal(client)
        self._memory = memory

    def make_ready(self) -> None:
        if self._client.has_collection(NOTES):
            make_ready(self._client, NOTES)
            return
        fields = {
            "key": {"datatype": DataType.INT64, "auto_id": True},
            "memory": {"datatype": DataType.VARCHAR, "max_length": 64},
            "kind": {"datatype": DataType.VARCHAR, "max_length": 16},
            "name": {"datatype": DataType.VARCHAR, "max_length": TEXT_LIMIT_BYTES + 1},
            # A hash, because text of the user's cannot be put safely into an expression.
            "name_hash": {"datatype": DataType.INT64},
            "number": {"datatype": DataType.INT64},
            "part": {"datatype": DataType.INT64},
            "batch": {"datatype": DataType.INT64},
            "value": {"datatype": DataType.VARCHAR, "max_length": TEXT_LIMIT},
            # Milvus wants a vector in every collection.
            "unused": {"datatype": DataType.FLOAT_VECTOR, "dim": 2},
        }
        make_collection(self._client, NOTES, fields)
        make_ready(self._client, NOTES)

    def write(self, notes: Sequence[Note], batch: int) -> None:
        entities = [
            {
                **vars(note),
                "memory": self._memory,
                "name_hash": text_hash(note.name),
                "batch": batch,
                "unused": [0.0, 0.0],
            }
            for note in notes
        ]
        for start in range(0, len(entities), 256):
            self._client.insert(NOTES, entities[start : start + 256])

    def settings(self, record: Record, key: str | None = None) -> dict[str, str]:
        return _newest(self._find("setting", record, EVERY if key is None else f"name_hash == {text_hash(key)}"))

    def receipts(self, keys: Iterable[str], record: Record) -> dict[str, str]:
        """Those of these keys that have one."""
        hashes = {text_hash(key): key for key in keys}
        found = _newest(self._find("receipt", record, f"name_hash in {list(hashes)}")) if hashes else {}
        return {key: value for key, value in found.items() if key in hashes.values()}

    def merged(self, ids: Sequence[int], record: Record, width: int) -> dict[int, list[MergedExample]]:
        found: dict[int, list[MergedExample]] = {}
        for start in range(0, len(ids), ROWS_ASKED):
            chosen = f"number in {list(ids[start : start + ROWS_ASKED])}"
            rebuilt: dict[int, int] = {}
            for note in self._find("rebuilt", record, chosen):
                rebuilt[note["number"]] = max(note["batch"], rebuilt.get(note["number"], 0))
            for note in sorted(self._find("merged", record, chosen), key=lambda note: (note["batch"], note["part"])):
                if note["batch"] >= rebuilt.get(note["number"], 0):
                    source, key = note["name"], note["value"]
                    content = base64.b64decode(key[1:]) if key else None
                    example = MergedExample(source[1:] if source else None, key_of(content, width))
                    found.setdefault(note["number"], []).append(example)
        return found

    def rows_with(self, source: str, record: Record) -> list[int]:
        """Rows that once had an example of this source; some may have been rebuilt or removed since."""
        text = f"={source}"
        found = self._find("merged", record, f"name_hash == {text_hash(text)}")
        return sorted({note["number"] for note in found if note["name"] == text})

    def removed(self, since: int, record: Record) -> list[int] | None:
        """Rows removed after a batch; None if they are too many to tell."""
        found = self._find("removed", record, f"batch > {since}")
        return None if len(found) == MOST_NOTES else sorted({note["number"] for note in found})

    def totals(self, record: Record, which: str = EVERY) -> dict[str, dict[str, Any]]:
        """The totals of classes by label (as text)."""
        return {label: json.loads(value) for label, value in _newest(self._find("total", record, which)).items()}

    def changed_totals(
        self, before: Sequence[Row], after: Sequence[NewRow | Row], record: Record, metric: Metric
    ) -> list[Note]:
        """What is to be noted of classes when these rows have become those, on top of what was noted before."""
        changes = total_changes(before, after, record.width, metric)
        known = self.totals(record, f"name_hash in {[text_hash(label) for label in changes]}") if changes else {}
        return [note for label, change in changes.items() for note in total_notes(label, change, known.get(label))]

    def sweep(self, kind: Kind, names: Iterable[str], batch: int) -> None:
        """Of these settings or totals, keep what was written last."""
        hashes = sorted({text_hash(name) for name in names})
        if hashes:
            condition = f'kind == "{kind}" and name_hash in {hashes} and batch <= {batch}'
            found = self._query(condition, ["key", "name", "batch"], "Eventually")
            newest: dict[str, int] = {}
            for note in found:
                newest[note["name"]] = max(note["batch"], newest.get(note["name"], 0))
            self._remove(note for note in found if note["batch"] < newest[note["name"]])

    def forget_old(self, batch: int) -> None:
        """Of removals and receipts only the later are kept."""
        self._delete(f'kind in ["removed", "receipt"] and batch <= {batch}')

    def drop_after(self, batch: int) -> None:
        """Delete the notes of a write that was never finished."""
        self._delete(f"batch > {batch}", STRONG)

    def erase(self) -> None:
        self._delete("batch >= 0", STRONG)

    def _find(self, kind: Kind, record: Record, which: str = EVERY, hashes: tuple[int, int] = HASHES) -> list[dict]:
        """Notes that count. Where some are newer than the record, the journal is asked again: what they have replaced may
        be gone already."""
        condition = f'kind == "{kind}" and {which}'
        if hashes != HASHES:
            condition += f" and name_hash >= {hashes[0]} and name_hash < {hashes[1]}"
        found = self._query(condition, ["name", "number", "part", "batch", "value"], STRONG)
        if len(found) == MOST_NOTES and kind in ("total", "setting"):
            middle = sum(hashes) // 2
            halves = ((hashes[0], middle), (middle, hashes[1]))
            return [note for half in halves for note in self._find(kind, record, which, half)]
        if any(note["batch"] > record.batch for note in found):
            record = self._journal.newest(self._memory) or record
        return [note for note in found if record.is_counted(note["batch"])]

    def _query(self, condition: str, columns: list[str], level: str) -> list[dict[str, Any]]:
        condition = f'memory == "{self._memory}" and {condition}'
        return self._client.query(NOTES, condition, output_fields=columns, consistency_level=level, limit=MOST_NOTES)

    def _delete(self, condition: str, level: str = "Eventually") -> None:
        self._remove(self._query(condition, ["key"], level))

    def _remove(self, notes: Iterable[dict[str, Any]]) -> None:
        if keys := [note["key"] for note in notes]:
            self._client.delete(NOTES, ids=keys)


def total_notes(
    label: str, change: tuple[int, int, np.ndarray, int], known: dict[str, Any] | None = None
) -> list[Note]:
    """The total of a class, as it was known, after a change."""
    rows, examples, total, first = change
    if known and known["rows"]:
        rows, examples, first = rows + known["rows"], examples + known["examples"], known["first"]
        total = total + np.frombuffer(base64.b64decode(known["total"]), "<f8")
    text = base64.b64encode(total.astype("<f8").tobytes()).decode() if rows else ""
    value = json.dumps({"rows": rows, "examples": examples, "total": text, "first": first})
    return [Note("total", label, part=part, value=piece) for part, piece in enumerate(_parts(value))]


def _newest(notes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The latest value of every name, put together from its parts."""
    batches: dict[str, dict[int, dict[int, str]]] = {}
    for note in notes:
        batches.setdefault(note["name"], {}).setdefault(note["batch"], {})[note["part"]] = note["value"]
    return {name: "".join(parts[max(parts)][n] for n in sorted(parts[max(parts)])) for name, parts in batches.items()}


def _parts(text: str) -> list[str]:
    return [text[start : start + PART_BYTES] for start in range(0, len(text), PART_BYTES)] or [""]
