"""Characters made of two others: further classes for an encoder that knows its training characters too well."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from apl.data.labelled import LabelledImages
from apl.data.source import DataSource, Mirrored

LAYOUTS = {
    "beside": ((0.6, 0.9), (0.33, 0.0)),
    "above": ((0.9, 0.6), (0.0, 0.33)),
    "over": ((0.9, 0.9), (0.0, 0.0)),
}
"""How much width and height of each of the two are left, and how far (in halves of the sheet's side) the first is
moved towards the left or the top, the second the other way."""
CLASSES_AT_ONCE = 64


@dataclass(frozen=True)
class ComposedCharacters(DataSource):
    """The training classes, and others composed of two of them."""

    composed: int = 1000
    """How many composed classes there are."""

    def load_training(self, size: int, mirrored: Mirrored) -> LabelledImages:
        shown = super().load_training(size, mirrored)
        parts = shown if mirrored == "for_encoder" else self.load("train", size)
        return shown.joined(compose(parts, self.composed, torch.Generator().manual_seed(0)))


def compose(data: LabelledImages, classes: int, generator: torch.Generator) -> LabelledImages:
    """New classes, each of two random ones in a random layout; the n-th drawing is made of the n-th of both."""
    old, layouts = len(data.class_names), list(LAYOUTS)
    if classes > (possible := len(layouts) * old * (old - 1)):
        raise ValueError(f"of {old} classes {possible} others can be composed, not {classes}")
    made: dict[tuple[int, int, int], str] = {}
    while len(made) < classes:
        a, b, layout = (int(torch.randint(n, (), generator=generator)) for n in (old, old, len(layouts)))
        if a != b:
            made[a, b, layout] = f"{data.class_names[a]} {layouts[layout]} {data.class_names[b]}"

    data = data.sorted()
    count = data.labels.bincount()
    drawings = int(count.min())
    pairs, layout = torch.tensor(list(made)).view(-1, 3).split([2, 1], 1)
    chosen = (count.cumsum(0) - count)[pairs][:, :, None] + torch.arange(drawings)  # [class, 2, drawing]
    images = torch.empty(classes, drawings, *data.images.shape[1:], dtype=torch.uint8)
    for number, (scale, shift) in enumerate(LAYOUTS.values()):
        for these in (layout == number).nonzero()[:, 0].split(CLASSES_AT_ONCE):
            if not len(these):
                continue
            first, second = (data.images[chosen[these, i].flatten()] for i in (0, 1))
            back = (-shift[0], -shift[1])
            images[these] = torch.maximum(_place(first, scale, back), _place(second, scale, shift)).view_as(
                images[these]
            )
    labels = torch.arange(classes).repeat_interleave(drawings)
    return LabelledImages(images.flatten(0, 1), labels, tuple(made.values()))


def _place(
    images: UInt8[Tensor, "image 1 height width"], scale: tuple[float, float], shift: tuple[float, float]
) -> UInt8[Tensor, "image 1 height width"]:
    """Shrunk and moved."""
    (wide, high), (right, down) = scale, shift
    affine = torch.tensor([[1 / wide, 0, -right / wide], [0, 1 / high, -down / high]]).expand(len(images), 2, 3)
    grid = F.affine_grid(affine, list(images.shape), align_corners=False)
    return F.grid_sample(images.float(), grid, align_corners=False).round().byte()
