"""Memories that outlive the process: one contract, and four homes chosen by a URL.

    ram:                        (or None) gone when the process ends
    letters.apl                 (or sqlite:///letters.apl) a file, the default
    postgresql://…              PostgreSQL with pgvector
    milvus+http://host:19530    Milvus

    with open_store("letters.apl", fingerprint=encoder.fingerprint, width=64) as store:
        ids = store.append([NewRow("alpha", key)])
        snapshot = store.load()

`Store` says what a memory can do and promises; `apl.store.transfer` copies memories about.
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
    NewerSchema,
    NoSuchMemory,
    RowChanged,
    StoreAway,
    StoreBusy,
    StoreDamaged,
    StoreError,
)
from apl.store.ram import RamStore
from apl.store.rows import (
    Changes,
    Label,
    LabelTotal,
    MemoryInfo,
    MergedExample,
    Nearest,
    NewRow,
    Recalled,
    Row,
    RowUpdate,
    Snapshot,
    Totals,
    checked_name,
)

__all__ = [
    "AlreadyAnswered",
    "Changes",
    "FingerprintMismatch",
    "Label",
    "LabelTotal",
    "MemoryInfo",
    "MergedExample",
    "MissingExtra",
    "Nearest",
    "NewRow",
    "NewerSchema",
    "NoSuchMemory",
    "Recalled",
    "Row",
    "RowChanged",
    "RowUpdate",
    "Snapshot",
    "Store",
    "StoreAway",
    "StoreBusy",
    "StoreDamaged",
    "StoreError",
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
) -> Store:
    """Open the memory of this name, or make it.

    `fingerprint` names the encoder that makes the keys and `width` is how many numbers a key has; a memory
    made with others is refused. Without them an existing memory is opened as it is, whatever its encoder:
    for listing, exporting, verifying. `timeout` is how many seconds to wait for another writer to finish.
    `shared` lets several processes write it at once, on a server. `approximate` lets `recall` there use an HNSW index,
    which is fast and misses some neighbours. `metric` is that of `recall` and of `totals`; by default the one that the
    memory was last opened with, at first the euclidean.
    """
    checked_name(name)
    kind, rest = _home(url)
    if approximate and kind not in ("postgresql", "milvus"):
        raise ValueError("approximate=True is for servers; this memory is searched exactly, in RAM")
    if shared and kind not in ("postgresql", "milvus"):
        raise ValueError("a memory is shared by several writers on a server only; elsewhere it has one")
    match kind:
        case "ram":
            if fingerprint is None or width is None:
                raise NoSuchMemory("a memory in RAM is new each time: give its fingerprint and width")
            store: Store = RamStore(name, fingerprint, width)
        case "sqlite":
            from apl.store.sqlite import open_sqlite

            store = open_sqlite(Path(rest), name, fingerprint, width, read_only, timeout)
        case "postgresql":
            from apl.store.postgres import open_postgres

            return open_postgres(rest, name, fingerprint, width, read_only, timeout, approximate, shared, metric)
        case _:
            from apl.store.milvus import open_milvus

            return open_milvus(rest, name, fingerprint, width, read_only, approximate, shared, metric)
    store.metric = metric or "euclidean"
    return store


def list_memories(url: Location) -> list[MemoryInfo]:
    """The memories that live here, by name."""
    kind, rest = _home(url)
    match kind:
        case "ram":
            return []
        case "sqlite":
            from apl.store.sqlite import list_sqlite

            return list_sqlite(Path(rest))
        case "postgresql":
            from apl.store.postgres import list_postgres

            return list_postgres(rest)
        case _:
            from apl.store.milvus import list_milvus

            return list_milvus(rest)


def find_memory(url: Location, name: str) -> MemoryInfo | None:
    """What a memory says of itself before it is opened; None if there is none of this name."""
    try:
        return next((info for info in list_memories(url) if info.name == name), None)
    except NoSuchMemory:
        return None


def delete_memory(url: Location, name: str) -> None:
    """Delete a whole memory. Raises `NoSuchMemory` if there is none, `StoreBusy` if somebody writes it."""
    checked_name(name)
    kind, rest = _home(url)
    match kind:
        case "ram":
            raise NoSuchMemory("a memory in RAM is deleted by closing it")
        case "sqlite":
            from apl.store.sqlite import delete_sqlite

            delete_sqlite(Path(rest), name)
        case "postgresql":
            from apl.store.postgres import delete_postgres

            delete_postgres(rest, name)
        case _:
            from apl.store.milvus import delete_milvus

            delete_milvus(rest, name)


def backup_memories(url: Location, target: str | os.PathLike[str]) -> None:
    """Copy a file of memories, all of them, while others may be writing it. It appears whole or not at all."""
    kind, rest = _home(url)
    if kind != "sqlite":
        raise StoreError("only a file is backed up here: use the server's own tools, or `apl memory export`")
    from apl.store.sqlite import backup_sqlite

    backup_sqlite(Path(rest), Path(target))


def is_on_server(url: Location) -> bool:
    """Whether memories there are searched where they live, and written by several processes at once."""
    return _home(url)[0] in ("postgresql", "milvus")


def _home(url: Location) -> tuple[str, str]:
    """The kind of home, and what it needs to know of the URL."""
    if url is None or url == "ram:":
        return "ram", ""
    text = os.fspath(url)
    scheme, found, rest = text.partition("://")
    if not found:
        if not text:
            raise ValueError("the memory's URL is empty")
        return "sqlite", text
    match scheme:
        case "sqlite":
            if not rest.startswith("/") or len(rest) == 1:
                raise StoreError(
                    f"{text!r} has no path: write sqlite:///letters.apl, or sqlite:////… for an absolute path"
                )
            return "sqlite", rest[1:]
        case "postgresql" | "postgres":
            return "postgresql", text
        case "milvus+http" | "milvus+https":
            return "milvus", text.removeprefix("milvus+")
    raise StoreError(
        f"memories cannot live in {scheme}://: use a path, ram:, sqlite:///path, postgresql://… or milvus+http://…"
    )
