"""How a memory on Milvus gets its transactions: a journal whose newest record is the truth about the memory.

Milvus has none, but inserting a single entity is atomic. So every write ends with the insertion of one
record into the journal, and only that makes it true: the record says up to which batch the rows count, which
rows are gone, and what the next id is. One journal serves all memories of a server.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from apl.config import Metric
from apl.store.errors import MissingExtra, NewerSchema, StoreAway, StoreError
from apl.store.rows import SCHEMA_VERSION, MemoryInfo

try:
    from grpc import RpcError
    from pymilvus import DataType, MilvusClient
    from pymilvus.client.types import LoadState
    from pymilvus.exceptions import MilvusException
except ModuleNotFoundError as missing:
    raise MissingExtra(
        f"memories on Milvus need the library {missing.name}: pip install 'apl-memory[milvus]'"
    ) from missing

# Whatever goes wrong is raised, in a sentence: the library's own reports are pages of stack traces.
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)

JOURNAL = "apl_journal"
METRICS: dict[Metric, str] = {"euclidean": "L2", "cosine": "COSINE"}
STRONG = "Strong"
"""The consistency level at which a read sees all that was written before it, by whomever."""
NOT_READY = {*range(1, 10), 101, 103, *range(400, 403), *range(500, 505), *range(600, 605), *range(900, 906)}
"""What Milvus says (its own numbers) when services, replicas, channels, segments or nodes are not there yet, or are too
busy: all of that passes."""
SWEEP_RECORDS, LONG_RECORD = 8, 4096
"""Once in so many writes older records are deleted, and after each that has so much to say."""
TEXT_LIMIT = 65535
"""The longest text that Milvus stores, in bytes."""


@dataclass(frozen=True)
class Record:
    """All that is true of a memory besides its rows."""

    memory: str
    fingerprint: str
    width: int
    created: float
    schema_version: int = SCHEMA_VERSION
    batch: int = 0
    """Rows of later batches do not count: their write was never finished."""
    next_id: int = 1
    removed: list[int] = field(default_factory=list)
    """Versions of rows that the last write removed, listed in case it died before it could delete them."""
    settings: dict[str, str] = field(default_factory=dict)
    """Of a memory of the first version; later they are notes."""
    known_since: int = 0
    """What happened after this batch is known to the notes."""
    void: list[int] = field(default_factory=list)
    """Batches of writers whose turn was taken over: nothing of them counts, whenever it may arrive."""

    def counted(self) -> str:
        """Which rows and notes count, as a condition."""
        return f"batch <= {self.batch}" + (f" and batch not in {self.void}" if self.void else "")

    def is_counted(self, batch: int) -> bool:
        return batch <= self.batch and batch not in self.void

    def info(self, rows: int) -> MemoryInfo:
        return MemoryInfo(self.memory, self.fingerprint, self.width, self.created, self.schema_version, rows)


def text_hash(text: str) -> int:
    """Stands for a text in an expression, where text of the user's cannot be put safely."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


@contextmanager
def plain_errors(address: str) -> Iterator[None]:
    try:
        yield
    except (MilvusException, RpcError) as error:
        reason = reason_of(error)
        if is_away(error):
            raise StoreAway(
                f"the Milvus server at {place(address)} does not answer ({reason}): try again soon"
            ) from error
        raise StoreError(f"the Milvus server at {place(address)} failed ({reason}): open the memory anew") from error


def is_away(error: MilvusException | RpcError) -> bool:
    """Whether the server, or a part of it, is down or still starting."""
    if isinstance(error, RpcError) or error.code in NOT_READY:
        return True
    return any(word in reason_of(error).lower() for word in ("connect", "not ready", "unavailable", "deadline"))


def reason_of(error: MilvusException | RpcError) -> str:
    details = getattr(error, "message", None) or (error.details() if hasattr(error, "details") else None)
    return " ".join(str(details or error).split())[:300]


