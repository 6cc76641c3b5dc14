"""Copying memories about: to a directory and back, into one another, and under a new encoder.

An exported memory is a directory of two files that any language can read: `memory.json` (what the memory is,
its settings, labels and sources) and `rows.safetensors` (ids, keys, surprise, times and payloads); or a zip archive of
these two, which is what the service's page gives and takes. Where rows stand for several examples, both say so, and it is
of version 2.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from apl.store.archive import pack, unpack
from apl.store.contract import METRIC_SETTING, Store, encoded_settings
from apl.store.errors import FingerprintMismatch, NewerSchema, StoreDamaged, StoreError
from apl.store.rows import Label, MergedExample, NewRow, Row, Snapshot, checked_rows, key_bytes, key_of

FORMAT = "apl-memory"
FORMAT_VERSION = 2
DESCRIPTION, ROWS = "memory.json", "rows.safetensors"
ROWS_AT_ONCE = 1000
"""Rows copied in one transaction."""
LEAST = {"sigma": 0, "max_rows": 1, "max_rows_per_class": 1, "k": 1}
"""The smallest values of a classifier's recorded parameters that make sense."""
STAYS = ("service retr", METRIC_SETTING)
"""Settings that begin so stay where they are: receipts for a service's clients, naming rows that a copy has not, and how
an engine sums its classes."""
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
    """Write a memory to a new directory, or to one file if its name ends in `.zip`; returns the number of rows.

    It appears whole or not at all.
    """
    target = Path(directory)
    if target.exists():
        raise StoreError(f"{target} is there already: export to a new directory")
    ids: list[int] = []
    rows: list[NewRow] = []
    for block in _blocks(store.rows()):
        ids += [row.id for row in block]
        rows += _as_new(store, block)
    consolidated = any(row.count != 1 or row.extra is not None or row.merged for row in rows)
    description = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION if consolidated else 1,
        "name": store.name,
        "fingerprint": store.fingerprint,
        "width": store.width,
        "created": store.created,
        "settings": settings_that_travel(store),
        "labels": [row.label for row in rows],
        "sources": [row.source for row in rows],
    }
    arrays = {
        "id": np.array(ids, np.int64),
        "key": np.array([row.key for row in rows], np.float32).reshape(len(rows), store.width),
        "surprise_nats": np.array([row.surprise_nats for row in rows], np.float64),
        "written_at": np.array([row.written_at for row in rows], np.float64),
        **_joined("payload", [row.payload for row in rows]),
    }
    if consolidated:
        merged = [example for row in rows for example in row.merged]
        description["merged_sources"] = [example.source for example in merged]
        arrays |= {
            "count": np.array([row.count for row in rows], np.int64),
            **_joined("extra", [row.extra for row in rows]),
            "merged": np.array([len(row.merged) for row in rows], np.int64),
            **_joined("merged_key", [key_bytes(example.key) for example in merged]),
        }
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    try:
        (partial / DESCRIPTION).write_text(json.dumps(description, ensure_ascii=False, indent=1), encoding="utf-8")
        safetensors.numpy.save_file(arrays, partial / ROWS)
        if target.suffix == ".zip":
            pack(partial, partial.with_suffix(".part"))
            partial.with_suffix(".part").rename(target)
            shutil.rmtree(partial)
        else:
            partial.chmod(0o755)
            partial.rename(target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StoreError(f"{target} could not be written: {error}") from error
    return len(rows)


def settings_that_travel(store: Store) -> dict[str, Any]:
    return {name: value for name, value in store.settings().items() if not name.startswith(STAYS)}


def read_exported(path: str | os.PathLike[str], most_bytes: int | None = None) -> Exported:
    """An exported memory, directory or archive, checked to the last row: what comes back can be written as it is."""
    source = Path(path)
    if not source.is_file():
        return _read_directory(source, source)
    with tempfile.TemporaryDirectory() as scratch:
        unpack(source, Path(scratch), (DESCRIPTION, ROWS), most_bytes)
        return _read_directory(Path(scratch), source)


def _read_directory(directory: Path, source: Path) -> Exported:
    try:
        description = json.loads((directory / DESCRIPTION).read_text(encoding="utf-8"))
        if description.get("format") != FORMAT:
            raise StoreDamaged(f"{source} is no exported memory")
        if description["format_version"] > FORMAT_VERSION:
            raise NewerSchema(f"{source} was exported by a later version of apl: upgrade apl")
        with np.errstate(all="ignore"):  # numbers that do not fit become infinite, and are refused as such
            return _read(description, safetensors.numpy.load_file(directory / ROWS))
    except OSError as error:
        raise StoreError(f"{error.filename or source}: {error.strerror}") from error
    except KeyError as error:
        raise StoreDamaged(f"{source} is no exported memory, or a damaged one (it has no {error})") from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        SafetensorError,
    ) as error:
        raise StoreDamaged(f"{source} is no exported memory, or a damaged one ({error})") from error


