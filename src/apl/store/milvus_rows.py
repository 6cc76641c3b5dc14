"""Rows as Milvus keeps them: a collection for each memory, and the way there and back."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import numpy as np

from apl.store.milvus_journal import TEXT_LIMIT, DataType, MilvusClient, Record, make_collection
from apl.store.rows import TEXT_LIMIT_BYTES, Label, NewRow, Row


def collection_name(memory: str) -> str:
    """Milvus allows letters, digits and underscores only."""
    return "apl_rows_" + "".join(c if c.isalnum() else f"_{ord(c):02x}" for c in memory)


def make_rows(client: MilvusClient, record: Record, approximate: bool) -> None:
    name = collection_name(record.memory)
    if client.has_collection(name):
        # Left behind by somebody who died before the journal knew of it.
        client.drop_collection(name)
    fields = {
        "id": {"datatype": DataType.INT64},
        "batch": {"datatype": DataType.INT64},
        "label": {"datatype": DataType.VARCHAR, "max_length": TEXT_LIMIT_BYTES + 1},
        # Hashes, because text of the user's cannot be put safely into an expression.
        "label_hash": {"datatype": DataType.INT64},
        "source": {"datatype": DataType.VARCHAR, "max_length": TEXT_LIMIT_BYTES + 1},
        "source_hash": {"datatype": DataType.INT64},
        "surprise_nats": {"datatype": DataType.DOUBLE},
        "written_at": {"datatype": DataType.DOUBLE},
        "payload": {"datatype": DataType.VARCHAR, "max_length": TEXT_LIMIT},
        "key": {"datatype": DataType.FLOAT_VECTOR, "dim": record.width},
    }
    make_collection(client, name, fields, "key", "HNSW" if approximate else "FLAT")


def label_text(label: Label) -> str:
    return f"t{label}" if isinstance(label, str) else f"i{label}"


def text_hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def entity_of(id: int, batch: int, row: NewRow) -> dict[str, Any]:
    # Milvus 2.3 has no empty cells: an absent source or payload is "", a present one begins with "=".
    label, source = label_text(row.label), "" if row.source is None else f"={row.source}"
    return {
        "id": id,
        "batch": batch,
        "label": label,
        "label_hash": text_hash(label),
        "source": source,
        "source_hash": text_hash(source),
        "surprise_nats": row.surprise_nats,
        "written_at": row.written_at,
        "payload": "" if row.payload is None else "=" + base64.b64encode(row.payload).decode(),
        "key": row.key.tolist(),
    }


def row_of(entity: dict[str, Any]) -> Row:
    label, source, payload = entity["label"], entity["source"], entity.get("payload", "")
    return Row(
        id=entity["id"],
        label=label[1:] if label[0] == "t" else int(label[1:]),
        key=np.array(entity["key"], np.float32),
        surprise_nats=entity["surprise_nats"],
        written_at=entity["written_at"],
        source=source[1:] if source else None,
        payload=base64.b64decode(payload[1:]) if payload else None,
    )
