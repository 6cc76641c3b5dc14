"""Characters of invented alphabets, drawn by an invented hand: data that needs no file.

A class is a program of one to four strokes that join as in writing; a drawing is that program carried
out with a hand's inaccuracy. They stand in for Omniglot (paper, section 4.1) in the demonstration, in
tests, and wherever more characters are wanted than were ever collected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from apl.data.strokes import KINDS, POINTS, STROKES, Programs, along, choice, render, stroke_shapes

ALPHABET = 24
"""Characters that share a style."""
TOO_ALIKE = 0.85
"""Cosine between two blurred characters from which on they count as the same."""
CLEAR_OF_ITSELF = 0.8
"""Least part of a character's strokes that must not lie on top of others."""
LOOKS = 14 * 14
"""Numbers in a blurred character."""
EXTENT = 1.12
"""Height or width of a character, whichever is more, in images from -1 to 1."""
PEN = 0.75
"""Half the width of a stroke, in pixels of an image of 28."""
DRAWINGS_AT_ONCE = 256

_LIKELIHOOD = np.array([5.0, 3.0, 1.0, 3.0, 3.0, 1.5, 1.5, 0.4, 0.4])
_CORNER, _DOT = KINDS.index("corner"), KINDS.index("dot")


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
    images = [
        (255 * render(*_by_hand(programs[labels[chunk]], generator, size), size)).round().astype(np.uint8)
        for chunk in _chunks(len(labels))
    ]
    # Another generator invents other characters, so their names must differ too.
    tag = int(generator.integers(16**6))
    names = tuple(f"invented-{tag:06x}/character{number + 1:02d}" for number in range(classes))
    return Glyphs(np.concatenate(images), labels, names)


