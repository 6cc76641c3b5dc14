"""Photographs from anywhere, as a person sees them: upright, three colours, eight bits, on white where transparent."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageOps

from apl.image_file import LARGEST_PIXELS, open_image


def read_photo(photo: Any) -> Image.Image:
    """A path, a file's bytes, a PIL image, or an array H×W, H×W×C (numpy) or C×H×W (torch) as an RGB image.

    Integers run from 0 to 255 (uint16 to 65535), floats from 0 to 1.
    """
    if isinstance(photo, Image.Image):
        if not photo.width * photo.height or photo.width * photo.height > LARGEST_PIXELS:
            raise ValueError(f"the photograph has {photo.width}×{photo.height} pixels, the most is {LARGEST_PIXELS:,}")
        return _rgb(ImageOps.exif_transpose(photo))
    if isinstance(photo, (str, os.PathLike)):
        try:
            return _rgb(open_image(photo))
        except ValueError as error:
            raise ValueError(f"{os.fspath(photo)}: {error}") from None
    if isinstance(photo, (bytes, bytearray)):
        return _rgb(open_image(bytes(photo)))
    return _from_array(photo)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;"):  # Pillow would cut 16 bits off at 255
        values = np.asarray(image)
        return _from_array(values.astype(np.uint16) if values.dtype.kind in "iu" else values)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        seen = image.convert("RGBA")
        white = Image.new("RGBA", seen.size, "white")
        return Image.alpha_composite(white, seen).convert("RGB")
    return image.convert("RGB")


def _from_array(photo: Any) -> Image.Image:
    channels_first = hasattr(photo, "detach")
    values = photo.detach().cpu().numpy() if channels_first else photo
    if isinstance(values, (list, tuple)):
        values = np.asarray(values)
    if not isinstance(values, np.ndarray):
        raise TypeError(f"a photograph is a path, bytes, a PIL image or an array, got {type(photo).__name__}")
    if values.ndim == 3 and values.shape[0] <= 4 and (channels_first or values.shape[2] > 4):
        values = values.transpose(1, 2, 0)
    if values.ndim == 2:
        values = values[:, :, None]
    if values.ndim != 3 or not 1 <= values.shape[2] <= 4 or not values.size:
        raise ValueError(f"expected one photograph H×W, H×W×C or C×H×W, got shape {list(np.shape(photo))}")
    if values.shape[0] * values.shape[1] > LARGEST_PIXELS:
        raise ValueError(f"the photograph has more than {LARGEST_PIXELS:,} pixels: reduce it first")
    eight = np.round(_unit(values) * 255).astype(np.uint8)
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[eight.shape[2]]
    return _rgb(Image.fromarray(eight[:, :, 0] if mode == "L" else eight, mode=None if mode in ("L", "RGB") else mode))


def _unit(values: np.ndarray) -> np.ndarray:
    if values.dtype == bool:
        return values.astype(np.float32)
    if values.dtype.kind in "iu":
        top = 65535 if values.dtype == np.uint16 else 255
        if values.min() < 0 or values.max() > top:
            raise ValueError(f"integer pixels must lie in 0..{top}, found {values.min()}..{values.max()}")
        return values.astype(np.float32) / top
    if values.dtype.kind != "f":
        raise TypeError(f"pixels must be numbers, got {values.dtype}")
    values = values.astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError("the photograph contains NaN or infinity")
    if values.min() < -1e-3 or values.max() > 1 + 1e-3:
        raise ValueError(f"float pixels must lie in 0..1, found {values.min():g}..{values.max():g}: divide them first")
    return values.clip(0, 1)


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
