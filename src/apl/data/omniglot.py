"""Omniglot (Lake et al. 2015): 1,623 handwritten characters of 50 alphabets, drawn by 20 people each.

The data of the paper's sections 4.1 and 4.2. Three ways of dividing the characters are in use, and
every number must name its own; see `Split`.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from PIL import Image, ImageChops

from apl.data import Part, Split
from apl.data.files import PublishedFile, damaged, find_file, parsed_once
from apl.data.labelled import LabelledImages
from apl.pictures.image_file import open_image
from apl.progress import progress_bar


@dataclass(frozen=True)
class OmniglotZip:
    """One of the two published archives, and what a complete one holds."""

    file: PublishedFile
    characters: int
    drawings: int = 20


def _published(name: str, md5: str) -> PublishedFile:
    url = f"https://raw.githubusercontent.com/brendenlake/omniglot/master/python/{name}"
    return PublishedFile("omniglot", name, md5, (url,))


ARCHIVES = (
    OmniglotZip(_published("images_background.zip", "68d2efa1b9178cc56df9314c21c6e718"), characters=964),
    OmniglotZip(_published("images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811"), characters=659),
)

# <part>/<Alphabet>/character<NN>/<class id>_<drawer>.png
_DRAWING = re.compile(r"[^/]+/([^/]+/character\d+)/(\d+)_(\d+)\.png")

_BOTH_TEST = "Ge_ez Glagolitic Gurmukhi Kannada Malayalam Manipuri Old_Church_Slavonic_(Cyrillic) Oriya Tibetan"
PAPER_TEST = frozenset(["Bengali", *_BOTH_TEST.split()])
"""The paper gives only the numbers. Release: which ten alphabets are the test."""
VALIDATION = frozenset(["Armenian", "Early_Aramaic", "Hebrew", "Mkhedruli_(Georgian)"])
"""126 characters: Vinyals' validation alphabets without Bengali, which the paper tests on.

All four are in the background set, so the split `lake` holds out the same ones."""

_LAKE_TEST = (
    "Angelic Atemayar_Qelisayer Atlantean Aurek-Besh Avesta Keble Mongolian Sylheti Syriac_(Serto) Tengwar ULOG"
)
LAKE_TEST = frozenset([*_BOTH_TEST.split(), *_LAKE_TEST.split()])
VINYALS_TEST = frozenset(alphabet for alphabet in LAKE_TEST if alphabet >= "Kannada")
# Vinyals et al. cut the class ids at 1200, which falls inside one alphabet.
VINYALS_TEST_CHARACTERS = frozenset(f"Gurmukhi/character{number}" for number in (42, 43, 44, 45))


def load_omniglot(size: int = 28, *, archives: tuple[OmniglotZip, ...] = ARCHIVES) -> LabelledImages:
    """All characters, named `Alphabet/characterNN` and ordered by the class ids of the published files."""
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, not {size}")
    paths = [find_file(archive.file) for archive in archives]

    def parse() -> LabelledImages:
        parts = [_read_archive(path, archive, size) for path, archive in zip(paths, archives, strict=True)]
        names = tuple(name for part in parts for name in part.class_names)
        if len(set(names)) < len(names):
            raise damaged(paths[-1], f"it repeats characters of {paths[0].name}")
        offsets = np.cumsum([0] + [len(part.class_names) for part in parts])
        return LabelledImages(
            torch.cat([part.images for part in parts]),
            torch.cat([part.labels + int(offset) for part, offset in zip(parts, offsets, strict=False)]),
            names,
        )

    return parsed_once(f"omniglot-{size}", paths, parse)


def _read_archive(path: Path, archive: OmniglotZip, size: int) -> LabelledImages:
    try:
        with zipfile.ZipFile(path) as file:
            drawings = sorted(
                (int(match[2]), match[1], int(match[3]), entry)
                for entry in file.namelist()
                if (match := _DRAWING.fullmatch(entry))
            )
            names = tuple(dict.fromkeys(name for _, name, _, _ in drawings))
            _check_complete(path, archive, [name for _, name, _, _ in drawings])
            images = np.empty((len(drawings), 1, size, size), dtype=np.uint8)
            with progress_bar(transient=True) as progress:
                entries = [entry for *_, entry in drawings]
                for i, entry in enumerate(progress.track(entries, description=f"reading {path.name}, once")):
                    images[i, 0] = _read_drawing(file.read(entry), size)
    # zlib, zipfile and a picture's decoder raise different errors for damaged data.
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError) as error:
        raise damaged(path, str(error) or type(error).__name__) from error
    number = {name: i for i, name in enumerate(names)}
    labels = torch.tensor([number[name] for _, name, _, _ in drawings], dtype=torch.int64)
    return LabelledImages(torch.from_numpy(images), labels, names)


def _check_complete(path: Path, archive: OmniglotZip, names: list[str]) -> None:
    counts = Counter(names)
    if len(counts) != archive.characters:
        raise damaged(path, f"it holds {len(counts)} characters where {archive.characters} are expected")
    for name, count in counts.items():
        if count != archive.drawings:
            raise damaged(path, f"{name} has {count} drawings where {archive.drawings} are expected")


def _read_drawing(png: bytes, size: int) -> np.ndarray:
    # The files hold black ink on white paper.
    ink = ImageChops.invert(open_image(png).convert("L"))
    return np.asarray(ink.resize((size, size), Image.Resampling.LANCZOS))


@dataclass(frozen=True)
class SplitClasses:
    """The names of the classes to train on, to choose hyperparameters on and to report on."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]

    def __post_init__(self) -> None:
        check_disjoint(self.train, self.validation, self.test)

    @property
    def hash(self) -> str:
        """Changes whenever a class changes sides; saved with every result."""
        sides = ("\n".join(sorted(side)) for side in (self.train, self.validation, self.test))
        return hashlib.sha256("\n\n".join(sides).encode()).hexdigest()[:16]


