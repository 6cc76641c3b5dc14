"""Labelled images: the form of every data set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from apl.data.glyphs import Glyphs


@dataclass(frozen=True)
class LabelledImages:
    """Grey images with ink bright on a dark ground (ink = 255), or pictures in three colours, and the class of each."""

    images: UInt8[Tensor, "image channel height width"]
    labels: Int[Tensor, " image"]
    """The class of each image, an index into `class_names`."""
    class_names: tuple[str, ...]

    @classmethod
    def of_glyphs(cls, glyphs: Glyphs) -> LabelledImages:
        return cls(torch.from_numpy(glyphs.images), torch.from_numpy(glyphs.labels), glyphs.class_names)

    def __len__(self) -> int:
        return len(self.images)

    def only(self, class_names: tuple[str, ...]) -> LabelledImages:
        """The images of these classes alone, labels renumbered in the order given."""
        index = {name: i for i, name in enumerate(self.class_names)}
        unknown = [name for name in class_names if name not in index]
        if unknown:
            raise ValueError(f"no class named {unknown[0]!r} here")
        renumber = torch.full((len(self.class_names),), -1, dtype=torch.int64)
        renumber[[index[name] for name in class_names]] = torch.arange(len(class_names))
        labels = renumber[self.labels]
        kept = labels >= 0
        return LabelledImages(self.images[kept], labels[kept], tuple(class_names))

    def sorted(self) -> LabelledImages:
        """The images of a class one after the other, classes in order."""
        order = self.labels.argsort(stable=True)
        return LabelledImages(self.images[order], self.labels[order], self.class_names)

    def first_of_each(self, count: int) -> LabelledImages:
        """The first `count` images of each class (all, where there are fewer), classes in order."""
        data = self.sorted()
        per_class = data.labels.bincount()
        number = torch.arange(len(data)) - (per_class.cumsum(0) - per_class)[data.labels]
        return LabelledImages(data.images[number < count], data.labels[number < count], data.class_names)

    def with_rotations(self) -> LabelledImages:
        """Rotations by 90, 180 and 270 degrees added as new classes (Santoro et al. 2016)."""
        turned = [torch.rot90(self.images, quarter, (2, 3)) for quarter in range(4)]
        labels = [self.labels + quarter * len(self.class_names) for quarter in range(4)]
        names = tuple(
            name if not quarter else f"{name}@{90 * quarter}" for quarter in range(4) for name in self.class_names
        )
        return LabelledImages(torch.cat(turned), torch.cat(labels), names)

    def joined(self, other: LabelledImages) -> LabelledImages:
        """Both sets of classes side by side."""
        shared = set(self.class_names) & set(other.class_names)
        if shared:
            raise ValueError(f"class {min(shared)!r} is on both sides")
        images = torch.cat([self.images, other.images])
        labels = torch.cat([self.labels, other.labels + len(self.class_names)])
        return LabelledImages(images, labels, self.class_names + other.class_names)

    def mirrored(self) -> LabelledImages:
        """Every image mirrored left to right: mostly new classes, drawn in the same hand."""
        return LabelledImages(self.images.flip(3), self.labels, tuple(f"{name}|" for name in self.class_names))
