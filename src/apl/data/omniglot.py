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
    paths = [find_file(archive.file) for archive in archives]

    def parse() -> LabelledImages:
        background, evaluation = (_read_archive(*each, size) for each in zip(paths, archives, strict=True))
        return background.joined(evaluation)

    return parsed_once(f"omniglot-{size}", paths, parse)


def _read_archive(path: Path, archive: OmniglotZip, size: int) -> LabelledImages:
    try:
        with zipfile.ZipFile(path) as file:
            found = [match for entry in file.namelist() if (match := _DRAWING.fullmatch(entry))]
            found.sort(key=lambda match: (int(match[2]), int(match[3])))
            drawn = [match[1] for match in found]
            _check_complete(path, archive, Counter(drawn))
            with progress_bar(transient=True) as progress:
                shown = progress.track(found, description=f"reading {path.name}, once")
                images = np.stack([_read_drawing(file.read(match[0]), size) for match in shown])[:, None]
    # zlib, zipfile and a picture's decoder raise different errors for damaged data.
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError) as error:
        raise damaged(path, str(error) or type(error).__name__) from error
    names = tuple(dict.fromkeys(drawn))
    number = {name: i for i, name in enumerate(names)}
    return LabelledImages(torch.from_numpy(images), torch.tensor([number[name] for name in drawn]), names)


def _check_complete(path: Path, archive: OmniglotZip, counts: Counter[str]) -> None:
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
    test, validation = HELD_OUT[split]
    sides: dict[Part, list[str]] = {"train": [], "validation": [], "test": []}
    for name in sorted(names):
        alphabet = name.split("/")[0]
        side: Part = "test" if alphabet in test or name in test else "validation" if alphabet in validation else "train"
        sides[side].append(name)
    return SplitClasses(tuple(sides["train"]), tuple(sides["validation"]), tuple(sides["test"]))


def omniglot(split: Split, part: Part, rotations: bool = False, size: int = 28) -> LabelledImages:
    """One part of one split, on request with its rotations as further classes (Santoro et al. 2016)."""
    data = load_omniglot(size)
    data = data.only(getattr(split_classes(data.class_names, split), part))
    return data.with_rotations() if rotations else data
