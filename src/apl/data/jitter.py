"""Random small deformations of drawings: affine, elastic and stroke width. Training only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class JitterConfig:
    """How far a drawing may be moved from the original; 0 switches a deformation off."""

    rotation_degrees: float = 12.0
    scale: float = 0.15
    """Width and height are each scaled by up to exp(±scale)."""
    shear: float = 0.2
    shift: float = 0.12
    """In halves of the image's side."""
    elastic: float = 0.045
    """Standard deviation of a smooth random displacement, in halves of the image's side."""
    thickness: float = 0.3
    """Share of the drawings whose strokes are thickened or blurred by a random amount."""


def jitter(
    images: Float[Tensor, "image channel height width"], config: JitterConfig, generator: torch.Generator
) -> Float[Tensor, "image channel height width"]:
    """Each image deformed independently."""
    count = len(images)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(images.device) * 2 - 1

    angle = uniform(count) * math.radians(config.rotation_degrees)
    cos, sin = angle.cos(), angle.sin()
    stretch = torch.exp(uniform(count, 2) * config.scale)
    shear = uniform(count) * config.shear
    rotation = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], 1)
    zero = torch.zeros(count, device=images.device)
    deform = torch.stack([torch.stack([stretch[:, 0], shear], -1), torch.stack([zero, stretch[:, 1]], -1)], 1)
    affine = torch.cat([rotation @ deform, uniform(count, 2, 1) * config.shift], 2)
    grid = F.affine_grid(affine, list(images.shape), align_corners=False)
    if config.elastic:
        coarse = torch.randn(count, 2, 4, 4, generator=generator).to(images.device) * config.elastic
        smooth = F.interpolate(coarse, size=images.shape[2:], mode="bicubic", align_corners=True)
        grid = grid + smooth.permute(0, 2, 3, 1)
    # Around a drawing there is its dark ground; around a photograph, more of what its edge shows.
    beyond = "zeros" if images.shape[1] == 1 else "border"
    moved = F.grid_sample(images, grid, padding_mode=beyond, align_corners=False)
    if config.thickness and images.shape[1] == 1:
        moved = _vary_strokes(moved, config.thickness, generator)
    return moved


def _vary_strokes(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    lot = torch.rand(len(images), generator=generator).to(images.device)[:, None, None, None]
    amount = torch.rand(len(images), 1, 1, 1, generator=generator).to(images.device)
    thick = images.lerp(F.max_pool2d(images, 3, 1, 1), amount)
    blurred = images.lerp(F.avg_pool2d(images, 3, 1, 1), amount)
    return torch.where(lot < share / 2, thick, torch.where(lot < share, blurred, images))