def _read(description: dict[str, Any], arrays: dict[str, np.ndarray]) -> Exported:
    fingerprint, width, settings, labels, sources = (
        _of_type(description, name, kind)
        for name, kind in (
            ("fingerprint", str),
            ("width", int),
            ("settings", dict),
            ("labels", list),
            ("sources", list),
        )
    )
    if arrays["key"].shape != (len(labels), width):
        raise ValueError(f"{len(labels)} labels, keys of shape {list(arrays['key'].shape)}")
    encoded_settings(settings)
    columns = [
        labels,
        arrays["key"].astype(np.float32),
        arrays["surprise_nats"].astype(np.float64).tolist(),
        arrays["written_at"].astype(np.float64).tolist(),
        sources,
        _cut(arrays, "payload"),
    ]
    if description["format_version"] >= 2:
        sources = _of_type(description, "merged_sources", list)
        examples = iter(
            [
                MergedExample(source, key_of(key, width))
                for source, key in zip(sources, _cut(arrays, "merged_key"), strict=True)
            ]
        )
        sizes = arrays["merged"].astype(np.int64).tolist()
        if min(sizes, default=0) < 0 or sum(sizes) != len(sources):
            raise ValueError("the numbers of merged examples do not add up")
        columns += [
            arrays["count"].astype(np.int64).tolist(),
            _cut(arrays, "extra"),
            [tuple(itertools.islice(examples, size)) for size in sizes],
        ]
    rows = [NewRow(*cells) for cells in zip(*columns, strict=True)]
    return Exported(fingerprint, width, settings, checked_rows(rows, width))


def import_memory(exported: Exported | str | os.PathLike[str], target: Store) -> Copied:
    """Copy an exported memory into an open one, all of it or nothing, leaving out the rows that it has.

    An empty target also gets the settings it has not.
    """
    if not isinstance(exported, Exported):
        exported = read_exported(exported)
    _require_same_encoder(target, exported.fingerprint, exported.width)
    own = target.settings()
    settings = {} if target.count() else {k: v for k, v in exported.settings.items() if k not in own}
    missing = _missing(exported.rows, _identities(target.load()))
    target.append(missing, settings=settings)
    return Copied(len(missing), len(exported.rows) - len(missing))


def merge(source: Store, target: Store) -> Copied:
    """Copy into `target` the rows of `source` that it lacks.

    Rows are the same if their label, source and key are, to the last bit; if `source` has more copies of one
    than `target`, the difference is copied. So merging again does nothing, and a merge that was interrupted
    is finished by repeating it. Rows keep their surprise, time and payload, and get new ids. The target's
    settings stay as they are.
    """
    _require_same_encoder(target, source.fingerprint, source.width)
    there = _identities(target.load())
    written = already_there = 0
    for block in _blocks(source.rows()):
        missing = _missing(_as_new(source, block), there)
        written += len(target.append(missing))
        already_there += len(block) - len(missing)
    return Copied(written, already_there)