def place(address: str) -> str:
    """The address without user and password, for messages."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.hostname}:{parts.port or 19530}"


def connect(address: str) -> MilvusClient:
    parts = urlsplit(address)
    uri = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))
    try:
        return MilvusClient(
            uri=uri,
            user=parts.username or "",
            password=parts.password or "",
            db_name=parts.path.strip("/"),
            timeout=30,
        )
    except (MilvusException, RpcError) as error:
        kind = StoreAway if is_away(error) else StoreError
        raise kind(f"no Milvus server answers at {place(address)}: {reason_of(error)}") from error


def make_collection(client: MilvusClient, name: str, fields: dict[str, dict[str, Any]]) -> None:
    """A collection whose first field is its primary key."""
    schema = MilvusClient.create_schema(enable_dynamic_field=False)
    for number, (field_name, options) in enumerate(fields.items()):
        schema.add_field(field_name, is_primary=number == 0, **options)
    client.create_collection(name, schema=schema, consistency_level=STRONG, num_shards=1)


def make_ready(
    client: MilvusClient, name: str, vector: str = "unused", index: str = "FLAT", metric: Metric = "euclidean"
) -> None:
    """Indexed and loaded: whoever made or changed the collection may have died, or run out of time, in between."""
    if client.get_load_state(name)["state"] == LoadState.Loaded:
        return
    if not client.list_indexes(name):
        parameters = client.prepare_index_params()
        options = {"M": 16, "efConstruction": 200} if index == "HNSW" else {}
        parameters.add_index(vector, index_type=index, index_name=vector, metric_type=METRICS[metric], params=options)
        client.create_index(name, parameters)
    client.load_collection(name)


class Journal:
    """The records of one server."""

    def __init__(self, client: MilvusClient) -> None:
        self._client = client

    def exists(self) -> bool:
        """Whether the server has a journal; then it can be read."""
        if not self._client.has_collection(JOURNAL):
            return False
        make_ready(self._client, JOURNAL)
        return True

    def make(self) -> None:
        if not self.exists():
            fields = {
                "key": {"datatype": DataType.INT64, "auto_id": True},
                "memory": {"datatype": DataType.VARCHAR, "max_length": 64},
                "batch": {"datatype": DataType.INT64},
                "record": {"datatype": DataType.VARCHAR, "max_length": TEXT_LIMIT},
                # Milvus wants a vector in every collection.
                "unused": {"datatype": DataType.FLOAT_VECTOR, "dim": 2},
            }
            make_collection(self._client, JOURNAL, fields)
            make_ready(self._client, JOURNAL)

    def newest(self, memory: str) -> Record | None:
        return max(self._records(f'memory == "{memory}"'), key=lambda record: record.batch, default=None)

    def memories(self) -> list[Record]:
        """The newest record of every memory, by name."""
        found: dict[str, Record] = {}
        for record in self._records("batch >= 0"):
            if record.memory not in found or found[record.memory].batch < record.batch:
                found[record.memory] = record
        return [found[name] for name in sorted(found)]

    def commit(self, record: Record) -> None:
        """From here on this record is the truth. Older ones are swept away, some at a time."""
        text = json.dumps(asdict(record))
        if len(text.encode()) > TEXT_LIMIT:
            raise StoreError(f"this write to memory {record.memory!r} is too large for Milvus; nothing was written")
        entity = {"memory": record.memory, "batch": record.batch, "record": text, "unused": [0.0, 0.0]}
        self._client.insert(JOURNAL, [entity])
        if record.batch % SWEEP_RECORDS == 0 or len(text) > LONG_RECORD:
            self._forget(f'memory == "{record.memory}" and batch < {record.batch}')

    def erase(self, memory: str) -> None:
        self._forget(f'memory == "{memory}"', STRONG)

    def _forget(self, filter: str, level: str = "Eventually") -> None:
        keys = [e["key"] for e in self._client.query(JOURNAL, filter, output_fields=["key"], consistency_level=level)]
        if keys:
            self._client.delete(JOURNAL, ids=keys)

    def _records(self, filter: str) -> Iterator[Record]:
        for entity in self._client.query(JOURNAL, filter, output_fields=["record"], consistency_level=STRONG):
            content = json.loads(entity["record"])
            if content["schema_version"] > SCHEMA_VERSION:
                raise NewerSchema(
                    f"memory {content['memory']!r} was written by a later version of apl (schema "
                    f"{content['schema_version']}, this one reads up to {SCHEMA_VERSION}): upgrade apl; "
                    "nothing was touched"
                )
            yield Record(**content)
