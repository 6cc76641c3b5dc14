"""Pictures from anywhere, brought into the one form the encoder knows: grey, ink bright on a black ground.

A picture may come as PIL, numpy or torch, grey or coloured, with or without alpha, of any size. The verb decides
whether one picture or a batch is meant, never a guess from the shape:

    one     PIL · H×W · H×W×C · C×H×W
    batch   a list of the above · N×H×W · N×H×W×C · N×C×H×W

(C as in `apl.pictures.pixels`.)

`read_image` makes a *sheet*: polarity settled, contrast stretched, at most `SHEET_SIDE` pixels. It is what a memory
keeps as a row's payload, and every key is computed from it, so that keys can be made anew bit by bit.
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
from apl.pictures.pixels import channels_last, check_pixels, is_deep, is_tensor

Ink = Literal["auto", "dark", "light"]

SHEET_SIDE = 112
"""Larger pictures are reduced to this: twice what the bundled encoder looks at."""
LARGE_SIDE = 1024
"""A picture twice as large or more is first brought below this, a byte a pixel: of fifty million, floats would take a gigabyte."""
FAINTEST_INK = 8 / 255
"""With less contrast than this there is nothing to see."""
UNEVEN = 0.02
"""A border is evenly lit if the middle half of its pixels lies this close to its median."""
INK_THRESHOLD = 0.35
"""Share of the darkest ink from which a pixel counts as ink when the drawing's extent is measured."""
EXTENT = 0.65
"""Every drawing is centred, its longer side taking this share of the sheet: about what it takes in Omniglot (median
0.63). Against leaving drawings as they are, nearest neighbour, 1 / 5 shots: MNIST's training digits 82.3 / 94.3 become
83.3 / 94.8 (docs/LOG.md), and 60 of Omniglot's validation characters, with an earlier model, 76.6 become 77.7."""

STROKE = 0.08
"""Half the width, as a share of the sheet, below which a dark or light thing is a stroke rather than a surface."""
HALFTONES = 0.15
"""A picture with a larger share of halftones is a photograph (`looks_like_a_photograph`)."""
COARSEST_LOOKED_AT = 32
"""In a smaller picture the edges of strokes alone make so many halftones that nothing can be told from them."""

CLEARLY_DRAWN = 0.1
"""With a smaller share between ground and ink a picture is a drawing, without a closer look."""
SHADED = 0.08
"""A border whose middle four fifths differ by more than this, after its slope, shows a shadow, or what lies beside the sheet."""
COARSEST_SHADED = 48
"""In a smaller picture strokes are as wide as shadows."""
FAINT = 0.6
"""Strokes that are mostly weaker than this share of the strongest pixel are brought to full strength."""


def read_images(images: Any, ink: str = "auto") -> list[UInt8[np.ndarray, "_ _"]]:
    """The sheets of a batch."""
    if isinstance(images, Image.Image):
        raise ValueError("expected a batch of images, got one: put it into a list, or use the verb that ends in _one")
    if isinstance(images, np.ndarray) or is_tensor(images):
        if images.ndim < 3 or images.ndim > 4:
            raise ValueError(
                f"expected a batch N×H×W, N×H×W×C or N×C×H×W, got shape {list(images.shape)}: "
                "for a single image use the verb that ends in _one"
            )
    elif not isinstance(images, Sequence) or isinstance(images, (str, bytes)):
        raise TypeError(f"expected a batch of images, got {type(images).__name__}")
    sheets = []
    for number, image in enumerate(images):
        try:
            sheets.append(read_image(image, ink))
        except (TypeError, ValueError) as error:
            raise type(error)(f"image {number} of {len(images)}: {error}") from None
    return sheets


def read_image(image: Any, ink: str = "auto") -> UInt8[np.ndarray, "height width"]:
    """The sheet of one picture: grey, ink 255 on 0, its longer side at most `SHEET_SIDE`."""
    check_ink(ink)
    return _at_full_strength(np.rint(_ink(_small_grey(image), ink) * 255).astype(np.uint8))


def check_ink(ink: str) -> None:
    if ink not in get_args(Ink):
        raise ValueError(f"ink is 'auto', 'dark' or 'light', got {ink!r}")


def looks_like_a_photograph(image: Any) -> bool:
    """Whether this is a photograph of things, not a drawing nor a photograph of one, on whatever lit sheet.

    What is narrower than a stroke and stands out from its surroundings is ink: hardly any of it is of half strength
    in a drawing, much of it in a photograph. Shadows and the light of a lamp are wide and do not count. Measured on
    pictures that were not used to choose the limits (docs/LOG.md): 0 of 1,800 drawings, 94 % of 2,000 photographs.
    """
    grey = _small_grey(image)
    if max(grey.shape) < COARSEST_LOOKED_AT or _is_clearly_drawn(np.abs(grey - _ground(grey))):
        return False
    return min(_halftones(grey), _halftones(1 - grey)) > HALFTONES


