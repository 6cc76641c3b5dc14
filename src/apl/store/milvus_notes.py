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

from apl.store.milvus_journal import STRONG, TEXT_LIMIT, DataType, MilvusClient, make_collection, make_ready, text_hash
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
        self._memory = memory

    def make_ready(self) -> None:
        if self._client.has_collection(NOTES):
            make_ready(self._client, NOTES, "unused", "FLAT")
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
        make_collection(self._client, NOTES, fields, "unused", "FLAT")

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

    def settings(self, batch: int) -> dict[str, str]:
        return _newest(self._find("setting", batch))

    def receipt(self, key: str, batch: int) -> str | None:
        return _newest(self._find("receipt", batch, f"name_hash == {text_hash(key)}")).get(key)

    def merged(self, ids: Sequence[int], batch: int, width: int) -> dict[int, list[MergedExample]]:
        found: dict[int, list[MergedExample]] = {}
        for start in range(0, len(ids), ROWS_ASKED):
            chosen = f"number in {list(ids[start : start + ROWS_ASKED])}"
            rebuilt: dict[int, int] = {}
            for note in self._find("rebuilt", batch, chosen):
                rebuilt[note["number"]] = max(note["batch"], rebuilt.get(note["number"], 0))
            for note in sorted(self._find("merged", batch, chosen), key=lambda note: (note["batch"], note["part"])):
                if note["batch"] >= rebuilt.get(note["number"], 0):
                    source, key = note["name"], note["value"]
                    content = base64.b64decode(key[1:]) if key else None
                    example = MergedExample(source[1:] if source else None, key_of(content, width))
                    found.setdefault(note["number"], []).append(example)
        return found

    def rows_with(self, source: str, batch: int) -> list[int]:
        """Rows that once had an example of this source; some may have been rebuilt or removed since."""
        text = f"={source}"
        found = self._find("merged", batch, f"name_hash == {text_hash(text)}")
        return sorted({note["number"] for note in found if note["name"] == text})

    def removed(self, since: int, batch: int) -> list[int] | None:
        """Rows removed after a batch; None if they are too many to tell."""
        found = self._find("removed", batch, f"batch > {since}")
        return None if len(found) == MOST_NOTES else sorted({note["number"] for note in found})

    def totals(self, batch: int, labels: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        """The totals of classes by label (as text): of these, or of all."""
        hashes = None if labels is None else [text_hash(label) for label in labels]
        found = self._find("total", batch, "batch >= 0" if hashes is None else f"name_hash in {hashes}")
        return {label: json.loads(value) for label, value in _newest(found).items()}

    def changed_totals(
        self, before: Sequence[Row], after: Sequence[NewRow | Row], width: int, batch: int
    ) -> list[Note]:
        """What is to be noted of classes when these rows have become those, on top of what was noted up to `batch`."""
        changes = total_changes(before, after, width, "euclidean")
        known = self.totals(batch, changes) if changes else {}
        notes = []
        for label, (rows, examples, total, first) in changes.items():
            old = known.get(label, {"rows": 0, "examples": 0, "total": "", "first": first})
            total = total + np.frombuffer(base64.b64decode(old["total"]) or bytes(8 * width), "<f8")
            value = {
                "rows": old["rows"] + rows,
                "examples": old["examples"] + examples,
                "total": base64.b64encode(total.astype("<f8").tobytes()).decode(),
                "first": old["first"],
            }
            text = json.dumps(value)
            notes += [Note("total", label, part=part, value=piece) for part, piece in enumerate(_parts(text))]
        return notes

    def sweep(self, kind: Kind, names: Iterable[str], batch: int) -> None:
        """Delete settings or totals that newer ones have replaced."""
        hashes = sorted({text_hash(name) for name in names})
        if hashes:
            self._delete(f'kind == "{kind}" and name_hash in {hashes} and batch < {batch}')

    def forget_removed(self, batch: int) -> None:
        self._delete(f'kind == "removed" and batch <= {batch}')

    def drop_after(self, batch: int) -> None:
        """Delete the notes of a write that was never finished."""
        self._delete(f"batch > {batch}", STRONG)

    def erase(self) -> None:
        self._delete("batch >= 0", STRONG)

    def _find(self, kind: Kind, batch: int, which: str = "batch >= 0") -> list[dict[str, Any]]:
        condition = f'memory == "{self._memory}" and kind == "{kind}" and batch <= {batch} and {which}'
        columns = ["name", "number", "part", "batch", "value"]
        return self._client.query(NOTES, condition, output_fields=columns, consistency_level=STRONG, limit=MOST_NOTES)

    def _delete(self, condition: str, level: str = "Eventually") -> None:
        condition = f'memory == "{self._memory}" and {condition}'
        found = self._client.query(NOTES, condition, output_fields=["key"], consistency_level=level, limit=MOST_NOTES)
        if found:
            self._client.delete(NOTES, ids=[note["key"] for note in found])


def _newest(notes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The latest value of every name, put together from its parts."""
    batches: dict[str, dict[int, dict[int, str]]] = {}
    for note in notes:
        batches.setdefault(note["name"], {}).setdefault(note["batch"], {})[note["part"]] = note["value"]
    return {name: "".join(parts[max(parts)][n] for n in sorted(parts[max(parts)])) for name, parts in batches.items()}


def _parts(text: str) -> list[str]:
    return [text[start : start + PART_BYTES] for start in range(0, len(text), PART_BYTES)] or [""]
