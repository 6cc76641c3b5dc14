"""An exported memory: a directory of two files that any language can read, or a zip archive of these two.

`memory.json` describes the memory and holds its settings, labels and sources; `rows.safetensors` holds ids, keys, surprise,
times, counts, payloads and what each source contributed to a row (`share_…`).
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from apl.config import Metric
from apl.durable_file import replace_durably, sync
from apl.store.checks import checked_rows, encoded, has_more_values
from apl.store.errors import OtherSchema, StoreDamaged, StoreError
from apl.store.rows import NewRow, SourceShare
from apl.store.writing import Store

FORMAT = "apl-memory"
FORMAT_VERSION = 3
DESCRIPTION, ROWS = "memory.json", "rows.safetensors"
WRONG = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, SafetensorError)
"""What reading meets in files that are not what they should be."""
MERGED_SETTING = "merged memories"
"""The identities of the memories that were merged into this one, and their generations at that time. It is not copied."""


@dataclass(frozen=True)
class Exported:
    """An exported memory, read back and checked."""

    fingerprint: str
    width: int
    metric: Metric
    settings: dict[str, Any]
    rows: list[NewRow]


def settings_that_travel(store: Store) -> dict[str, Any]:
    return {name: value for name, value in store.settings().items() if name != MERGED_SETTING}


class TooLarge(StoreError):
    """More than the reader is willing to unpack."""


def export_memory(store: Store, path: str | os.PathLike[str]) -> int:
    """Write a memory to a new directory, or to one file if its name ends in `.zip`; returns the number of rows.

    It appears whole or not at all.
    """
    target = Path(path)
    if target.exists():
        raise StoreError(f"{target} is there already: export to a new directory")
    rows = list(store.new_rows())
    text = json.dumps(_description(store, rows), ensure_ascii=False, indent=1)
    content = {DESCRIPTION: text.encode(), ROWS: safetensors.numpy.save(_arrays(rows, store.width))}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
            whole = Path(scratch) / "whole"
            if target.suffix == ".zip":
                whole.touch(0o600)
                with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as packed:
                    for name, part in content.items():
                        packed.writestr(name, part)
            else:
                whole.mkdir(0o700)
                for name, part in content.items():
                    (whole / name).write_bytes(part)
                    sync(whole / name)
            replace_durably(whole, target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    return len(rows)


def _description(store: Store, rows: Sequence[NewRow]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "name": store.name,
        "fingerprint": store.fingerprint,
        "width": store.width,
        "metric": store.metric,
        "created": store.created,
        "settings": settings_that_travel(store),
        "labels": [row.label for row in rows],
        "sources": [row.source for row in rows],
        "share_sources": [share.source for row in rows for share in row.shares],
    }


def _arrays(rows: Sequence[NewRow], width: int) -> dict[str, np.ndarray]:
    shares = [share for row in rows for share in row.shares]
    payloads = [row.payload for row in rows]
    return {
        "id": np.arange(1, len(rows) + 1, dtype=np.int64),
        "key": np.array([row.key for row in rows], np.float32).reshape(len(rows), width),
        "surprise_nats": np.array([row.surprise_nats for row in rows], np.float64),
        "written_at": np.array([row.written_at for row in rows], np.float64),
        "count": np.array([row.count for row in rows], np.int64),
        # All payloads end to end; a size of -1 stands for none.
        "payload": np.frombuffer(b"".join(payload for payload in payloads if payload is not None), np.uint8),
        "payload_size": np.array([-1 if payload is None else len(payload) for payload in payloads], np.int64),
        "shares": np.array([len(row.shares) for row in rows], np.int64),
        "share_total": np.array([share.total for share in shares], np.float64).reshape(len(shares), width),
        "share_count": np.array([share.count for share in shares], np.int64),
    }


def read_exported(
    path: str | os.PathLike[str], most_bytes: int | None = None, most_values: int | None = None
) -> Exported:
    """An exported memory, directory or archive, checked to the last row: what comes back can be written as it is."""
    source = Path(path)
    try:
        if source.is_file():
            content = _unpacked(source, most_bytes)
        else:
            content = {name: (source / name).read_bytes() for name in (DESCRIPTION, ROWS)}
        if most_values is not None and has_more_values(content[DESCRIPTION], most_values):
            raise TooLarge(f"{DESCRIPTION} must not have more than {most_values:,} values")
        description = json.loads(content[DESCRIPTION].decode())
        if description.get("format") != FORMAT:
            raise StoreDamaged(f"{source} is no exported memory")
        if description["format_version"] > FORMAT_VERSION:
            raise OtherSchema(f"{source} was exported by a later version of apl: upgrade apl")
        if description["format_version"] < FORMAT_VERSION:
            raise OtherSchema(f"{source} was exported by a version of apl that is too old: it is not read any more")
        with np.errstate(all="ignore"):  # numbers that do not fit become infinite, and are refused as such
            exported = _read(description, safetensors.numpy.load(content[ROWS]))
    except OSError as error:
        raise StoreError(f"{error.filename or source}: {error.strerror}") from error
    except WRONG as error:
        raise StoreDamaged(f"{source} is no exported memory, or a damaged one ({error})") from error
    return exported


def _unpacked(archive: Path, most_bytes: int | None) -> dict[str, bytes]:
    """Only the files we know, by their exact names, and never more than was announced and allowed."""
    content = {}
    try:
        with zipfile.ZipFile(archive) as packed:
            entries = packed.infolist()
            if sorted(entry.filename for entry in entries) != [DESCRIPTION, ROWS]:
                raise StoreDamaged(f"the archive must hold {DESCRIPTION} and {ROWS}, and nothing else")
            if most_bytes is not None and sum(entry.file_size for entry in entries) > most_bytes:
                raise TooLarge(f"the unpacked archive must not exceed {most_bytes:,} bytes")
            for entry in entries:
                with packed.open(entry) as file:
                    content[entry.filename] = file.read(entry.file_size + 1)
                if len(content[entry.filename]) > entry.file_size:
                    raise StoreDamaged("the archive is damaged: a file is larger than announced")
    except StoreError:
        raise
    except Exception:
        # zipfile and zlib meet damaged archives with errors of many kinds.
        raise StoreDamaged(f"{archive.name} is not a zip archive that can be read") from None
    return content


def _read(description: dict[str, Any], arrays: dict[str, np.ndarray]) -> Exported:
    fingerprint, width = _of_type(description, "fingerprint", str), _of_type(description, "width", int)
    metric: Metric = description.get("metric", "euclidean")
    if metric not in get_args(Metric):
        raise ValueError(f"metric {metric!r:.40}")
    settings, labels = _of_type(description, "settings", dict), _of_type(description, "labels", list)
    if arrays["key"].shape != (len(labels), width):
        raise ValueError(f"{len(labels)} labels, keys of shape {list(arrays['key'].shape)}")
    encoded(settings)
    shares = _shares(description, arrays)
    rows = [
        NewRow(*cells)
        for cells in zip(
            labels,
            arrays["key"].astype(np.float32),
            arrays["surprise_nats"].astype(np.float64).tolist(),
            arrays["written_at"].astype(np.float64).tolist(),
            _of_type(description, "sources", list),
            _payloads(arrays),
            arrays["count"].astype(np.int64).tolist(),
            shares,
            strict=True,
        )
    ]
    return Exported(fingerprint, width, metric, settings, checked_rows(rows, width))


def _shares(description: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[tuple[SourceShare, ...]]:
    """Of each row."""
    totals, counts = arrays["share_total"].astype(np.float64), arrays["share_count"].astype(np.int64).tolist()
    sources, numbers = _of_type(description, "share_sources", list), arrays["shares"].astype(np.int64).tolist()
    shares = [SourceShare(*cells) for cells in zip(sources, totals, counts, strict=True)]
    if min(numbers, default=0) < 0 or sum(numbers) != len(shares):
        raise ValueError("the numbers of shares do not add up")
    rest = iter(shares)
    return [tuple(itertools.islice(rest, number)) for number in numbers]


def _of_type(description: dict[str, Any], name: str, kind: type) -> Any:
    value = description[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is of type {type(value).__name__}")
    return value


def _payloads(arrays: dict[str, np.ndarray]) -> list[bytes | None]:
    joined, sizes = arrays["payload"].astype(np.uint8).tobytes(), arrays["payload_size"].astype(np.int64).tolist()
    present = [max(0, size) for size in sizes]
    if sum(present) != len(joined):
        raise ValueError("the sizes of the payloads do not add up")
    ends = itertools.accumulate(present)
    return [None if size < 0 else joined[end - size : end] for size, end in zip(sizes, ends, strict=True)]