def fit(sheets: Sequence[UInt8[np.ndarray, "_ _"]], size: int) -> UInt8[np.ndarray, "image 1 side side"]:
    """Sheets as an encoder of this image size wants them, drawings placed as in Omniglot."""
    fitted = np.zeros((len(sheets), 1, size, size), np.uint8)
    for number, sheet in enumerate(sheets):
        square = _placed(sheet)
        if square.shape != (size, size):
            # From buffer to buffer: `fromarray` and `asarray` take half as long again.
            drawn = Image.frombuffer("L", square.shape, square, "raw", "L", 0, 1)
            drawn = drawn.resize((size, size), Image.Resampling.LANCZOS)
            square = np.frombuffer(drawn.tobytes(), np.uint8).reshape(size, size)
        fitted[number, 0] = _at_full_strength(square)
    return fitted


def to_png(sheet: UInt8[np.ndarray, "height width"]) -> bytes:
    """A grey PNG, written by hand: `Image.save` takes six times as long, which `learn_one` would feel."""
    height, width = sheet.shape
    lines = np.zeros((height, 1 + width), np.uint8)  # each begins with the number of its filter: none
    lines[:, 1:] = sheet
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b"")
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def from_png(png: bytes) -> UInt8[np.ndarray, "height width"]:
    """The sheet kept with a row. The file may come from a stranger, so it is opened like any other picture."""
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
    """A large picture reduced, without most of its margins: of a small drawing on a large sheet little would be left else."""
    away = np.abs(small - _ground(small))
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
            # What is drawn must stand out from whatever shows through: light drawings lie on black, others on white.
            drawn = grey[alpha > 0.5]
            ground = 0.0 if drawn.size and float(np.median(drawn)) > 0.5 else 1.0
            grey = grey * alpha + ground * (1 - alpha)
    return grey


def _reduced(grey: Float[np.ndarray, "height width"]) -> Float[np.ndarray, "new_height new_width"]:
    longest = max(grey.shape)
    if longest <= SHEET_SIDE:
        return grey
    height, width = (max(1, round(side * SHEET_SIDE / longest)) for side in grey.shape)
    return np.asarray(Image.fromarray(grey).resize((width, height), Image.Resampling.BOX)).clip(0, 1)


def _ink(grey: Float[np.ndarray, "height width"], ink: str) -> Float[np.ndarray, "height width"]:
    """How much ink there is in each pixel. The ground is what most of the border shows; ink departs from it."""
    ground = _ground(grey)
    darker, lighter = np.maximum(ground - grey, 0), np.maximum(grey - ground, 0)
    if max(grey.shape) >= COARSEST_SHADED and _spread(_border(grey - ground)) > SHADED:
        weaker, stronger = sorted((float(darker.max()), float(lighter.max())))
        two_levels = weaker < 0.3 * stronger and _is_clearly_drawn(np.maximum(darker, lighter))
        strokes = None if two_levels else _strokes(grey, ink)
        if strokes is not None:
            return strokes
    if ink == "auto":
        # Cubes: ink is strong and narrow, a sheet that is brighter in the middle is weak and wide.
        ink = "dark" if (darker * darker * darker).sum() >= (lighter * lighter * lighter).sum() else "light"
    amount = darker if ink == "dark" else lighter
    strongest = float(amount.max())
    if strongest < FAINTEST_INK:
        told = "" if ink == "auto" else f" (looking for {ink} ink)"
        raise ValueError(f"the image is blank: nothing stands out from its ground{told}")
    return amount / strongest


def _strokes(grey: Float[np.ndarray, "height width"], ink: str) -> Float[np.ndarray, "height width"] | None:
    """Ink against what surrounds it, where light falls in shadows. None where it does not, or where a surface is as dark as the
    ink: then that is ink too."""
    reach = max(2, round(max(grey.shape) * STROKE))
    found = []
    for one, seen in (("dark", grey), ("light", 1 - grey)):
        if ink in ("auto", one):
            around = _without_strokes(seen, reach)
            narrow = around - seen
            narrow = np.maximum(narrow - np.median(narrow), 0)
            found.append((float(np.quantile(narrow, 0.995)), narrow, around, seen))
    strongest, narrow, around, seen = max(found, key=lambda one: one[0])
    if strongest < FAINTEST_INK or _spread(_border(around), 0.05) < 0.2 * strongest:
        return None
    inky = seen < seen.min() + 0.25 * strongest
    if (narrow[inky] < 0.3 * strongest).mean() > 0.1:
        return None
    return np.minimum(narrow / strongest, 1)


def _is_clearly_drawn(away: Float[np.ndarray, "height width"]) -> bool:
    """Whether hardly anything lies between the ground and the strongest ink."""
    strongest = float(away.max())
    return float(((away > 0.15 * strongest) & (away < 0.85 * strongest)).mean()) < CLEARLY_DRAWN


