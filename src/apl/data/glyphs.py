"""Characters of invented alphabets, drawn by an invented hand: data that needs no file and no torch.

A class is a program of one to four strokes that join as in writing; a drawing is that program carried out with a hand's
inaccuracy. They stand in for Omniglot (paper, section 4.1) in the demonstration and in tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image, ImageDraw

POINTS = 25
"""Points of a stroke: 24 intervals divide evenly into one, two or three legs."""
EXTENT = 1.15
"""Height or width of a character, whichever is more, in images from -1 to 1."""
PEN = 1.6
"""Width of a stroke, in pixels of an image of 28."""
TOO_ALIKE = 0.85
"""Cosine between two blurred characters from which on they count as the same."""
FINER = 4
"""Images are drawn this many times larger, then reduced."""

Program = Float[np.ndarray, "stroke 25 2"]
"""The strokes of a character, in coordinates where the image reaches from -1 to 1."""


@dataclass(frozen=True)
class Glyphs:
    """Drawings of invented characters, ink bright on a dark ground (ink = 255), and the character of each."""

    images: UInt8[np.ndarray, "image 1 side side"]
    labels: Int[np.ndarray, " image"]
    """The class of each image, an index into `class_names`."""
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)


def draw_glyphs(classes: int, drawings: int, generator: np.random.Generator, size: int = 28) -> Glyphs:
    """Invent `classes` characters and draw each `drawings` times. All random numbers come from the generator."""
    if classes < 1 or drawings < 1:
        raise ValueError(f"classes and drawings must be at least 1, not {classes} and {drawings}")
    if size < 8:
        raise ValueError(f"size must be at least 8 pixels to tell strokes apart, not {size}")
    programs = invent(classes, generator)
    labels = np.arange(classes).repeat(drawings)
    pens = PEN * generator.uniform(0.8, 1.2, len(labels))
    drawn = [strokes for program in programs for strokes in by_hand(program, drawings, generator)]
    images = np.stack([ink(strokes, pen, size) for strokes, pen in zip(drawn, pens.tolist(), strict=True)])[:, None]
    # Another generator invents other characters, so their names must differ too.
    tag = int(generator.integers(16**6))
    names = tuple(f"invented-{tag:06x}/character{number + 1:02d}" for number in range(classes))
    return Glyphs(images, labels, names)


def invent(classes: int, generator: np.random.Generator) -> list[Program]:
    """Characters no two of which look alike."""
    programs: list[Program] = []
    seen = np.zeros((classes, 14 * 14), np.float32)
    for _ in range(100 * classes):
        program = invent_one(generator)
        blurred = np.asarray(Image.fromarray(ink(program, PEN, 28)).reduce(2), np.float32).ravel()
        look = blurred / np.linalg.norm(blurred)
        if (seen @ look).max() < TOO_ALIKE:
            seen[len(programs)] = look
            programs.append(program)
            if len(programs) == classes:
                return programs
    raise ValueError(f"could not invent {classes} characters that differ from one another: ask for fewer")


def invent_one(generator: np.random.Generator) -> Program:
    """Strokes over places on a lattice of three by three, most of them joined to an earlier one."""
    lattice = np.stack(np.meshgrid([-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]), -1).reshape(9, 2)
    strokes: list[np.ndarray] = []
    for _ in range(generator.choice(4, p=[0.2, 0.4, 0.25, 0.15]) + 1):
        corners = generator.choice(lattice, generator.integers(2, 5), replace=False)
        corners += 0.12 * generator.standard_normal(corners.shape)
        if strokes and generator.random() < 0.75:
            corners[0] = generator.choice(strokes[-1])
        if len(corners) == 4 and generator.random() < 0.4:
            corners[-1] = corners[0]
        straight = INTERPOLATION[len(corners)] @ corners
        strokes.append(ROUNDING @ straight if generator.random() < 0.6 else straight)
    # All of one size: a hand's scale varies, so classes must differ by more than that.
    low, high = np.min(strokes, (0, 1)), np.max(strokes, (0, 1))
    fitted: np.ndarray = (np.stack(strokes) - (low + high) / 2) / (high - low).max() * EXTENT
    return fitted


def by_hand(
    program: Program, drawings: int, generator: np.random.Generator
) -> Float[np.ndarray, "drawing stroke 25 2"]:
    """The program as a hand carries it out, several times."""

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal((drawings, *shape))

    # Each stroke strays as a whole and along its way; a slow wave through the whole sheet moves joined strokes together.
    strokes = len(program)
    drawn = program + 0.025 * normal(strokes, 1, 2) + 0.04 * INTERPOLATION[4] @ normal(strokes, 4, 2)
    drawn = drawn + 0.05 * np.sin(drawn @ (2.2 * normal(1, 2, 2)) + np.pi * normal(1, 1, 2))
    turn, slant = 0.09 * normal(), 0.12 * normal()
    stretch = np.exp(0.18 * normal(1) + 0.09 * normal(2))
    turned = np.stack([np.cos(turn), np.sin(turn), slant - np.sin(turn), np.cos(turn)], -1).reshape(-1, 1, 2, 2)
    moved: np.ndarray = drawn @ turned * stretch[:, None, None] + 0.09 * normal(1, 1, 2)
    return moved


def ink(strokes: Program, width: float, size: int) -> UInt8[np.ndarray, "{size} {size}"]:
    """The strokes of a round pen; `width` in pixels of an image of 28."""
    sheet = Image.new("L", (FINER * size, FINER * size))
    pen = ImageDraw.Draw(sheet)
    for points in ((strokes + 1) * (FINER * size / 2)).tolist():
        pen.line([tuple(point) for point in points], 255, round(width * FINER * size / 28), joint="curve")
    return np.asarray(sheet.reduce(FINER))


def interpolation(corners: int) -> Float[np.ndarray, "25 {corners}"]:
    """Weights of the corners in the points spread evenly over the straight legs between them."""
    position = np.linspace(0, corners - 1, POINTS)
    return (1 - np.abs(position[:, None] - np.arange(corners))).clip(min=0)


def rounding(passes: int = 16) -> Float[np.ndarray, "25 25"]:
    """Takes the mean of neighbouring points again and again; the ends stay."""
    weights = 0.5 * np.eye(POINTS) + 0.25 * np.eye(POINTS, k=1) + 0.25 * np.eye(POINTS, k=-1)
    weights[[0, -1]] = np.eye(POINTS)[[0, -1]]
    return np.linalg.matrix_power(weights, passes)


INTERPOLATION = {corners: interpolation(corners) for corners in (2, 3, 4)}
ROUNDING = rounding()