def reembed(source: Store, target: Store, embed: Callable[[Sequence[bytes]], np.ndarray]) -> Copied:
    """Copy all rows of `source` into the empty `target`, with keys computed anew from their payloads."""
    if target.count():
        raise StoreError(f"memory {target.name!r} is not empty: re-embed into a new one")
    without = sum(row.payload is None for row in source.rows())
    if without:
        raise StoreError(f"{without} rows of memory {source.name!r} have no payload to embed; nothing was written")
    rows: list[NewRow] = []
    for block in _blocks(source.rows()):
        keys = np.asarray(embed([row.payload for row in block]), np.float32)
        if keys.shape != (len(block), target.width):
            raise ValueError(f"embed gave an array of shape {list(keys.shape)}, not {[len(block), target.width]}")
        # The keys of the examples behind a row were made by the old encoder; where they came from is still true.
        rows += [
            replace(row, key=key, merged=tuple(replace(example, key=None) for example in row.merged))
            for row, key in zip(_as_new(source, block), keys, strict=True)
        ]
    target.append(rows, settings=settings_that_travel(source))
    return Copied(len(rows), 0)


def verify(store: Store) -> list[str]:
    """What is wrong with a memory, one sentence each; empty if nothing is."""
    problems = store.problems()
    return problems or settings_problems(store.settings())


def settings_problems(settings: dict[str, Any]) -> list[str]:
    """Parameters with which a classifier could not open its memory again."""
    recorded = settings.get("classifier", {})
    if not isinstance(recorded, dict):
        return ["setting 'classifier': it does not hold parameters"]
    found = []
    for name, least in LEAST.items():
        value = recorded.get(name)
        if value is not None and not (isinstance(value, (int, float)) and value >= least):
            found.append(f"setting 'classifier': {name} must be at least {least}, it is {value!r}")
    return found


def _missing(rows: Iterable[NewRow], there: Counter[tuple[str, Label, str | None, bytes]]) -> list[NewRow]:
    missing = []
    for row in rows:
        identity = _identity(row.label, row.source, row.key)
        if there[identity] > 0:
            there[identity] -= 1
        else:
            missing.append(row)
    return missing


def _identity(label: Label, source: str | None, key: np.ndarray) -> tuple[str, Label, str | None, bytes]:
    # The type belongs to it, because 7 and "7" are two labels.
    return type(label).__name__, label, source, np.asarray(key, np.float32).tobytes()


def _identities(snapshot: Snapshot) -> Counter[tuple[str, Label, str | None, bytes]]:
    return Counter(
        _identity(label, source, key)
        for label, source, key in zip(snapshot.labels, snapshot.sources, snapshot.keys, strict=True)
    )


def _as_new(store: Store, rows: Sequence[Row]) -> list[NewRow]:
    """Rows with the examples behind them, to be written elsewhere."""
    merged = store.merged_into([row.id for row in rows])
    return [row.as_new(merged=tuple(merged.get(row.id, ()))) for row in rows]


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


def _of_type(description: dict[str, Any], name: str, kind: type) -> Any:
    value = description[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is of type {type(value).__name__}")
    return value


def _joined(name: str, parts: Sequence[bytes | None]) -> dict[str, np.ndarray]:
    """All parts end to end; a size of -1 means that there is none."""
    return {
        name: np.frombuffer(b"".join(part for part in parts if part is not None), np.uint8),
        f"{name}_size": np.array([-1 if part is None else len(part) for part in parts], np.int64),
    }


def _cut(arrays: dict[str, np.ndarray], name: str) -> list[bytes | None]:
    joined, sizes = arrays[name].astype(np.uint8).tobytes(), arrays[f"{name}_size"].astype(np.int64).tolist()
    present = [max(0, size) for size in sizes]
    if sum(present) != len(joined):
        raise ValueError(f"the sizes of {name} do not add up")
    ends = itertools.accumulate(present)
    return [None if size < 0 else joined[end - size : end] for size, end in zip(sizes, ends, strict=True)]