def _border(grey: Float[np.ndarray, "height width"]) -> Float[np.ndarray, " pixel"]:
    edge = max(1, min(grey.shape) // 16)
    return np.concatenate((grey[:edge], grey[-edge:], grey[:, :edge], grey[:, -edge:]), None)


def _spread(values: Float[np.ndarray, " pixel"], left_out: float = 0.1) -> float:
    """How far apart they are, without the largest and the smallest."""
    values, outside = np.sort(values), round(len(values) * left_out)
    return float(values[-1 - outside] - values[outside])


def _ground(grey: Float[np.ndarray, "height width"]) -> float | Float[np.ndarray, "height width"]:
    """What the sheet shows where nothing is drawn: one value, the median of its border.

    A photographed sheet is brighter towards the light: where a plane describes the border far better, it is the plane.
    """
    edge = max(1, min(grey.shape) // 16)
    border = np.sort(_border(grey))
    count = len(border)
    level = float((border[(count - 1) // 2] + border[count // 2]) / 2)
    spread = float(border[3 * count // 4] - border[count // 4]) / 2
    if spread < UNEVEN:
        return level
    height, width = (np.linspace(-1, 1, side, dtype=np.float32) for side in grey.shape)
    places = np.stack([np.ones(grey.shape, np.float32), *np.meshgrid(height, width, indexing="ij")], -1)
    inside = np.zeros(grey.shape, bool)
    inside[edge:-edge, edge:-edge] = True
    there, shown = places[~inside], grey[~inside]
    near = np.ones(len(shown), bool)
    for _ in range(3):  # what lies far from the plane is ink that reaches the border
        plane = np.linalg.lstsq(there[near], shown[near], rcond=None)[0]
        off = np.abs(shown - there @ plane)
        near = off <= 3 * np.median(off) + UNEVEN
    # Ink along the border makes two levels, light makes a slope.
    bright = shown > shown.mean()
    levels = np.where(bright, shown[bright].mean(), shown[~bright].mean())
    tolerable = min(spread / 3, float(np.median(np.abs(shown - levels))))
    return places @ plane if np.median(off) < tolerable else level


def _halftones(grey: Float[np.ndarray, "height width"]) -> float:
    """The share of pixels with dark ink of half strength, wherever the ground lies; 1 if there is no dark ink."""
    reach = max(2, round(max(grey.shape) * STROKE))
    ink = _without_strokes(grey, reach) - grey
    strongest = max(float(np.quantile(ink, 0.995)), float(ink.max()) / 2)
    if strongest < FAINTEST_INK:
        return 1.0
    return float(((ink > 0.15 * strongest) & (ink < 0.75 * strongest)).mean())


def _without_strokes(grey: Float[np.ndarray, "height width"], reach: int) -> Float[np.ndarray, "height width"]:
    """What the picture would show without dark things narrower than twice the reach."""
    return -_brightest(-_brightest(grey, reach), reach)


def _brightest(grey: Float[np.ndarray, "height width"], reach: int) -> Float[np.ndarray, "height width"]:
    """The brightest pixel within reach of each."""
    for _ in range(2):
        # Along columns, of windows twice as long each time; then the same along rows.
        windows, length = np.pad(grey, ((reach, reach), (0, 0)), "edge"), 1
        while length < 2 * reach + 1:
            step = min(length, 2 * reach + 1 - length)
            windows, length = np.maximum(windows[:-step], windows[step:]), length + step
        grey = windows.T
    return grey


def _at_full_strength(sheet: UInt8[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width"]:
    """A thin pen leaves faint lines and strong crossings once it is reduced: as many pixels as the drawing is long are strokes."""
    strong = np.count_nonzero(sheet >= FAINT * 255)
    if strong >= max(sheet.shape):
        return sheet
    rows, columns = _extent(sheet, 0.2 * int(sheet.max()))
    if not len(rows) or strong >= (longest := int(max(np.ptp(rows), np.ptp(columns))) + 1):
        return sheet
    usual = float(np.partition(sheet, sheet.size - longest, None)[sheet.size - longest])
    return np.rint(np.minimum(sheet * (255 / max(usual, 1.0)), 255)).astype(np.uint8)


def _extent(amount: Num[np.ndarray, "height width"], above: float) -> tuple[Int[np.ndarray, " row"], ...]:
    """The rows and the columns in which there is more than this."""
    there = amount > above
    return there.any(1).nonzero()[0], there.any(0).nonzero()[0]


# --- placing ----------------------------------------------------------------------------------------------------


def _placed(sheet: UInt8[np.ndarray, "height width"]) -> UInt8[np.ndarray, "side side"]:
    """The drawing alone, in the middle of a square sheet of Omniglot's proportions."""
    rows, columns = _extent(sheet, INK_THRESHOLD * int(sheet.max()))
    if not len(rows):
        return _padded(sheet, max(sheet.shape))
    drawing = sheet[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return _padded(drawing, round(max(drawing.shape) / EXTENT))


def _padded(drawing: UInt8[np.ndarray, "height width"], side: int) -> UInt8[np.ndarray, "side side"]:
    square = np.zeros((side, side), np.uint8)
    top, left = ((side - extent) // 2 for extent in drawing.shape)
    square[top : top + drawing.shape[0], left : left + drawing.shape[1]] = drawing
    return square
