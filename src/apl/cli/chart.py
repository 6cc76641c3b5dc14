"""A curve or two on a picture, drawn with Pillow alone: everyday use needs no plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from apl.cli.lettering import lettered

SHARPER = 3
"""Lines are drawn so many times larger and reduced, which smooths them."""
GREY = "#555555"


@dataclass(frozen=True)
class Curve:
    """Values over time, measured on an axis of their own that begins at 0."""

    values: Sequence[int | float]
    top: int | float
    """The end of its axis."""
    colour: str
    title: str
    percent: bool = False

    def tick(self, share: float) -> str:
        return f"{share * self.top:.0%}" if self.percent else f"{share * self.top:g}"


def chart(title: str, below: str, left: Curve, right: Curve, width: int = 660, height: int = 480) -> Image.Image:
    """Two curves over the same time, the axis of one on the left, that of the other on the right."""
    x0, x1, y0, y1 = 64, width - 64, height - 56, 48
    large = Image.new("RGB", (width * SHARPER, height * SHARPER), "white")
    pen = ImageDraw.Draw(large)

    def place(time: int | float, share: int | float) -> tuple[int | float, int | float]:
        return SHARPER * (x0 + time * (x1 - x0)), SHARPER * (y0 + share * (y1 - y0))

    for share in (0.25, 0.5, 0.75, 1.0):
        pen.line([place(0, share), place(1, share)], fill="#e4e4e4", width=SHARPER)
    pen.line([place(0, 1), place(0, 0), place(1, 0), place(1, 1)], fill=GREY, width=SHARPER)
    for curve in (right, left):
        last = max(len(curve.values) - 1, 1)
        points = [place(i / last, min(value / curve.top, 1)) for i, value in enumerate(curve.values)]
        pen.line(points, fill=curve.colour, width=2 * SHARPER, joint="curve")
    picture = large.resize((width, height), Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(picture)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = y0 + share * (y1 - y0)
        _text(pen, (x0 - 8, y), left.tick(share), left.colour, 12, "rm")
        _text(pen, (x1 + 8, y), right.tick(share), right.colour, 12, "lm")
        _text(pen, (x0 + share * (x1 - x0), y0 + 8), f"{share * len(left.values):g}", GREY, 12, "mt")
    _text(pen, ((x0 + x1) / 2, height - 18), below, GREY, 13, "mm")
    _text(pen, ((x0 + x1) / 2, 14), title, "black", 15, "mm")
    _text(pen, (x0, 34), left.title, left.colour, 13, "lm")
    _text(pen, (x1, 34), right.title, right.colour, 13, "rm")
    return picture


def beside(first: Image.Image, second: Image.Image) -> Image.Image:
    """Two pictures next to each other, centred vertically."""
    height = max(first.height, second.height)
    sheet = Image.new("RGB", (first.width + second.width, height), "white")
    sheet.paste(first, (0, (height - first.height) // 2))
    sheet.paste(second, (first.width, (height - second.height) // 2))
    return sheet


def _text(
    pen: ImageDraw.ImageDraw, where: tuple[int | float, int | float], text: str, colour: str, size: int, anchor: str
) -> None:
    shown, font = lettered(text, size)
    pen.text(where, shown, fill=colour, font=font, anchor=anchor)
