"""Which data a run or an evaluation uses: one small record, saved with every result."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

from apl.data import Part, Split
from apl.data.folder import load_folder, split_folder
from apl.data.glyphs import draw_glyphs
from apl.data.labelled import LabelledImages
from apl.data.omniglot import load_omniglot, omniglot, split_classes

DRAWINGS_PER_GLYPH = 20

Mirrored = Literal["none", "for_encoder", "for_decoder"]
"""Mirror images of training classes are further classes. The encoder may be trained on most of them; every
fifth is kept from it, so that the decoder can be trained on classes the encoder has never seen."""


@dataclass(frozen=True)
class DataSource:
    """A data set with its split into training, validation and test classes."""

    name: Literal["omniglot", "glyphs", "folder"] = "omniglot"
    split: Split = "paper"
    """Which characters of Omniglot are held out."""
    rotations: bool = True
    """Rotations by 90, 180 and 270 degrees count as further classes."""
    glyph_classes: int = 400
    """How many classes of generated glyphs to draw for each part."""
    folder: str = ""
    """The directory of your own pictures, one folder per class (name "folder")."""
    colour: bool = False
    """Take your own pictures as photographs, in colour, instead of drawings."""
    with_validation: bool = False
    """Train on the validation classes too. Use it only after every choice is made."""

    def load(self, part: Part, size: int) -> LabelledImages:
        if self.name == "omniglot":
            return omniglot(self.split, part, self.rotations, size)
        if self.name == "folder":
            pictures = load_folder(self.folder, part, size, self.colour)
        else:
            # Each part is drawn from a seed of its own: no class of one can be in another.
            chance = np.random.default_rng({"train": 1, "validation": 2, "test": 3}[part])
            pictures = LabelledImages.of_glyphs(draw_glyphs(self.glyph_classes, DRAWINGS_PER_GLYPH, chance, size))
        return pictures.with_rotations() if self.rotations else pictures

    def load_training(self, size: int, mirrored: Mirrored) -> LabelledImages:
        """The training classes; `for_encoder` adds most of their mirror images, `for_decoder` is the others."""
        shown = with_mirror_images(self.load("train", size), mirrored)
        if self.with_validation:
            shown = shown.joined(with_mirror_images(self.load("validation", size), mirrored))
        return shown

    def split_name(self) -> str:
        return self.split if self.name == "omniglot" else self.name

    def split_hash(self) -> str:
        """Identifies the held-out classes."""
        if self.name == "omniglot":
            return split_classes(load_omniglot().class_names, self.split).hash
        if self.name == "folder":
            return split_folder(self.folder).hash
        return short_hash(f"glyphs {self.glyph_classes}")


def short_hash(described: str) -> str:
    """Identifies what a text describes."""
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def with_mirror_images(plain: LabelledImages, mirrored: Mirrored) -> LabelledImages:
    if mirrored == "none":
        return plain
    mirror = plain.mirrored()
    kept_back = mirror.class_names[::5]
    if mirrored == "for_decoder":
        return mirror.only(kept_back)
    return plain.joined(mirror.only(tuple(n for n in mirror.class_names if n not in set(kept_back))))
