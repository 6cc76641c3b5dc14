"""Drawings from any source in the form the encoder takes: grey, ink bright on a black ground.

A picture may come as PIL, numpy or torch (H×W, H×W×C or C×H×W, see `apl.pictures.pixels`), grey or coloured, with or without
alpha, of any size.

`read_image` makes a *canvas*: polarity settled, contrast stretched, at most `CANVAS_SIDE` pixels. It is what a memory
keeps as a row's payload, and every key is computed from it, so keys can be computed again, bit for bit.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int, Num, UInt8
from PIL import Image

from apl.pictures.image_file import open_image
from apl.pictures.ink import ground_level, halftones, ink_amount, is_clearly_drawn
from apl.pictures.pixels import channels_last, check_pixels, is_deep

Ink = Literal["auto", "dark", "light"]

CANVAS_SIDE = 112
"""Larger pictures are reduced to this: twice what the bundled encoder looks at."""
LARGE_SIDE = 1024
"""A picture at least twice as large is first reduced below this, in bytes: fifty million pixels in floats take a gigabyte."""
INK_THRESHOLD = 0.35
"""Share of the darkest ink from which a pixel counts as ink when the drawing's extent is measured."""
EXTENT = 0.65
"""Every drawing is centred, its longer side taking this share of the canvas: about what it takes in Omniglot (median
0.63). Against leaving drawings as they are, nearest neighbour, 1 / 5 shots: MNIST's training digits 82.3 / 94.3 become
83.3 / 94.8 (docs/LOG.md), and 60 of Omniglot's validation characters, with an earlier model, 76.6 become 77.7."""

HALFTONES = 0.15
"""A picture with a larger share of halftones is a photograph (`looks_like_a_photograph`)."""
COARSEST_LOOKED_AT = 32
"""In smaller pictures the edges of strokes alone make too many halftones."""

FAINT = 0.6
"""Strokes that are mostly weaker than this share of the strongest pixel are brought to full strength."""


def read_image(image: Any, ink: str = "auto") -> UInt8[np.ndarray, "height width"]:
    """The canvas of one picture: grey, ink 255 on 0, its longer side at most `CANVAS_SIDE`."""
    check_ink(ink)
    return _at_full_strength(np.rint(ink_amount(_small_grey(image), ink) * 255).astype(np.uint8))


def check_ink(ink: object) -> None:
    if ink not in get_args(Ink):
        raise ValueError(f"ink is 'auto', 'dark' or 'light', got {ink!r}")


def looks_like_a_photograph(image: Any) -> bool:
    """Whether this is a photograph of things, not a drawing nor a photograph of one, on paper in any light.

    What is narrower than a stroke and stands out from its surroundings is ink: hardly any of it is of half strength
    in a drawing, much of it in a photograph. Shadows and the light of a lamp are wide and do not count. Measured on
    pictures that were not used to choose the limits (docs/LOG.md): 0 of 1,800 drawings, 94 % of 2,000 photographs.
    """
    grey = _small_grey(image)
    if max(grey.shape) < COARSEST_LOOKED_AT or is_clearly_drawn(np.abs(grey - ground_level(grey))):
        return False
    return min(halftones(grey), halftones(1 - grey)) > HALFTONES


def fit(canvases: Sequence[UInt8[np.ndarray, "_ _"]], size: int) -> UInt8[np.ndarray, "image 1 side side"]:
    """Canvases as an encoder of this image size takes them, drawings placed as in Omniglot."""
    fitted = np.zeros((len(canvases), 1, size, size), np.uint8)
    for number, canvas in enumerate(canvases):
        square = _placed(canvas)
        if square.shape != (size, size):
            # From buffer to buffer: `fromarray` and `asarray` take half as long again.
            drawn = Image.frombuffer("L", square.shape, square, "raw", "L", 0, 1)
            drawn = drawn.resize((size, size), Image.Resampling.LANCZOS)
            square = np.frombuffer(drawn.tobytes(), np.uint8).reshape(size, size)
        fitted[number, 0] = _at_full_strength(square)
    return fitted


def to_png(canvas: UInt8[np.ndarray, "height width"]) -> bytes:
    """A grey PNG, written here: `Image.save` takes six times as long, and `learn_one` noticeably longer."""
    height, width = canvas.shape
    lines = np.zeros((height, 1 + width), np.uint8)  # each begins with the number of its filter: none
    lines[:, 1:] = canvas
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b"")
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def from_png(png: bytes) -> UInt8[np.ndarray, "height width"]:
    """The canvas kept with a row. Imported memories are not trusted: it is opened like any other picture."""
    return np.asarray(open_image(png).convert("L"))


