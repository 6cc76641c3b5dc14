"""Pictures in JSON from strangers: base64 to bytes, lists of numbers to arrays."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

from apl.service.guard import Refused


def unusable(message: str) -> Refused:
    return Refused(422, "invalid", message)


def from_base64(text: str) -> bytes:
    """Plain base64, or a data: URL as a browser makes it."""
    if text.startswith("data:"):
        head, comma, text = text.partition(",")
        if not comma or not head.endswith(";base64"):
            raise unusable("image: a data URL must be base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise unusable("image: not valid base64") from None


def array_from_pixels(rows: Any, most_pixels: int) -> np.ndarray:
    """Nothing is believed of them: sizes first, then the numbers, a row at a time so that others get their turn."""
    if type(rows) is not list or not rows or type(rows[0]) is not list or not rows[0]:
        raise unusable("pixels: rows of numbers, every row with the same number of pixels, at least one")
    if len(rows) * len(rows[0]) > most_pixels:
        raise unusable(f"pixels: {len(rows)}×{len(rows[0])} pixels, the most is {most_pixels:,} in all")
    lines = []
    for number, row in enumerate(rows):
        if type(row) is not list or len(row) != len(rows[0]):
            raise unusable(f"pixels.{number}: every row must have the same number of pixels")
        if not set(map(type, row)) <= {int, float}:
            raise unusable(f"pixels.{number}: pixels are integers 0..255, or floats 0..1")
        lines.append(np.array(row))
    if any(line.dtype.kind not in "if" for line in lines):
        raise unusable("pixels: integers must lie in 0..255")
    return np.stack(lines)
