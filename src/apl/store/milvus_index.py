"""Milvus as an index (`apl.store.index`). Tested with Milvus 2.3.5 and pymilvus 2.6.

Searches are eventually consistent, which is fast; what they may miss is answered by the database. Without `approximate` the
index is FLAT and exact, with it HNSW.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from apl.config import Metric
from apl.store.errors import MissingExtra
from apl.store.index import IndexGone, IndexUnavailable

try:
    import grpc
    from pymilvus import DataType, MilvusClient, MilvusException
except ModuleNotFoundError as missing:
    raise MissingExtra(
        f"an index on Milvus needs the library {missing.name}: pip install 'apl-memory[milvus]'"
    ) from missing

TIMEOUT_SECONDS = 5.0
FILLING_SECONDS = 60.0
"""The same for a block of `ROWS_AT_ONCE` rows: a large index is filled once, and a busy server takes its time."""
ROWS_AT_ONCE = 1000
MOST_NEAREST = 16_384
"""More neighbours than this a Milvus server does not return."""


class MilvusIndex:
    """Collections on one Milvus server."""

    stale_seconds = 10.0

    def __init__(self, address: str, approximate: bool = False) -> None:
        self.name = f"milvus at {address.rpartition('@')[2].removeprefix('http://').removeprefix('https://')}"
        self._address = address
        self._approximate = approximate
        self._client: MilvusClient | None = None

    @contextmanager
    def _asking(self) -> Iterator[MilvusClient]:
        try:
            if self._client is None:
                self._client = MilvusClient(uri=self._address, timeout=TIMEOUT_SECONDS)
            yield self._client
        except (MilvusException, grpc.RpcError, grpc.FutureTimeoutError, OSError, ValueError) as error:
            text = str(error)
            # One that is not loaded yet, as for a while after the server's start, is only unavailable.
            if "not found" in text or "not exist" in text:
                raise IndexGone(f"{self.name} has no such collection") from error
            self._client = None
            raise IndexUnavailable(f"{self.name} does not answer ({text:.200})") from error

    def create(self, collection: str, width: int, metric: Metric) -> None:
        with self._asking() as client:
            schema = client.create_schema(auto_id=False)
            schema.add_field("id", DataType.INT64, is_primary=True)
            schema.add_field("key", DataType.FLOAT_VECTOR, dim=width)
            way = client.prepare_index_params()
            kind: dict[str, Any] = {"index_type": "FLAT", "params": {}}
            if self._approximate:
                kind = {"index_type": "HNSW", "params": {"M": 16, "efConstruction": 200}}
            way.add_index("key", metric_type="L2", **kind)
            client.create_collection(collection, schema=schema, index_params=way)
            client.load_collection(collection)

    def put(self, collection: str, ids: Sequence[int], keys: np.ndarray) -> None:
        with self._asking() as client:
            for start in range(0, len(ids), ROWS_AT_ONCE):
                part = zip(ids[start : start + ROWS_AT_ONCE], keys[start : start + ROWS_AT_ONCE], strict=True)
                rows = [{"id": id, "key": key.tolist()} for id, key in part]
                client.upsert(
                    collection, rows, timeout=max(TIMEOUT_SECONDS, FILLING_SECONDS * len(rows) / ROWS_AT_ONCE)
                )

    def remove(self, collection: str, ids: Sequence[int]) -> None:
        with self._asking() as client:
            for start in range(0, len(ids), ROWS_AT_ONCE):
                client.delete(collection, ids=list(ids[start : start + ROWS_AT_ONCE]), timeout=TIMEOUT_SECONDS)

    def nearest(self, collection: str, keys: np.ndarray, k: int) -> list[list[int]]:
        k = min(k, MOST_NEAREST)
        params = {"metric_type": "L2", "params": {"ef": max(64, 2 * k)} if self._approximate else {}}
        with self._asking() as client:
            found = client.search(
                collection,
                data=keys.tolist(),
                limit=k,
                search_params=params,
                consistency_level="Eventually",
                timeout=TIMEOUT_SECONDS,
            )
            return [[int(hit["id"]) for hit in hits] for hits in found]

    def drop(self, collection: str) -> None:
        with self._asking() as client:
            client.drop_collection(collection)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
