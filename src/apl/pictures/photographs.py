"""Photographs from any source, as a person sees them: upright, three colours, eight bits, on white where transparent."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageOps

from apl.pictures.image_file import opened
from apl.pictures.pixels import channels_last, check_pixels, is_deep

KEPT_SIDE = 112
"""Pixels of a picture's shorter side that a memory keeps, however few a small encoder looks at."""


def read_photo(photo: Any) -> Image.Image:
    """A path, a file or its bytes, a PIL image, or an array (`apl.pictures.pixels`) as an RGB image."""
    photo = opened(photo)
    if isinstance(photo, Image.Image):
        check_pixels(photo.width, photo.height)
        return _rgb(ImageOps.exif_transpose(photo))
    return _from_array(photo)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if is_deep(image):
        return _from_array(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        seen = image.convert("RGBA")
        white = Image.new("RGBA", seen.size, "white")
        return Image.alpha_composite(white, seen).convert("RGB")
    return image.convert("RGB")


def _from_array(photo: Any) -> Image.Image:
    eight = np.round(channels_last(photo) * 255).astype(np.uint8)
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[eight.shape[2]]
    return _rgb(Image.fromarray(eight[:, :, 0] if mode == "L" else eight, mode=None if mode in ("L", "RGB") else mode))


def reduced(photo: Image.Image, size: int) -> Image.Image:
    """The whole photograph, its shorter side at most `size`: all that an encoder of this size will look at."""
    shorter = min(photo.size)
    if shorter <= size:
        return photo
    width, height = (max(1, round(side * size / shorter)) for side in photo.size)
    return photo.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)


def middle_square(photo: Image.Image, size: int) -> Float[np.ndarray, "size size 3"]:
    """The middle square, scaled to `size`; values 0..255."""
    side = min(photo.size)
    left, top = (photo.width - side) // 2, (photo.height - side) // 2
    box = (left, top, left + side, top + side)
    return np.asarray(photo.resize((size, size), Image.Resampling.BICUBIC, box=box), np.float32)


def to_jpeg(photo: Image.Image) -> bytes:
    """What a memory keeps of a photograph: about 10 KB, enough to recognise it and to embed it again at a small loss."""
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=88)
    return file.getvalue()


def read_coloured(photo: Any, size: int) -> Image.Image:
    """A picture for a trained colour encoder of `size` pixels, reduced to what a memory keeps."""
    return reduced(read_photo(photo), max(size, KEPT_SIDE))


def fit_coloured(photos: Sequence[Image.Image], size: int) -> UInt8[np.ndarray, "image 3 side side"]:
    """What such an encoder looks at."""
    squares = np.zeros((len(photos), size, size, 3), np.uint8)
    for number, photo in enumerate(photos):
        squares[number] = middle_square(photo, size)
    return np.ascontiguousarray(squares.transpose(0, 3, 1, 2))
