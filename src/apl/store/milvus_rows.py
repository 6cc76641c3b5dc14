"""Rows as Milvus keeps them: a collection for each memory, and the way there and back."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import numpy as np

from apl.store.milvus_journal import (
    TEXT_LIMIT,
    DataType,
    MilvusClient,
    MilvusException,
    Record,
    make_collection,
    text_hash,
)
from apl.store.rows import EXTRA_LIMIT_BYTES, SCHEMA_VERSION, TEXT_LIMIT_BYTES, NewRow, Row, label_of, label_text


def collection_name(memory: str, schema_version: int = SCHEMA_VERSION) -> str:
    """Milvus allows letters, digits and underscores only."""
    begin = "apl_rows_" if schema_version == 1 else "apl_memory_"
    return begin + "".join(c if c.isalnum() else f"_{ord(c):02x}" for c in memory)


def make_rows(client: MilvusClient, record: Record) -> bool:
    """Make the collection of a memory's rows; False if somebody else has just done so.

    It is made under another name and then renamed, as of several who do that only one can succeed.
    """
    name = collection_name(record.memory)
    temporary = f"{name}__new_{uuid.uuid4().hex}"
    fields = {
        # A row that is updated is another version under the same id.
        "version": {"datatype": DataType.INT64, "auto_id": True},
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
        "count": {"datatype": DataType.INT64},
        "extra": {"datatype": DataType.VARCHAR, "max_length": 2 * EXTRA_LIMIT_BYTES},
        "key": {"datatype": DataType.FLOAT_VECTOR, "dim": record.width},
    }
    make_collection(client, temporary, fields)
    try:
        client.rename_collection(temporary, name)
    except MilvusException:
        client.drop_collection(temporary)
        if not client.has_collection(name):
            raise
        return False
    return True


def entity_of(batch: int, row: NewRow | Row) -> dict[str, Any]:
    # Milvus 2.3 has no empty cells: an absent source or payload is "", a present one begins with "=".
    label, source = label_text(row.label), "" if row.source is None else f"={row.source}"
    return {
        "id": row.id,
        "batch": batch,
        "label": label,
        "label_hash": text_hash(label),
        "source": source,
        "source_hash": text_hash(source),
        "surprise_nats": row.surprise_nats,
        "written_at": row.written_at,
        "payload": _encoded(row.payload),
        "count": row.count,
        "extra": _encoded(row.extra),
        "key": row.key.tolist(),
    }


def row_of(entity: dict[str, Any]) -> Row:
    return Row(
        id=entity["id"],
        label=label_of(entity["label"]),
        key=np.array(entity["key"], np.float32),
        surprise_nats=entity["surprise_nats"],
        written_at=entity["written_at"],
        source=entity["source"][1:] if entity["source"] else None,
        payload=_decoded(entity.get("payload", "")),
        count=entity.get("count", 1),
        extra=_decoded(entity.get("extra", "")),
    )


def _encoded(content: bytes | None) -> str:
    return "" if content is None else "=" + base64.b64encode(content).decode()


def _decoded(text: str) -> bytes | None:
    return base64.b64decode(text[1:]) if text else None