def invent(classes: int, generator: np.random.Generator) -> Programs:
    """Programs of characters no two of which look alike."""
    kept: list[Programs] = []
    seen = np.empty((0, LOOKS), np.float32)
    # Short programs are few, so the larger the set the more candidates repeat one another.
    for _ in range(50):
        missing = classes - len(seen)
        if missing <= 0:
            break
        candidates = _candidates(missing + missing // 2 + ALPHABET, generator)
        images = _plain(candidates)
        clear = _clear_of_itself(candidates, images)
        looks = _looks(images[clear])
        fresh = _unlike(looks, seen)
        kept.append(candidates[clear][fresh])
        seen = np.concatenate([seen, looks[fresh]])
    else:
        raise ValueError(f"could not invent {classes} characters that differ from one another: ask for fewer")
    return Programs(
        np.concatenate([programs.control for programs in kept])[:classes],
        np.concatenate([programs.sharp for programs in kept])[:classes],
        np.concatenate([programs.present for programs in kept])[:classes],
    )


def _candidates(count: int, generator: np.random.Generator) -> Programs:
    alphabets = -(-count // ALPHABET)
    style = _LIKELIHOOD * np.exp(0.9 * generator.standard_normal((alphabets, len(KINDS))))
    style = style.repeat(ALPHABET, 0)[:count]
    # Anchors stand on a three by three lattice that each alphabet bends a little.
    lattice = np.stack(np.meshgrid([-1, 0, 1], [-1, 0, 1], indexing="ij"), -1).reshape(9, 2)
    anchors = lattice + 0.12 * generator.standard_normal((alphabets, 9, 2))
    anchors = anchors.repeat(ALPHABET, 0)[:count]

    number = 1 + _drawn(np.broadcast_to([2.0, 4.0, 3.0, 1.5], (count, STROKES)), generator)
    present = np.arange(STROKES) < number[:, None]
    control = np.zeros((count, STROKES, POINTS, 2))
    sharp = np.zeros((count, STROKES), bool)
    for stroke in range(STROKES):
        weights = style.copy()
        if stroke == 0:
            weights[:, _DOT] = 0
        kind = _drawn(weights, generator)
        earlier = control[:, :stroke, ::3].reshape(count, -1, 2)
        start = _place(anchors, earlier, 0.75 * (kind != _DOT), None, generator)
        end = _place(anchors, earlier, np.full(count, 0.25), start, generator)
        new = stroke_shapes(start, end, anchors, generator)[kind, np.arange(count)]
        is_sharp = kind == _CORNER
        if stroke:
            # Writing repeats itself: some strokes are the one before, moved aside.
            again = generator.random(count) < 0.15
            aside = choice(anchors, generator)
            aside = 0.5 * aside / np.linalg.norm(aside, axis=-1, keepdims=True).clip(min=0.3)
            new = np.where(again[:, None, None], control[:, stroke - 1] + aside[:, None], new)
            is_sharp = np.where(again, sharp[:, stroke - 1], is_sharp)
        control[:, stroke] = new
        sharp[:, stroke] = is_sharp
    return Programs(_fitted(control, present), sharp, present)


def _drawn(weights: Float[np.ndarray, "glyph kind"], generator: np.random.Generator) -> Int[np.ndarray, " glyph"]:
    """One number per row, each as likely as its weight says."""
    total = weights.cumsum(-1)
    drawn: np.ndarray = (generator.random((len(weights), 1)) * total[:, -1:] >= total).sum(-1)
    return drawn


def _place(
    anchors: Float[np.ndarray, "glyph anchor 2"],
    earlier: Float[np.ndarray, "glyph point 2"],
    joined: Float[np.ndarray, " glyph"],
    away_from: Float[np.ndarray, "glyph 2"] | None,
    generator: np.random.Generator,
) -> Float[np.ndarray, "glyph 2"]:
    """An anchor or, with probability `joined`, a point of an earlier stroke; at some distance if asked."""
    count = len(anchors)
    best = choice(anchors, generator)
    if earlier.shape[1]:
        on_stroke = generator.random(count) < joined
        best = np.where(on_stroke[:, None], choice(earlier, generator), best)
    if away_from is not None:
        far = np.linalg.norm(anchors - away_from[:, None], axis=-1) > 0.7
        other = _drawn(far.astype(float), generator)
        near = np.linalg.norm(best - away_from, axis=-1) < 0.6
        best = np.where(near[:, None], anchors[np.arange(count), other], best)
    return best


def _fitted(
    control: Float[np.ndarray, "glyph stroke point 2"], present: Bool[np.ndarray, "glyph stroke"]
) -> Float[np.ndarray, "glyph stroke point 2"]:
    """Centred and all of one size: a hand's scale varies, so classes must differ by more than that."""
    shown = present[..., None, None]
    low = np.where(shown, control, math.inf).min((1, 2), keepdims=True)
    high = np.where(shown, control, -math.inf).max((1, 2), keepdims=True)
    fitted: np.ndarray = (control - (low + high) / 2) / (high - low).max(-1, keepdims=True) * EXTENT
    return fitted


def _plain(programs: Programs) -> Float[np.ndarray, "glyph 1 28 28"]:
    chunks = _chunks(len(programs.control))
    return np.concatenate([render(programs[c], np.full(c.stop - c.start, PEN), 28) for c in chunks])


def _clear_of_itself(programs: Programs, images: Float[np.ndarray, "glyph 1 28 28"]) -> Bool[np.ndarray, " glyph"]:
    """Characters whose strokes do not run over one another: the ink is nearly the sum of the strokes'."""
    steps = np.linalg.norm(np.diff(programs.control, axis=2), axis=-1).sum(-1)
    length_pixels = (steps * programs.present).sum(-1) * 28 / 2
    clear: np.ndarray = images.sum((1, 2, 3)) > CLEAR_OF_ITSELF * 2 * PEN * length_pixels
    return clear


def _looks(images: Float[np.ndarray, "glyph 1 28 28"]) -> Float[np.ndarray, "glyph look"]:
    """Blurred pictures as unit vectors, to be compared by their cosine: means of 3×3 pixels, at every other one."""
    padded = np.pad(images[:, 0], ((0, 0), (1, 1), (1, 1)))
    shifts = [padded[:, down : down + 27 : 2, right : right + 27 : 2] for down in range(3) for right in range(3)]
    flat = np.add.reduce(shifts).reshape(len(images), LOOKS)
    looks: np.ndarray = flat / np.linalg.norm(flat, axis=1, keepdims=True).clip(min=1e-9)
    return looks


def _unlike(
    looks: Float[np.ndarray, "glyph look"], seen: Float[np.ndarray, "other look"]
) -> Bool[np.ndarray, " glyph"]:
    """Which look like nothing seen before, and like no other ahead of them."""
    numbers = np.arange(len(looks))
    fresh = [np.zeros(0, bool)]
    for chunk in _chunks(len(looks)):
        alike = (looks[chunk] @ looks.T > TOO_ALIKE) & (numbers < numbers[chunk, None])
        fresh.append(~(alike.any(1) | (looks[chunk] @ seen.T > TOO_ALIKE).any(1)))
    return np.concatenate(fresh)


def _by_hand(
    programs: Programs, generator: np.random.Generator, size: int
) -> tuple[Programs, Float[np.ndarray, " glyph"]]:
    """The programs as a hand carries them out, and the half width of the pen in pixels."""
    control = programs.control
    count = len(control)

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal((count, *shape))

    # Each stroke strays as a whole, along its way, and past or short of its ends.
    control = control + 0.025 * normal(STROKES, 1, 2) + 0.03 * along(normal(STROKES, 4, 2))
    overshoot = 0.5 * normal(STROKES, 2, 1)
    first = control[:, :, 0] + overshoot[:, :, 0] * (control[:, :, 0] - control[:, :, 1])
    last = control[:, :, -1] + overshoot[:, :, 1] * (control[:, :, -1] - control[:, :, -2])
    control = np.concatenate([first[:, :, None], control[:, :, 1:-1], last[:, :, None]], 2)

    # A slow wave through the whole sheet moves joined strokes together.
    frequency, phase = 2.2 * normal(1, 2, 2), math.pi * normal(1, 1, 2)
    control = control + 0.05 * np.sin(control @ frequency + phase)

    turn, slant = 0.09 * normal(), 0.12 * normal()
    stretch = np.exp(0.18 * normal(1) + 0.09 * normal(2))
    rows = [np.stack([np.cos(turn), slant - np.sin(turn)], -1), np.stack([np.sin(turn), np.cos(turn)], -1)]
    affine = stretch[:, :, None] * np.stack(rows, 1)
    control = np.einsum("gij,gspj->gspi", affine, control) + 0.09 * normal(1, 1, 2)
    pen = size / 28 * (PEN + 0.09 * normal()).clip(0.55, 1.1)
    return Programs(control, programs.sharp, programs.present), pen


def _chunks(count: int) -> Iterator[slice]:
    return (slice(start, min(start + DRAWINGS_AT_ONCE, count)) for start in range(0, count, DRAWINGS_AT_ONCE))
