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
from apl.store.contract import Store
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
from apl.store.index import open_index
from apl.store.ram import RamStore
from apl.store.rows import (
    Changes,
    Forgotten,
    Label,
    LabelTotal,
    MemoryInfo,
    Nearest,
    NewRow,
    Recalled,
    Row,
    RowUpdate,
    Snapshot,
    SourceShare,
    Totals,
)
from apl.store.settings import require_usable
from apl.store.validation import checked_name

__all__ = [
    "AlreadyAnswered",
    "Changes",
    "FingerprintMismatch",
    "Forgotten",
    "Label",
    "LabelTotal",
    "MemoryInfo",
    "MissingExtra",
    "Nearest",
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
    shared: bool = False,
    metric: Metric | None = None,
    keep_sources: bool | None = None,
    identity: str | None = None,
    index: str | None = None,
) -> Store:
    """Open the memory of this name, or make it.

    `fingerprint` names the encoder that makes the keys and `width` is how many numbers a key has; a memory made with
    others is refused. Without them an existing memory is opened as it is, whatever its encoder: for listing, exporting,
    verifying. `timeout` is how many seconds to wait for another writer to finish. `shared` lets several processes write
    it at once, on a server. `approximate` lets `recall` there use an HNSW index, which is fast and misses some neighbours.
    `metric` is that of `recall` and of `totals`; by default the one that the memory was last opened with, at first the
    euclidean. `keep_sources=False`, given when the memory is made, stores nothing about sources; they cannot be forgotten
    then. `identity` is that of a new memory that is a copy of another. `index` is the URL of a vector engine
    (`milvus+http://host:19530`) that finds the nearest rows of a memory on PostgreSQL.
    """
    checked_name(name)
    backend, rest = _backend(url)
    if (approximate or shared) and backend != "postgresql":
        what = "approximate=True" if approximate else "shared=True"
        raise ValueError(f"{what} is for memories on a server; this one has one writer and is searched exactly, in RAM")
    if index is not None and backend != "postgresql":
        raise ValueError("index= is for memories on PostgreSQL")
    if backend == "ram":
        if fingerprint is None or width is None:
            raise NoSuchMemory("a memory in RAM is new each time: give its fingerprint and width")
        store: Store = RamStore(name, fingerprint, width, keep_sources is not False)
        store.metric = metric or "euclidean"
        return store
    if backend == "sqlite":
        from apl.store.sqlite import open_sqlite

        store = open_sqlite(
            *(Path(rest), name),
            fingerprint=fingerprint,
            width=width,
            read_only=read_only,
            timeout=timeout,
            metric=metric,
            keep_sources=keep_sources,
            identity=identity,
        )
    else:
        from apl.store.postgres import open_postgres

        store = open_postgres(
            *(rest, name),
            fingerprint=fingerprint,
            width=width,
            read_only=read_only,
            timeout=timeout,
            approximate=approximate,
            shared=shared,
            metric=metric,
            keep_sources=keep_sources,
            index=None if index is None else open_index(index, approximate),
        )
    if fingerprint is not None:
        try:
            require_usable(store.settings(), f"memory {name!r}")
        except BaseException:
            store.close()
            raise
    return store


def list_memories(url: Location) -> list[MemoryInfo]:
    """The memories that live here, by name."""
    backend, rest = _backend(url)
    if backend == "ram":
        return []
    if backend == "sqlite":
        from apl.store.sqlite import list_sqlite

        return list_sqlite(Path(rest))
    from apl.store.postgres import list_postgres

    return list_postgres(rest)


def find_memory(url: Location, name: str) -> MemoryInfo | None:
    """A memory as it is listed; None if there is none of this name."""
    try:
        return next((info for info in list_memories(url) if info.name == name), None)
    except NoSuchMemory:
        return None


def delete_memory(url: Location, name: str) -> None:
    """Delete a whole memory. Raises `NoSuchMemory` if there is none, `StoreBusy` if another process writes it."""
    checked_name(name)
    backend, rest = _backend(url)
    if backend == "ram":
        raise NoSuchMemory("a memory in RAM is deleted by closing it")
    if backend == "sqlite":
        from apl.store.sqlite import delete_sqlite

        delete_sqlite(Path(rest), name)
    else:
        from apl.store.postgres import delete_postgres

        delete_postgres(rest, name)


def backup_memories(url: Location, target: str | os.PathLike[str]) -> None:
    """Copy a file of memories, all of them, also while it is being written. The copy appears whole or not at all."""
    backend, rest = _backend(url)
    if backend != "sqlite":
        raise StoreError("only a file is backed up here: use the server's own tools, or `apl memory export`")
    from apl.store.sqlite import backup_sqlite

    backup_sqlite(Path(rest), Path(target))


def is_on_server(url: Location) -> bool:
    """Whether memories there are searched on a server, and may be written by several processes at once."""
    return _backend(url)[0] == "postgresql"


def _backend(url: Location) -> tuple[str, str]:
    """The kind of backend, and the part of the URL that it needs."""
    if url is None or url == "ram:":
        return "ram", ""
    text = os.fspath(url)
    scheme, found, rest = text.partition("://")
    if not found:
        if not text:
            raise ValueError("the memory's URL is empty")
        return "sqlite", text
    if scheme == "sqlite":
        if not rest.startswith("/") or len(rest) == 1:
            raise StoreError(f"{text!r} has no path: write sqlite:///letters.apl, or sqlite:////… for an absolute path")
        return "sqlite", rest[1:]
    if scheme in ("postgresql", "postgres"):
        return "postgresql", text
    if scheme.startswith("milvus"):
        raise StoreError(
            "Milvus is an index beside a memory, not a memory: use memory='postgresql://…', index='milvus+http://…'"
        )
    raise StoreError(f"memories cannot live in {scheme}://: use a path, ram:, sqlite:///path or postgresql://…")
