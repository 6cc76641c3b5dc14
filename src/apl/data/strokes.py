"""Strokes of a pen: the shapes they come in, and the ink they leave on the sheet."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

STROKES = 4
"""The most strokes a character has."""
POINTS = 13
"""Control points of a stroke: twelve intervals divide evenly into two or three legs."""
KINDS = ("line", "arc", "wave", "corner", "curve", "loop", "hook", "spiral", "dot")


@dataclass(frozen=True)
class Programs:
    """How to draw each class, in coordinates where the image reaches from -1 to 1 (y downwards)."""

    control: Float[np.ndarray, "glyph stroke point 2"]
    sharp: Bool[np.ndarray, "glyph stroke"]
    """Strokes whose control points are joined by straight lines."""
    present: Bool[np.ndarray, "glyph stroke"]

    def __getitem__(self, chosen: np.ndarray | slice) -> Programs:
        return Programs(self.control[chosen], self.sharp[chosen], self.present[chosen])


def stroke_shapes(
    start: Float[np.ndarray, "glyph 2"],
    end: Float[np.ndarray, "glyph 2"],
    anchors: Float[np.ndarray, "glyph anchor 2"],
    generator: np.random.Generator,
) -> Float[np.ndarray, "kind glyph point 2"]:
    """Every kind of stroke between these places, in the order of `KINDS`."""
    count = len(start)

    def uniform(low: float, high: float) -> Float[np.ndarray, "glyph 1"]:
        return generator.uniform(low, high, (count, 1))

    def side() -> Float[np.ndarray, "glyph 1"]:
        return 1.0 - 2.0 * generator.integers(2, size=(count, 1))

    def around(radius: np.ndarray, angle: np.ndarray) -> Float[np.ndarray, "glyph point 2"]:
        points: np.ndarray = radius[..., None] * np.stack([np.cos(angle), np.sin(angle)], -1)
        return points

    t = np.linspace(0, 1, POINTS)
    way = end - start
    length = np.linalg.norm(way, axis=-1, keepdims=True)
    heading = np.arctan2(way[:, 1:], way[:, :1])
    across = np.stack([-way[:, 1], way[:, 0]], -1)
    line = start[:, None] + t[:, None] * way[:, None]

    arc = line + (side() * uniform(0.25, 0.7) * np.sin(math.pi * t))[..., None] * across[:, None]
    turns = 2 + generator.integers(2, size=(count, 1))
    wave = line + (side() * uniform(0.15, 0.4) * np.sin(math.pi * turns * t))[..., None] * across[:, None]

    # Two or three straight legs over places in between; rounded off, they are a free curve.
    between = start[:, None] + way[:, None] * np.array([[0.3], [0.7]])
    between = between + 0.7 * generator.uniform(-1, 1, (count, 2, 2))
    upright = np.stack([choice(anchors, generator), choice(anchors, generator)], 1)
    between = np.where(generator.random((count, 1, 1)) < 0.6, upright, between)
    three = np.stack([start, between[:, 0], between[:, 1], end], 1)
    two = np.stack([start, between[:, 0], end], 1)
    legs = np.where(generator.random((count, 1, 1)) < 0.5, along(three), along(two))
    curve = along(three)
    for _ in range(3):
        inner = 0.25 * curve[:, :-2] + 0.5 * curve[:, 1:-1] + 0.25 * curve[:, 2:]
        curve = np.concatenate([curve[:, :1], inner, curve[:, -1:]], 1)

    radius = 0.5 * length.clip(max=1.2) * uniform(0.5, 1.0)
    sweep = side() * 2 * math.pi * t
    wide = np.stack([uniform(0.7, 1.2), uniform(0.7, 1.2)], -1)
    circle = around(radius, heading + math.pi + uniform(0.75, 1.05) * sweep) + around(radius, heading)
    loop = start[:, None] + wide * circle
    inwards = radius * (1 - 0.75 * t)
    spiral = start[:, None] + around(inwards, heading + math.pi + 1.5 * sweep) + around(radius, heading)

    # Straight on for two thirds, then round with the tip of the pen.
    curl = (side() * math.pi * uniform(0.5, 1.3) * (t - 0.6).clip(min=0) / 0.4) + heading
    step = uniform(0.8, 1.0) * length / (POINTS - 1) * np.where(t > 0.6, 0.85, 1.0)
    hook = start[:, None] + around(step, curl).cumsum(1) - around(step, curl)[:, :1]
    dot = start[:, None] + 0.06 * (line - start[:, None])
    return np.stack([line, arc, wave, legs, curve, loop, hook, spiral, dot])


def choice(points: Float[np.ndarray, "glyph point 2"], generator: np.random.Generator) -> Float[np.ndarray, "glyph 2"]:
    count, available = points.shape[:2]
    chosen: np.ndarray = points[np.arange(count), generator.integers(available, size=count)]
    return chosen


def along(corners: Float[np.ndarray, "*some corner 2"]) -> Float[np.ndarray, "*some point 2"]:
    """Control points spread over straight legs, a control point on each corner."""
    legs = corners.shape[-2] - 1
    position = np.linspace(0, legs, POINTS)
    left = np.minimum(position.astype(int), legs - 1)
    share = (position - left)[:, None]
    points: np.ndarray = (1 - share) * corners[..., left, :] + share * corners[..., left + 1, :]
    return points


def render(
    programs: Programs, half_width: Float[np.ndarray, " glyph"], size: int
) -> Float[np.ndarray, "glyph 1 {size} {size}"]:
    """Images of the programs, ink = 1, as a round pen of that half width (in pixels) would leave them."""
    glyph, stroke = programs.present.nonzero()
    control = programs.control[glyph, stroke].astype(np.float32)
    smooth, straight = _interpolation(3 * size)
    sharp = programs.sharp[glyph, stroke][:, None, None]
    points = np.where(sharp, straight @ control, smooth @ control)
    pixels = (points + 1) * np.float32(size / 2) - np.float32(0.5)

    # A pen touches only the pixels around it: each point inks a small window, and the darkest ink stays.
    reach = math.ceil(float(half_width.max()) + 0.5)
    middle = np.round(pixels)
    sheet = np.zeros(len(half_width) * size * size, np.float32)
    most = half_width[glyph].astype(np.float32)[:, None] + np.float32(0.5)
    for right in range(-reach, reach + 1):
        for down in range(-reach, reach + 1):
            near = middle + np.array([right, down], np.float32)
            away = near - pixels
            ink = (most - np.sqrt((away * away).sum(-1))).clip(0, 1)
            marked = (ink > 0) & ((near >= 0) & (near < size)).all(-1)
            x, y = near[marked].astype(np.int64).T
            where = (np.broadcast_to(glyph[:, None], marked.shape)[marked] * size + y) * size + x
            np.maximum.at(sheet, where, ink[marked])
    return sheet.reshape(-1, 1, size, size)


def _interpolation(samples: int) -> tuple[Float[np.ndarray, "sample point"], Float[np.ndarray, "sample point"]]:
    """The control points' weights in each sample of a Catmull-Rom spline and of a chain of straight lines."""
    position = np.linspace(0, POINTS - 1, samples)
    left = np.minimum(position.astype(int), POINTS - 2)
    u = position - left
    before, here = -u + 2 * u**2 - u**3, 2 - 5 * u**2 + 3 * u**3
    there, after = u + 4 * u**2 - 3 * u**3, u**3 - u**2
    every = np.arange(samples)
    smooth = np.zeros((samples, POINTS), np.float32)
    for neighbour, weight in enumerate((before, here, there, after)):
        # At the ends the spline goes on as if the last control point were there twice.
        np.add.at(smooth, (every, (left + neighbour - 1).clip(0, POINTS - 1)), 0.5 * weight)
    straight = np.zeros((samples, POINTS), np.float32)
    straight[every, left], straight[every, left + 1] = 1 - u, u
    return smooth, straight
