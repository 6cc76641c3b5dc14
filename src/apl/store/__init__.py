"""Memories that outlive the process: one contract, and three backends chosen by a URL.

    ram:                        (or None) gone when the process ends
    letters.apl                 (or sqlite:///letters.apl) a file, the default
    postgresql://…              PostgreSQL with pgvector

    with open_store("letters.apl", fingerprint=encoder.fingerprint, width=64) as store:
        ids = store.append([NewRow("alpha", key)])
        snapshot = store.load()

`Store` is the contract; `apl.store.transfer` copies memories from one place to another.
"""

from __future__ import annotations

import os
from pathlib import Path

from apl.config import Metric
from apl.store.answers import Changes, Forgotten, MemoryInfo, Recalled, Snapshot, Totals
from apl.store.checks import checked_name
from apl.store.errors import (
    AlreadyAnswered,
    FingerprintMismatch,
    MissingExtra,
    NoSuchMemory,
    OtherSchema,
    RowChanged,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from apl.store.opening import Options
from apl.store.rows import Label, LabelTotal, NewRow, Row, RowUpdate, SourceShare
from apl.store.writing import Store

__all__ = [
    "AlreadyAnswered",
    "Changes",
    "FingerprintMismatch",
    "Forgotten",
    "Label",
    "LabelTotal",
    "MemoryInfo",
    "MissingExtra",
    "NewRow",
    "NoSuchMemory",
    "OtherSchema",
    "Recalled",
    "Row",
    "RowChanged",
    "RowUpdate",
    "Snapshot",
    "SourceShare",
    "Store",
    "StoreBusy",
    "StoreDamaged",
    "StoreError",
    "StoreUnavailable",
    "Totals",
    "backup_memories",
    "delete_memory",
    "find_memory",
    "is_on_server",
    "list_memories",
    "memories_by_name",
    "open_store",
]

Location = str | os.PathLike[str] | None


def open_store(
    url: Location,
    name: str = "default",
    *,
    fingerprint: str | None = None,
    width: int | None = None,
    read_only: bool = False,
    timeout: float = 0.0,
    approximate: bool = False,
    metric: Metric | None = None,
    keep_sources: bool | None = None,
    identity: str | None = None,
    index: str | None = None,
) -> Store:
    """Open the memory of this name, or make it.

    `fingerprint` names the encoder that makes the keys and `width` is how many numbers a key has; a memory made with
    others is refused. Without them an existing memory is opened as it is, whatever its encoder: for listing, exporting,
    verifying. `timeout` is how many seconds to wait for another writer of a file to finish. `approximate` lets `recall` on a
    server use an HNSW index, which is fast and misses some neighbours.
    `metric` is that of `recall` and `totals` of a new memory, by default the euclidean. It cannot change.
    `keep_sources=False`, given when the memory is made, stores nothing about sources; they cannot be forgotten
    then. `identity` is that of a new memory that is a copy of another. `index` is the URL of a vector engine
    (`milvus+http://host:19530`) that finds the nearest rows of a memory on PostgreSQL.
    """
    checked_name(name)
    kind, place = _kind(url)
    on_server = is_on_server(url)
    if approximate and not on_server:
        raise ValueError("approximate=True is for memories on a server; this one is searched exactly, in RAM")
    if index is not None:
        if not on_server:
            raise ValueError("index= is for memories on PostgreSQL")
        from apl.store.indexed import IndexedStore as kind
    options = Options(*(fingerprint, width, read_only, timeout, approximate, metric, keep_sources, identity, index))
    return kind.open(place, name, options)


def list_memories(url: Location) -> list[MemoryInfo]:
    """The memories that live here, by name."""
    kind, place = _kind(url)
    return kind.listing(place)


def memories_by_name(url: Location) -> dict[str, MemoryInfo]:
    """The memories that live here; none where there is no file yet."""
    try:
        return {info.name: info for info in list_memories(url)}
    except NoSuchMemory:
        return {}


def find_memory(url: Location, name: str) -> MemoryInfo | None:
    """A memory as it is listed; None if there is none of this name."""
    return memories_by_name(url).get(name)


def delete_memory(url: Location, name: str, index: str | None = None) -> None:
    """Delete a whole memory, and what an index beside it holds of it. Raises `NoSuchMemory` if there is none, `StoreBusy` if
    another process writes it."""
    with open_store(url, name, index=index) as store:
        store.drop()


def backup_memories(url: Location, target: str | os.PathLike[str]) -> None:
    """Copy a file of memories, all of them, also while it is being written. The copy appears whole or not at all."""
    from apl.store.sqlite import SqliteStore
    from apl.store.sqlite_file import SqliteFile, plain_errors

    kind, place = _kind(url)
    if kind is not SqliteStore or not place:
        raise StoreError("only a file is backed up here: use the server's own tools, or `apl memory export`")
    with SqliteFile(Path(place), create=False, read_only=True) as file, plain_errors(Path(target)):
        file.backup(Path(target))


def is_on_server(url: Location) -> bool:
    """Whether memories there are searched on a server, and may be written by several processes at once."""
    return url is not None and os.fspath(url).startswith(("postgresql://", "postgres://"))


def _kind(url: Location) -> tuple[type[Store], str]:
    """The class of stores there, and the part of the URL that it needs."""
    from apl.store.sqlite import RAM, SqliteStore

    if is_on_server(url):
        from apl.store.postgres import PostgresStore

        return PostgresStore, str(url)
    text = "ram:" if url is None else os.fspath(url)
    if not text:
        raise ValueError("the memory's URL is empty")
    scheme, found, path = text.partition("://")
    if not found:
        return SqliteStore, RAM if text == "ram:" else text
    if scheme == "sqlite":
        if not path.startswith("/") or len(path) == 1:
            raise StoreError(f"{text!r} has no path: write sqlite:///letters.apl, or sqlite:////… for an absolute path")
        return SqliteStore, path[1:]
    if scheme.startswith("milvus"):
        raise StoreError(
            "Milvus is an index beside a memory, not a memory: use memory='postgresql://…', index='milvus+http://…'"
        )
    raise StoreError(f"memories cannot live in {scheme}://: use a path, ram:, sqlite:///path or postgresql://…")
