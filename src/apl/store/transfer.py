"""Copying memories from one place to another: saved, imported, merged into one another, under a new encoder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from apl.durable_file import replace_durably
from apl.store import list_memories, open_store
from apl.store.errors import FingerprintMismatch, StoreError
from apl.store.exported import MERGED_SETTING, Exported, export_memory, read_exported, settings_that_travel
from apl.store.rows import Label, NewRow, Row, RowUpdate, SourceShare, label_text
from apl.store.writing import Store

__all__ = [
    "Copied",
    "Exported",
    "export_memory",
    "import_memory",
    "merge_memories",
    "read_exported",
    "reembed",
    "save_copy",
    "settings_that_travel",
]

PAYLOADS_AT_ONCE = 1000


@dataclass(frozen=True)
class Copied:
    """What a copy did."""

    written: int
    already_there: int
    left_out: tuple[int, ...] = ()
    """Rows of the source that could not be copied."""


def save_copy(store: Store, path: Path, name: str, overwrite: bool = False) -> None:
    """Copy rows and settings into a file, which appears only when complete.

    A file that exists is replaced only if it holds a copy of this very memory and nothing else, or with `overwrite`.
    """
    if path.exists() and path.samefile(getattr(store, "path", None) or os.devnull):
        raise StoreError(f"{path} is this memory's own file: it is saved already")
    if path.is_dir():
        raise StoreError(f"{path} is a directory: give the name of a file in it")
    if path.with_name(path.name + "-wal").exists():
        raise StoreError(f"{path} is open, or was not closed in order: save under another name")
    if not overwrite and path.exists() and path.stat().st_size:
        others = [info.name for info in list_memories(path) if info.identity != store.identity]
        if others:
            raise StoreError(
                f"{path} holds another memory ({', '.join(others)}): save under another name, or give overwrite=True"
            )
    part = path.with_name(f".{path.name}.part")
    _unlink(part)
    try:
        options = {
            "fingerprint": store.fingerprint,
            "width": store.width,
            "metric": store.metric,
            "keep_sources": store.keep_sources,
        }
        with open_store(part, name, identity=store.identity, **options) as copy:  # type: ignore[arg-type]
            copy.append(list(store.new_rows()), settings=settings_that_travel(store))
        replace_durably(part, path)
    except BaseException:
        _unlink(part)
        raise


def _unlink(part: Path) -> None:
    for beside in ("", "-wal", "-shm"):
        part.with_name(part.name + beside).unlink(missing_ok=True)


def import_memory(exported: Exported | str | os.PathLike[str], target: Store) -> Copied:
    """Copy an exported memory into an open one, all of it or nothing, leaving out the rows that it has.

    An empty target also gets the settings that it lacks.
    """
    if not isinstance(exported, Exported):
        exported = read_exported(exported)
    _require_same_encoder(target, exported.fingerprint, exported.width)
    own = target.settings()
    settings = {} if target.count() else {k: v for k, v in exported.settings.items() if k not in own}
    missing = _missing(exported.rows, target)
    target.append(missing, settings=settings)
    return Copied(len(missing), len(exported.rows) - len(missing))


def merge_memories(source: Store, target: Store) -> Copied:
    """Merge `source` into `target`, in one transaction.

    Rows of one class with the same key become one row: their counts and what their sources contributed add up. A row that
    both have, with the same source, key and count, counts once. A memory that was merged before, or is a copy of the
    target, adds only rows that the target lacks; so merging twice does nothing. Rows keep their surprise, time and
    payload, and get new ids. The target's settings stay as they are.
    """
    _require_same_encoder(target, source.fingerprint, source.width)
    merged = dict(kept) if isinstance(kept := target.setting(MERGED_SETTING), dict) else {}
    rows, generation = list(source.rows()), source.generation()
    since = merged.get(source.identity, -1)
    new = source.as_new([row for row in rows if row.generation > since])
    if source.identity in merged or source.identity == target.identity:
        missing, update = _missing(new, target), list[RowUpdate]()
    else:
        missing, update = _consolidated(new, target)
    settings = {MERGED_SETTING: merged | {source.identity: generation}}
    if missing or update:
        target.replace([], missing, update=update, settings=settings)
    written = len(missing) + len(update)
    return Copied(written, len(rows) - written)


def _consolidated(rows: Iterable[NewRow], target: Store) -> tuple[list[NewRow], list[RowUpdate]]:
    """Rows to be added, and updates of rows that have the same label and key."""
    there = {_content(row.label, row.key): row for row in target.rows()}
    new: dict[tuple[str, bytes], NewRow] = {}
    update: dict[int, RowUpdate] = {}
    for row in rows:
        content = _content(row.label, row.key)
        known = there.get(content)
        if known is None:
            if (before := new.get(content)) is not None:
                row = replace(before, count=before.count + row.count, shares=(*_parts(before), *_parts(row)))
            new[content] = row
        elif not _same_example(known, row):
            earlier = update.get(known.id, RowUpdate(known.id, count=known.count))
            count = row.count + (earlier.count if isinstance(earlier.count, int) else known.count)
            update[known.id] = replace(earlier, count=count, shares=(*earlier.shares, *_parts(row)))
    return list(new.values()), list(update.values())


def _parts(row: NewRow) -> tuple[SourceShare, ...]:
    whole = SourceShare(row.source, np.asarray(row.key, np.float64) * row.count, row.count)
    return row.shares or (whole,)


def _same_example(one: Row, other: NewRow) -> bool:
    return one.source is not None and one.source == other.source and one.count == other.count


def _content(label: Label, key: np.ndarray) -> tuple[str, bytes]:
    return label_text(label), np.asarray(key, np.float32).tobytes()


def _missing(rows: Iterable[NewRow], target: Store) -> list[NewRow]:
    """The rows of which the target has fewer copies, by label, source and key."""
    there: dict[tuple[str, bytes, str | None], int] = {}
    snapshot = target.load()
    for label, key, source in zip(snapshot.labels, snapshot.keys, snapshot.sources, strict=True):
        known = (*_content(label, key), source)
        there[known] = there.get(known, 0) + 1
    missing = []
    for row in rows:
        known = (*_content(row.label, row.key), row.source)
        if there.get(known, 0) > 0:
            there[known] -= 1
        else:
            missing.append(row)
    return missing


def reembed(source: Store, target: Store, embed: Callable[[Sequence[bytes]], np.ndarray]) -> Copied:
    """Copy the rows of `source` into the empty `target`, with keys computed anew from their payloads.

    A row's new key is that of its own picture, so the row then consists of its own source alone. Rows without a payload
    are left out, and named in the answer. Settings that the target has stay as they are.
    """
    if target.count():
        raise StoreError(f"memory {target.name!r} is not empty: re-embed into a new one")
    rows: list[NewRow] = []
    left_out: list[int] = []
    ids = source.ids()
    for start in range(0, len(ids), PAYLOADS_AT_ONCE):
        block = source.some_rows(ids[start : start + PAYLOADS_AT_ONCE])
        left_out += [row.id for row in block if row.payload is None]
        block = [row for row in block if row.payload is not None]
        keys = np.asarray(embed([row.payload or b"" for row in block]), np.float32) if block else np.zeros((0, 0))
        if block and keys.shape != (len(block), target.width):
            raise ValueError(f"embed gave an array of shape {list(keys.shape)}, not {[len(block), target.width]}")
        rows += [row.as_new(key=key) for row, key in zip(block, keys, strict=True)]
    if left_out and not rows:
        raise StoreError(f"no row of memory {source.name!r} has a payload to embed; nothing was written")
    target.append(rows, settings=settings_that_travel(source) | target.settings())
    return Copied(len(rows), 0, tuple(left_out))


def _require_same_encoder(target: Store, fingerprint: str, width: int) -> None:
    if target.fingerprint != fingerprint:
        raise FingerprintMismatch(target.name, target.fingerprint, fingerprint)
    if target.width != width:
        raise StoreError(f"the keys of memory {target.name!r} have {target.width} numbers, the others {width}")
