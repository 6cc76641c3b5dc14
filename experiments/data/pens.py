"""Drawings as other pens and scanners would have left them: thick, blurred, coarse, tightly cropped. Training only."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Images = Float[Tensor, "image 1 height width"]

GROUPS = 6
"""Resolution and blur are drawn for each of this many groups of a batch: each is one call for many images."""


THICKEST = 3
"""Pixels by which strokes and dots may grow on each side."""
CROPPED = 0.5
"""Share of the drawings cut out along their ink, with small random margins."""
COARSE, COARSEST = 0.6, 8
"""Share of the drawings that pass through a grid, of `COARSEST` to 28 points a side."""
BLUR = 1.5
"""Largest standard deviation of a Gaussian blur, in pixels."""
CONTRAST = 0.5
"""Ink is raised to the power exp(±CONTRAST); a fifth of the drawings becomes plain black and white."""
NOISE = 0.05


def other_pen(images: Images, generator: torch.Generator, thinnest: int = 0) -> Images:
    """Each drawing as another pen would have left it; values stay within 0..1. With `thinnest`, half of the drawings may
    first shrink by up to this number of pixels on each side, where enough ink is left."""

    def lot(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(images.device)

    if not len(images):
        return images
    cut = cropped(images, lot(len(images), 4) * 0.25, lot(len(images)) < 0.7)
    images = torch.where((lot(len(images)) < CROPPED)[:, None, None, None], cut, images)
    if thinnest:
        images = thinned(images, (2 * lot(len(images)) - 1) * thinnest, thinnest)
    images = thickened(images, lot(len(images)) * THICKEST, THICKEST)
    groups = []
    for group in images.tensor_split(min(GROUPS, len(images))):
        coarse, side, smooth, blur = (float(x) for x in lot(4))
        if coarse < COARSE:
            points = COARSEST + int(side * (29 - COARSEST))
            back = "nearest" if smooth < 0.2 else "bilinear" if smooth < 0.6 else "bicubic"
            group = through_grid(group, points, back)
        groups.append(blurred(group, max(0.0, 2 * blur - 1) * BLUR))
    images = torch.cat(groups).clamp(0, 1)
    each = (len(images), 1, 1, 1)
    images = images ** torch.exp((2 * lot(*each) - 1) * CONTRAST)
    images = torch.where(lot(*each) < 0.2, (images > 0.3 + 0.3 * lot(*each)).float(), images)
    grain = torch.randn(images.shape, generator=generator).to(images.device)
    return (images + grain * NOISE * (2 * lot(*each) - 1).clamp(min=0)).clamp(0, 1)


def cropped(images: Images, margins: Float[Tensor, "image 4"], keep_aspect: Tensor) -> Images:
    """The ink alone, with margins (shares of the ink's side: left, top, right, bottom) around it."""
    count, side = len(images), images.shape[-1]
    edges = []
    for axis in (2, 1):  # what is left after the other axis is gone: columns, then rows
        ink = (images[:, 0] > 0.25).any(3 - axis).float()
        first = ink.argmax(1).float()
        last = side - ink.flip(1).argmax(1).float()
        empty = ink.sum(1) == 0
        edges.append((first.masked_fill(empty, 0.0), last.masked_fill(empty, float(side))))
    (left, right), (top, bottom) = edges
    wide, high = (right - left).clamp(min=2), (bottom - top).clamp(min=2)
    largest = torch.maximum(wide, high)
    # Thin characters keep their shape; nothing is stretched more than threefold.
    wide_to, high_to = (torch.where(keep_aspect, largest, torch.maximum(s, largest / 3)) for s in (wide, high))
    x = (left + right) / 2 + wide_to * (margins[:, 2] - margins[:, 0]) / 2
    y = (top + bottom) / 2 + high_to * (margins[:, 3] - margins[:, 1]) / 2
    wide_to, high_to = wide_to * (1 + margins[:, 0] + margins[:, 2]), high_to * (1 + margins[:, 1] + margins[:, 3])
    zero = torch.zeros(count, device=images.device)
    affine = torch.stack(
        [
            torch.stack([wide_to / side, zero, 2 * x / side - 1], -1),
            torch.stack([zero, high_to / side, 2 * y / side - 1], -1),
        ],
        1,
    )
    grid = F.affine_grid(affine, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def thickened(images: Images, amount: Float[Tensor, " image"], most: int) -> Images:
    """Strokes grown by `amount` pixels on each side, in steps that are nearly round."""
    amount = amount[:, None, None, None]
    thick = images
    for step in range(most):
        square, tall = F.max_pool2d(thick, 3, 1, 1), F.max_pool2d(thick, (3, 1), 1, (1, 0))
        cross = torch.maximum(tall, F.max_pool2d(thick, (1, 3), 1, (0, 1)))
        thick = thick.lerp((square + cross) / 2, (amount - step).clamp(0, 1))
    return thick


def thinned(images: Images, amount: Float[Tensor, " image"], most: int) -> Images:
    """Strokes shrunk by `amount` pixels on each side; a step that takes more than half of a drawing's ink is left out."""
    amount = amount[:, None, None, None]
    for step in range(most):
        thinner = images.lerp(-F.max_pool2d(-images, 3, 1, 1), (amount - step).clamp(0, 1))
        enough = thinner.sum((1, 2, 3), keepdim=True) > 0.5 * images.sum((1, 2, 3), keepdim=True)
        images = torch.where(enough, thinner, images)
    return images


def through_grid(images: Images, side: int, back: str) -> Images:
    """As a scan of `side` × `side` points shows it."""
    coarse = F.interpolate(images, size=(side, side), mode="area")
    smooth = {} if back == "nearest" else {"align_corners": False}
    return F.interpolate(coarse, size=images.shape[2:], mode=back, **smooth)


def blurred(images: Images, deviation: float) -> Images:
    if deviation < 0.2:
        return images
    reach = math.ceil(2 * deviation)
    weights = torch.exp(-(torch.arange(-reach, reach + 1.0, device=images.device) ** 2) / (2 * deviation**2))
    weights = weights / weights.sum()
    images = F.conv2d(images, weights.view(1, 1, -1, 1), padding=(reach, 0))
    return F.conv2d(images, weights.view(1, 1, 1, -1), padding=(0, reach))
