"""Finding the files of a data set: in `APL_DATA`, then in the user's cache, then by an official download.

Parsed files are kept in the same cache.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import safetensors
import safetensors.torch
from rich.progress import DownloadColumn

from apl.data.labelled import LabelledImages
from apl.progress import progress_bar

CACHE_FORMAT = 1
"""Raise it whenever the way files are parsed changes: older caches are then left aside."""

TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 18


class DataError(RuntimeError):
    """A file of a data set is missing or damaged; the message says which, and what to do."""


@dataclass(frozen=True)
class PublishedFile:
    """A file as its authors published it."""

    folder: str
    """The data set's directory, below `APL_DATA` or below the cache."""
    name: str
    md5: str
    """Checked after a download only: a file supplied by hand may have been packed again."""
    urls: tuple[str, ...]
    """Mirrors, tried in this order."""


def cache_directory() -> Path:
    return Path(platformdirs.user_cache_dir("apl", appauthor=False))


def find_file(file: PublishedFile) -> Path:
    """The path of this file, downloaded first if need be."""
    looked_in = []
    if supplied := os.environ.get("APL_DATA"):
        if not Path(supplied).is_dir():
            raise DataError(
                f"APL_DATA is set to {supplied}, which is no directory: "
                f"set it to the directory that contains {file.folder}/{file.name}, or unset it."
            )
        looked_in.append(Path(supplied) / file.folder)
    looked_in.append(cache_directory() / file.folder)
    for folder in looked_in:
        if (folder / file.name).is_file():
            return folder / file.name
    return _download(file, looked_in)


def damaged(path: Path, problem: str) -> DataError:
    """The error for a file that is there but cannot be used."""
    return DataError(
        f"{path} is damaged or not the published file: {problem}. Delete it, then set APL_DATA to a "
        "directory with a good copy, or connect to the internet to have it downloaded again."
    )


def _download(file: PublishedFile, looked_in: list[Path]) -> Path:
    destination = cache_directory() / file.folder / file.name
    # The process id keeps two programs that start together from writing into one another's file.
    part = destination.with_name(f"{file.name}.{os.getpid()}.part")
    failures = []
    for url in file.urls:
        try:
            destination.parent.mkdir(parents=True, exist_ok=True)
            found_md5 = _fetch(url, part)
            if found_md5 != file.md5:
                failures.append(f"{url}: checksum {found_md5} where {file.md5} is published")
                continue
            os.replace(part, destination)
            return destination
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {error}")
        finally:
            part.unlink(missing_ok=True)
    raise DataError(
        f"{file.name} was not found in {' or '.join(map(str, looked_in))}, and could not be downloaded "
        f"({'; '.join(failures)}). Set APL_DATA to the directory that contains {file.folder}/{file.name}, "
        "or connect to the internet and try again."
    )


def _fetch(url: str, part: Path) -> str:
    """Write what is at the address to this file, and give its md5."""
    digest = hashlib.md5(usedforsecurity=False)
    with (
        urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response,
        part.open("wb") as out,
        progress_bar(DownloadColumn(), transient=True) as progress,
    ):
        length = response.headers.get("Content-Length")
        name = url.rsplit("/", 1)[-1]
        task = progress.add_task(f"downloading {name}", total=int(length) if length else None)
        while chunk := response.read(CHUNK_BYTES):
            digest.update(chunk)
            out.write(chunk)
            progress.advance(task, len(chunk))
    return digest.hexdigest()


def parsed_once(name: str, sources: Iterable[Path], parse: Callable[[], LabelledImages]) -> LabelledImages:
    """The result of `parse`, taken from the cache as long as the source files stay the same."""
    identity = [str(CACHE_FORMAT)]
    for source in sources:
        status = source.stat()
        identity.append(f"{source.resolve()} {status.st_size} {status.st_mtime_ns}")
    key = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
    path = cache_directory() / "parsed" / f"{name}-{key}.safetensors"
    # A damaged cache is built again from its sources.
    with suppress(OSError, safetensors.SafetensorError, KeyError, ValueError, TypeError):
        with safetensors.safe_open(path, framework="pt") as file:
            names = json.loads(file.metadata()["class_names"])
            return LabelledImages(file.get_tensor("images"), file.get_tensor("labels"), tuple(names))
    data = parse()
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    # Without a cache the next start parses again; this one has its result.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors, metadata = (
            {"images": data.images, "labels": data.labels},
            {"class_names": json.dumps(data.class_names)},
        )
        part.write_bytes(safetensors.torch.save(tensors, metadata))
        os.replace(part, path)
    return data
