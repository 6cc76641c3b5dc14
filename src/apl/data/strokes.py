"""Strokes of a pen: the shapes they come in, and the ink they leave on the sheet."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

STROKES = 4
"""The most strokes a character has."""
POINTS = 13
"""Control points of a stroke: twelve intervals divide evenly into two or three legs."""
KINDS = ("line", "arc", "wave", "corner", "curve", "loop", "hook", "spiral", "dot")


@dataclass(frozen=True)
class Programs:
    """How to draw each class, in coordinates where the image reaches from -1 to 1 (y downwards)."""

    control: Float[Tensor, "glyph stroke point 2"]
    sharp: Bool[Tensor, "glyph stroke"]
    """Strokes whose control points are joined by straight lines."""
    present: Bool[Tensor, "glyph stroke"]

    def __getitem__(self, chosen: Tensor | slice) -> Programs:
        return Programs(self.control[chosen], self.sharp[chosen], self.present[chosen])


def stroke_shapes(
    start: Float[Tensor, "glyph 2"],
    end: Float[Tensor, "glyph 2"],
    anchors: Float[Tensor, "glyph anchor 2"],
    generator: torch.Generator,
) -> Float[Tensor, "kind glyph point 2"]:
    """Every kind of stroke between these places, in the order of `KINDS`."""
    count = len(start)

    def uniform(low: float, high: float) -> Float[Tensor, "glyph 1"]:
        return low + (high - low) * torch.rand(count, 1, generator=generator)

    def side() -> Float[Tensor, "glyph 1"]:
        return 1.0 - 2.0 * torch.randint(2, (count, 1), generator=generator)

    def around(radius: Tensor, angle: Tensor) -> Float[Tensor, "glyph point 2"]:
        return radius[..., None] * torch.stack([angle.cos(), angle.sin()], -1)

    t = torch.linspace(0, 1, POINTS)
    way = end - start
    length = way.norm(dim=-1, keepdim=True)
    heading = torch.atan2(way[:, 1:], way[:, :1])
    across = torch.stack([-way[:, 1], way[:, 0]], -1)
    line = start[:, None] + t[:, None] * way[:, None]

    arc = line + (side() * uniform(0.25, 0.7) * torch.sin(math.pi * t))[..., None] * across[:, None]
    turns = 2 + torch.randint(2, (count, 1), generator=generator)
    wave = line + (side() * uniform(0.15, 0.4) * torch.sin(math.pi * turns * t))[..., None] * across[:, None]

    # Two or three straight legs over places in between; rounded off, they are a free curve.
    between = start[:, None] + way[:, None] * torch.tensor([[0.3], [0.7]])
    between = between + 0.7 * (2 * torch.rand(count, 2, 2, generator=generator) - 1)
    upright = torch.stack([choice(anchors, generator), choice(anchors, generator)], 1)
    between = torch.where(torch.rand(count, 1, 1, generator=generator) < 0.6, upright, between)
    three = torch.stack([start, between[:, 0], between[:, 1], end], 1)
    two = torch.stack([start, between[:, 0], end], 1)
    legs = torch.where(torch.rand(count, 1, 1, generator=generator) < 0.5, along(three), along(two))
    curve = along(three)
    for _ in range(3):
        inner = 0.25 * curve[:, :-2] + 0.5 * curve[:, 1:-1] + 0.25 * curve[:, 2:]
        curve = torch.cat([curve[:, :1], inner, curve[:, -1:]], 1)

    radius = 0.5 * length.clamp(max=1.2) * uniform(0.5, 1.0)
    sweep = side() * 2 * math.pi * t
    wide = torch.stack([uniform(0.7, 1.2), uniform(0.7, 1.2)], -1)
    circle = around(radius, heading + math.pi + uniform(0.75, 1.05) * sweep) + around(radius, heading)
    loop = start[:, None] + wide * circle
    inwards = radius * (1 - 0.75 * t)
    spiral = start[:, None] + around(inwards, heading + math.pi + 1.5 * sweep) + around(radius, heading)

    # Straight on for two thirds, then round with the tip of the pen.
    curl = (side() * math.pi * uniform(0.5, 1.3) * t.sub(0.6).clamp(min=0) / 0.4) + heading
    step = uniform(0.8, 1.0) * length / (POINTS - 1) * torch.where(t > 0.6, 0.85, 1.0)
    hook = start[:, None] + around(step, curl).cumsum(1) - around(step, curl)[:, :1]
    dot = start[:, None] + 0.06 * (line - start[:, None])
    return torch.stack([line, arc, wave, legs, curve, loop, hook, spiral, dot])


def choice(points: Float[Tensor, "glyph point 2"], generator: torch.Generator) -> Float[Tensor, "glyph 2"]:
    count, available = points.shape[:2]
    return points[torch.arange(count), torch.randint(available, (count,), generator=generator)]


def along(corners: Float[Tensor, "glyph corner 2"]) -> Float[Tensor, "glyph point 2"]:
    """Control points spread over straight legs, a control point on each corner."""
    channels = rearrange(corners, "glyph corner xy -> glyph xy corner")
    spread = functional.interpolate(channels, size=POINTS, mode="linear", align_corners=True)
    return rearrange(spread, "glyph xy point -> glyph point xy")


def render(
    programs: Programs, half_width: Float[Tensor, " glyph"], size: int
) -> Float[Tensor, "glyph 1 {size} {size}"]:
    """Images of the programs, ink = 1, as a round pen of that half width (in pixels) would leave them."""
    glyph, stroke = programs.present.nonzero(as_tuple=True)
    control = programs.control[glyph, stroke]
    smooth, straight = _interpolation(3 * size)
    sharp = programs.sharp[glyph, stroke][:, None, None]
    points = torch.where(sharp, straight @ control, smooth @ control)
    pixels = (points + 1) * (size / 2) - 0.5

    # A pen touches only the pixels around it: each point inks a small window, and the darkest ink stays.
    reach = math.ceil(float(half_width.max()) + 0.5)
    offsets = torch.cartesian_prod(torch.arange(-reach, reach + 1), torch.arange(-reach, reach + 1))
    near = pixels.round()[:, :, None] + offsets
    distance = (near - pixels[:, :, None]).norm(dim=-1)
    ink = (half_width[glyph][:, None, None] + 0.5 - distance).clamp(0, 1)
    inside = ((near >= 0) & (near < size)).all(-1)
    x, y = near.clamp(0, size - 1).long().unbind(-1)
    where = (glyph[:, None, None] * size + y) * size + x
    sheet = torch.zeros(len(half_width) * size * size)
    sheet.scatter_reduce_(0, where.flatten(), (ink * inside).flatten(), "amax")
    return sheet.view(-1, 1, size, size)


def _interpolation(samples: int) -> tuple[Float[Tensor, "sample point"], Float[Tensor, "sample point"]]:
    """The control points' weights in each sample of a Catmull-Rom spline and of a chain of straight lines."""
    position = torch.linspace(0, POINTS - 1, samples)
    left = position.floor().clamp(max=POINTS - 2).long()
    u = (position - left)[:, None]
    before, here = -u + 2 * u**2 - u**3, 2 - 5 * u**2 + 3 * u**3
    there, after = u + 4 * u**2 - 3 * u**3, u**3 - u**2
    cubic = 0.5 * torch.cat([before, here, there, after], 1)
    smooth = torch.zeros(samples, POINTS)
    for neighbour in range(4):
        # At the ends the spline goes on as if the last control point were there twice.
        point = (left + neighbour - 1).clamp(0, POINTS - 1)
        smooth.scatter_add_(1, point[:, None], cubic[:, neighbour : neighbour + 1])
    straight = torch.zeros(samples, POINTS)
    straight.scatter_(1, left[:, None], 1 - u).scatter_(1, left[:, None] + 1, u)
    return smooth, straight
