"""A vector engine as an index beside a memory: it finds the ids of near rows, and never decides what is true.

An engine is one class with the methods of `Index`, and one line in `open_index`. It holds ids and keys alone, may lag behind
the memory, and may be dropped and built anew at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from apl.config import Metric
from apl.store.errors import StoreError


class IndexGone(StoreError):
    """The engine has no collection of this name: it was dropped, or the engine began anew."""


class IndexUnavailable(StoreError):
    """The engine does not answer, or refuses."""


@runtime_checkable
class Index(Protocol):
    """Collections of keys by id."""

    name: str
    """Where it is, without a password."""
    stale_seconds: float
    """A search may miss what was written within this time."""

    def create(self, collection: str, width: int, metric: Metric) -> None: ...

    def put(self, collection: str, ids: Sequence[int], keys: np.ndarray) -> None:
        """Add keys, replacing those of the same ids."""

    def remove(self, collection: str, ids: Sequence[int]) -> None: ...

    def nearest(self, collection: str, keys: np.ndarray, k: int) -> list[list[int]]:
        """The ids of the k nearest of each key, fewer if there are fewer."""

    def drop(self, collection: str) -> None: ...

    def close(self) -> None: ...


def open_index(url: str, approximate: bool = False) -> Index:
    scheme = url.partition("://")[0]
    if scheme in ("milvus+http", "milvus+https"):
        from apl.store.milvus_index import MilvusIndex

        return MilvusIndex(url.removeprefix("milvus+"), approximate)
    raise ValueError(f"an index cannot live in {scheme}://: use milvus+http://host:19530")
