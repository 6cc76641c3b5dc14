"""Copying memories about: to a directory and back, into one another, and under a new encoder.

An exported memory is a directory of two files that any language can read: `memory.json` (what the memory is,
its settings, labels and sources) and `rows.safetensors` (ids, keys, surprise, times and payloads).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from apl.store.contract import Store
from apl.store.errors import FingerprintMismatch, NewerSchema, StoreDamaged, StoreError
from apl.store.rows import Label, NewRow, Row, Snapshot

FORMAT = "apl-memory"
FORMAT_VERSION = 1
DESCRIPTION, ROWS = "memory.json", "rows.safetensors"
ROWS_AT_ONCE = 1000
"""Rows copied in one transaction."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Copied:
    """What a copy did."""

    written: int
    already_there: int


@dataclass(frozen=True)
class Exported:
    """An exported memory, read back."""

    fingerprint: str
    width: int
    settings: dict[str, Any]
    rows: list[NewRow]


def export_memory(store: Store, directory: str | os.PathLike[str]) -> int:
    """Write a memory to a new directory; returns the number of rows. It appears whole or not at all."""
    target = Path(directory)
    if target.exists():
        raise StoreError(f"{target} is there already: export to a new directory")
    rows = list(store.rows())
    description = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "name": store.name,
        "fingerprint": store.fingerprint,
        "width": store.width,
        "created": store.created,
        "settings": store.settings(),
        "labels": [row.label for row in rows],
        "sources": [row.source for row in rows],
    }
    payloads = [row.payload for row in rows]
    arrays = {
        "id": np.array([row.id for row in rows], np.int64),
        "key": np.array([row.key for row in rows], np.float32).reshape(len(rows), store.width),
        "surprise_nats": np.array([row.surprise_nats for row in rows], np.float64),
        "written_at": np.array([row.written_at for row in rows], np.float64),
        # All payloads end to end; a size of -1 means that there is none.
        "payload": np.frombuffer(b"".join(p for p in payloads if p is not None), np.uint8),
        "payload_size": np.array([-1 if p is None else len(p) for p in payloads], np.int64),
    }
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    try:
        (partial / DESCRIPTION).write_text(json.dumps(description, ensure_ascii=False, indent=1), encoding="utf-8")
        safetensors.numpy.save_file(arrays, partial / ROWS)
        partial.chmod(0o755)
        partial.rename(target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StoreError(f"{target} could not be written: {error}") from error
    return len(rows)


def read_exported(directory: str | os.PathLike[str]) -> Exported:
    source = Path(directory)
    try:
        description = json.loads((source / DESCRIPTION).read_text(encoding="utf-8"))
        if description.get("format") != FORMAT:
            raise StoreDamaged(f"{source} is no exported memory")
        if description["format_version"] > FORMAT_VERSION:
            raise NewerSchema(f"{source} was exported by a later version of apl: upgrade apl")
        arrays = safetensors.numpy.load_file(source / ROWS)
        labels, sources, sizes = description["labels"], description["sources"], arrays["payload_size"]
        if arrays["key"].shape != (len(labels), description["width"]):
            raise StoreDamaged(f"{source} is damaged: {len(labels)} labels, keys of shape {arrays['key'].shape}")
        payloads = _cut(arrays["payload"].tobytes(), sizes)
        rows = [
            NewRow(label, key, float(surprise), float(written_at), source_of_row, payload)
            for label, key, surprise, written_at, source_of_row, payload in zip(
                labels,
                arrays["key"],
                arrays["surprise_nats"],
                arrays["written_at"],
                sources,
                payloads,
                strict=True,
            )
        ]
    except OSError as error:
        raise StoreError(f"{error.filename or source}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise StoreDamaged(f"{source} is no exported memory, or a damaged one ({error})") from error
    return Exported(description["fingerprint"], description["width"], description["settings"], rows)


def import_memory(directory: str | os.PathLike[str], target: Store) -> Copied:
    """Copy an exported memory into an open one, as `merge` does. An empty target also gets its settings."""
    exported = read_exported(directory)
    _require_same_encoder(target, exported.fingerprint, exported.width)
    if exported.settings and not target.count() and not target.settings():
        target.update_settings(exported.settings)
    return _copy_missing(exported.rows, target)


def merge(source: Store, target: Store) -> Copied:
    """Copy into `target` the rows of `source` that it lacks.

    Rows are the same if their label, source and key are, to the last bit; if `source` has more copies of one
    than `target`, the difference is copied. So merging again does nothing, and a merge that was interrupted
    is finished by repeating it. Rows keep their surprise, time and payload, and get new ids. The target's
    settings stay as they are.
    """
    _require_same_encoder(target, source.fingerprint, source.width)
    return _copy_missing((_as_new(row) for row in source.rows()), target)


def reembed(source: Store, target: Store, embed: Callable[[Sequence[bytes]], np.ndarray]) -> Copied:
    """Copy all rows of `source` into the empty `target`, with keys computed anew from their payloads."""
    if target.count():
        raise StoreError(f"memory {target.name!r} is not empty: re-embed into a new one")
    without = sum(row.payload is None for row in source.rows())
    if without:
        raise StoreError(f"{without} rows of memory {source.name!r} have no payload to embed; nothing was written")
    written = 0
    for block in _blocks(source.rows()):
        keys = np.asarray(embed([row.payload for row in block]), np.float32)
        if keys.shape != (len(block), target.width):
            raise ValueError(f"embed gave an array of shape {list(keys.shape)}, not {[len(block), target.width]}")
        written += len(target.append([_as_new(row, key) for row, key in zip(block, keys, strict=True)]))
    target.update_settings(source.settings())
    return Copied(written, 0)


def verify(store: Store) -> list[str]:
    """What is wrong with a memory, one sentence each; empty if nothing is."""
    return store.problems()


def _copy_missing(rows: Iterable[NewRow], target: Store) -> Copied:
    there = _identities(target.load())
    written = already_there = 0
    for block in _blocks(rows):
        missing = []
        for row in block:
            identity = _identity(row.label, row.source, row.key)
            if there[identity] > 0:
                there[identity] -= 1
                already_there += 1
            else:
                missing.append(row)
        written += len(target.append(missing))
    return Copied(written, already_there)


def _identity(label: Label, source: str | None, key: np.ndarray) -> tuple[str, Label, str | None, bytes]:
    # The type belongs to it, because 7 and "7" are two labels.
    return type(label).__name__, label, source, np.asarray(key, np.float32).tobytes()


def _identities(snapshot: Snapshot) -> Counter[tuple[str, Label, str | None, bytes]]:
    return Counter(
        _identity(label, source, key)
        for label, source, key in zip(snapshot.labels, snapshot.sources, snapshot.keys, strict=True)
    )


def _as_new(row: Row, key: np.ndarray | None = None) -> NewRow:
    return NewRow(
        row.label, row.key if key is None else key, row.surprise_nats, row.written_at, row.source, row.payload
    )


def _require_same_encoder(target: Store, fingerprint: str, width: int) -> None:
    if target.fingerprint != fingerprint:
        raise FingerprintMismatch(target.name, target.fingerprint, fingerprint)
    if target.width != width:
        raise StoreError(f"the keys of memory {target.name!r} have {target.width} numbers, the others {width}")


def _blocks(items: Iterable[Item]) -> Iterator[list[Item]]:
    block: list[Item] = []
    for item in items:
        block.append(item)
        if len(block) == ROWS_AT_ONCE:
            yield block
            block = []
    if block:
        yield block


def _cut(joined: bytes, sizes: np.ndarray) -> list[bytes | None]:
    if int(sizes.clip(min=0).sum()) != len(joined):
        raise ValueError("the sizes of the payloads do not add up")
    ends = np.cumsum(sizes.clip(min=0))
    return [
        None if size < 0 else joined[end - size : end] for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)
    ]