def check_disjoint(*sides: Iterable[str]) -> None:
    """Refuse sides that share a character, be it turned (`@90`) or mirrored (`|`)."""
    side_of: dict[str, int] = {}
    for number, side in enumerate(sides):
        for name in side:
            character = name.split("@")[0].rstrip("|")
            if side_of.setdefault(character, number) != number:
                raise ValueError(f"the class {character!r} is on two sides of a split; they must be disjoint")


HELD_OUT: dict[Split, tuple[frozenset[str], frozenset[str]]] = {
    "paper": (PAPER_TEST, VALIDATION),
    "vinyals": (VINYALS_TEST | VINYALS_TEST_CHARACTERS, VALIDATION | {"Bengali"}),
    "lake": (LAKE_TEST, VALIDATION),
}
"""The alphabets (or characters) of test and validation in each split; the others are for training."""


def split_classes(names: Iterable[str], split: Split) -> SplitClasses:
    """Divide characters by their alphabets, independent of the order given."""
    if split not in HELD_OUT:
        raise ValueError(f"no split named {split!r}: choose 'paper', 'vinyals' or 'lake'")
    test, validation = HELD_OUT[split]
    sides: dict[Part, list[str]] = {"train": [], "validation": [], "test": []}
    for name in sorted(names):
        alphabet = name.split("/")[0]
        side: Part = "test" if alphabet in test or name in test else "validation" if alphabet in validation else "train"
        sides[side].append(name)
    return SplitClasses(tuple(sides["train"]), tuple(sides["validation"]), tuple(sides["test"]))


def omniglot(split: Split, part: Part, rotations: bool = False, size: int = 28) -> LabelledImages:
    """One part of one split, on request with its rotations as further classes (Santoro et al. 2016)."""
    if part not in get_args(Part):
        raise ValueError(f"no part named {part!r}: choose 'train', 'validation' or 'test'")
    data = load_omniglot(size)
    data = data.only(getattr(split_classes(data.class_names, split), part))
    return data.with_rotations() if rotations else data
