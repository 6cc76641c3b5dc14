"""ImageNet's photographs: the small set of 28 per class, or a user's own copy.

Looked for below `APL_DATA`: `imagenet-mini-1000/{train,val}.zip`, else `imagenet/{train,val}/<wnid>/*`, as ILSVRC-2012
unpacks (its validation photographs sorted into folders by class). A class is its wnid; the 1000 of them sorted give the
numbers that every network trained on ImageNet uses. Networks have seen the photographs of `train`, not those of `val`.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from apl.data.files import DataError
from apl.pictures.image_file import SUFFIXES

CLASSES = 1000
PER_CLASS = {"train": 20, "val": 50}
"""Of a full ImageNet no more than these are looked at: each costs 10 ms or more to embed."""
ImagenetPart = Literal["train", "val"]


@dataclass(frozen=True)
class Photographs:
    """Where the photographs of a part lie, and the class of each."""

    place: Path
    """A zip file or a directory."""
    names: tuple[str, ...]
    labels: np.ndarray
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def contents(self) -> Iterator[bytes]:
        """Each file's bytes, in order."""
        if self.place.is_dir():
            yield from ((self.place / name).read_bytes() for name in self.names)
            return
        with zipfile.ZipFile(self.place) as archive:
            yield from (archive.read(name) for name in self.names)

    def identity(self) -> str:
        """Tells these photographs from others, by their names."""
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()[:16]


def imagenet(part: ImagenetPart) -> Photographs:
    root = os.environ.get("APL_DATA")
    if not root:
        raise DataError(
            "ImageNet may not be downloaded for you: set APL_DATA to a directory with imagenet/{train,val}/"
        )
    small, own = Path(root) / "imagenet-mini-1000" / f"{part}.zip", Path(root) / "imagenet" / part
    if small.is_file():
        with zipfile.ZipFile(small) as archive:
            names = [name for name in archive.namelist() if name.lower().endswith(SUFFIXES)]
        return _sorted_out(small, names)
    if own.is_dir():
        names = [str(path.relative_to(own)) for path in own.glob("*/*") if path.suffix.lower() in SUFFIXES]
        return _sorted_out(own, names, PER_CLASS[part])
    raise DataError(f"there is neither {small} nor {own}/<wnid>/: set APL_DATA to the directory that holds one of them")


def _sorted_out(place: Path, names: list[str], most: int | None = None) -> Photographs:
    of_class: dict[str, list[str]] = {}
    for name in sorted(names):
        of_class.setdefault(Path(name).parent.name, []).append(name)
    if len(of_class) != CLASSES:
        raise DataError(
            f"{place} has {len(of_class)} classes of photographs where ImageNet has {CLASSES}: "
            "one folder is needed for each, named by its wnid"
        )
    class_names = sorted(of_class)
    chosen = [name for wnid in class_names for name in of_class[wnid][:most]]
    labels = [number for number, wnid in enumerate(class_names) for _ in of_class[wnid][:most]]
    return Photographs(place, tuple(chosen), np.array(labels), tuple(class_names))
