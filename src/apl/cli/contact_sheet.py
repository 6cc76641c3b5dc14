"""Pictures side by side in one picture: for `apl explain` and `apl memory review`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from apl.pictures.image_file import open_image

TILE, GAP, COLUMNS = 150, 12, 6
"""Pixels of a tile's side and of the space around it; tiles in a row."""
MARK = "apl explain"
"""Stands in the file as the software that made it, so that it is never learnt by mistake."""


def kept_picture(payload: bytes | None, kind: str) -> Image.Image | None:
    """The picture kept with a row, if there is one."""
    if payload is None:
        return None
    try:
        image = open_image(payload)
    except ValueError:  # an imported memory may hold anything
        return None
    return ImageOps.invert(image.convert("L")) if kind == "drawing" else image.convert("RGB")


def draw(pictures: Sequence[Image.Image | None], out: Path) -> None:
    """The pictures in order, from left to right; None leaves its place empty."""
    columns = min(len(pictures), COLUMNS)
    step = TILE + GAP
    canvas = Image.new("RGB", (GAP + columns * step, GAP + -(-len(pictures) // columns) * step), "white")
    for number, picture in enumerate(pictures):
        if picture is not None:
            tile = ImageOps.pad(picture.convert("RGB"), (TILE, TILE), Image.Resampling.LANCZOS, color="white")
            canvas.paste(tile, (GAP + number % columns * step, GAP + number // columns * step))
    marks = PngInfo()
    marks.add_text("Software", MARK)
    try:
        canvas.save(out, "PNG", pnginfo=marks)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(f"{out}: {reason}: choose another place for the picture with --out") from None