# --- one form ---------------------------------------------------------------------------------------------------


def _small_grey(image: Any) -> Float[np.ndarray, "height width"]:
    if isinstance(image, Image.Image) and max(image.size) >= 2 * LARGE_SIDE and not is_deep(image):
        check_pixels(image.width, image.height)
        image = (
            image.convert("RGBA") if image.mode in ("P", "PA") else image.convert("L") if image.mode == "1" else image
        )
        image = image.reduce(-(-max(image.size) // LARGE_SIDE))
    grey = _grey(channels_last(image))
    small = _reduced(grey)
    return small if small is grey else _drawn_part(grey, small)


def _drawn_part(
    grey: Float[np.ndarray, "height width"], small: Float[np.ndarray, "new_height new_width"]
) -> Float[np.ndarray, "part_height part_width"]:
    """A large picture reduced, without most of its margins, so that a small drawing on a large sheet keeps its details."""
    away = np.abs(small - ground_level(small))
    rows, columns = _extent(away, INK_THRESHOLD * float(away.max()))
    if not len(rows):
        return small
    around = 0.2 * (longest := max(np.ptp(rows), np.ptp(columns)) + 1) + 2
    if longest + 2 * around > 0.5 * max(small.shape):
        return small
    scale = max(grey.shape) / max(small.shape)
    top, left = (max(0, int((first - around) * scale)) for first in (rows[0], columns[0]))
    bottom, right = (int((last + 1 + around) * scale) + 1 for last in (rows[-1], columns[-1]))
    return _reduced(np.ascontiguousarray(grey[top:bottom, left:right]))


def _grey(image: Float[np.ndarray, "height width channels"]) -> Float[np.ndarray, "height width"]:
    channels = image.shape[2]
    colour = image[..., : 1 if channels < 3 else 3]
    grey = colour[..., 0] if channels < 3 else colour @ np.array([0.299, 0.587, 0.114], np.float32)
    if channels in (2, 4):
        alpha = image[..., -1]
        if alpha.min() < 1:
            # The drawing must stand out from the ground: light drawings are put on black, others on white.
            drawn = grey[alpha > 0.5]
            ground = 0.0 if drawn.size and float(np.median(drawn)) > 0.5 else 1.0
            grey = grey * alpha + ground * (1 - alpha)
    return grey


def _reduced(grey: Float[np.ndarray, "height width"]) -> Float[np.ndarray, "new_height new_width"]:
    longest = max(grey.shape)
    if longest <= CANVAS_SIDE:
        return grey
    height, width = (max(1, round(side * CANVAS_SIDE / longest)) for side in grey.shape)
    return np.asarray(Image.fromarray(grey).resize((width, height), Image.Resampling.BOX)).clip(0, 1)


def _at_full_strength(canvas: UInt8[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width"]:
    """Once reduced, a thin pen leaves faint lines with strong crossings. Scaled so that as many pixels as the drawing is long are
    at full strength."""
    strong = np.count_nonzero(canvas >= FAINT * 255)
    if strong >= max(canvas.shape):
        return canvas
    rows, columns = _extent(canvas, 0.2 * int(canvas.max()))
    if not len(rows) or strong >= (longest := int(max(np.ptp(rows), np.ptp(columns))) + 1):
        return canvas
    usual = float(np.partition(canvas, canvas.size - longest, None)[canvas.size - longest])
    return np.rint(np.minimum(canvas * (255 / max(usual, 1.0)), 255)).astype(np.uint8)


def _extent(amount: Num[np.ndarray, "height width"], above: float) -> tuple[Int[np.ndarray, " row"], ...]:
    """The rows and the columns in which there is more than this."""
    there = amount > above
    return np.flatnonzero(there.any(1)), np.flatnonzero(there.any(0))


# --- placing ----------------------------------------------------------------------------------------------------


def _placed(canvas: UInt8[np.ndarray, "height width"]) -> UInt8[np.ndarray, "side side"]:
    """The drawing alone, in the middle of a square canvas of Omniglot's proportions."""
    rows, columns = _extent(canvas, INK_THRESHOLD * int(canvas.max()))
    if not len(rows):
        return _padded(canvas, max(canvas.shape))
    drawing = canvas[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return _padded(drawing, round(max(drawing.shape) / EXTENT))


def _padded(drawing: UInt8[np.ndarray, "height width"], side: int) -> UInt8[np.ndarray, "side side"]:
    square = np.zeros((side, side), np.uint8)
    top, left = ((side - extent) // 2 for extent in drawing.shape)
    square[top : top + drawing.shape[0], left : left + drawing.shape[1]] = drawing
    return square
