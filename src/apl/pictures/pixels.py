"""A picture handed over as PIL, numpy, torch or nested lists, as one array: height × width × channels, values 0..1.

The channels are 1, 2, 3 or 4: grey, grey + alpha, RGB, RGBA. Where both ends could be they, numpy has them last and torch
first. Integers run from 0 to 255 (uint16 to 65535), floats from 0 to 1.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from apl.pictures.image_file import LARGEST_PIXELS


def is_tensor(x: Any) -> bool:
    """Whether this is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def as_array(tensor: Any) -> np.ndarray:
    """A torch tensor as an array; numpy does not know the short floats (bfloat16)."""
    tensor = tensor.detach().cpu()
    short = tensor.is_floating_point() and tensor.element_size() < 4
    array: np.ndarray = (tensor.float() if short else tensor).numpy()
    return array


def channels_last(image: Any) -> Float[np.ndarray, "height width channels"]:
    torch_like = is_tensor(image)
    if isinstance(image, Image.Image):
        check_pixels(image.width, image.height)
        if is_deep(image):
            image = np.asarray(image)
            image = image.astype(np.uint16) if image.dtype.kind in "iu" else image
        elif image.mode in ("1", "L", "LA", "RGB", "RGBA"):
            image = np.asarray(image.convert("L") if image.mode == "1" else image)
        else:
            image = np.asarray(image.convert("RGBA"))
    elif torch_like:
        image = as_array(image)
    elif isinstance(image, (list, tuple)):
        image = np.asarray(image)
    elif not isinstance(image, np.ndarray):
        raise TypeError(f"an image is a path, a PIL image, a numpy array or a torch tensor, got {type(image).__name__}")
    if image.ndim == 3:
        first, last = image.shape[0] <= 4, image.shape[2] <= 4
        if first and (torch_like or not last):
            image = image.transpose(1, 2, 0)
        elif not last:
            raise ValueError(f"expected one image H×W, H×W×C or C×H×W, got shape {list(image.shape)}")
    elif image.ndim == 2:
        image = image[:, :, None]
    else:
        raise ValueError(f"expected one image H×W, H×W×C or C×H×W, got shape {list(image.shape)}")
    check_pixels(image.shape[1] if image.size else 0, image.shape[0])
    return _unit_range(image)


def is_deep(image: Image.Image) -> bool:
    """More than eight bits a pixel, which Pillow would cut off at 255."""
    return image.mode in ("I", "F") or image.mode.startswith("I;")


def check_pixels(width: int, height: int) -> None:
    if width * height == 0:
        raise ValueError(f"the image is empty ({height}×{width} pixels)")
    if width * height > LARGEST_PIXELS:
        raise ValueError(f"the image has {width * height:,} pixels, the most is {LARGEST_PIXELS:,}: reduce it first")


def _unit_range(image: np.ndarray) -> Float[np.ndarray, "..."]:
    if image.dtype == np.bool_:
        return image.astype(np.float32)
    if image.dtype == np.uint8:
        shares: np.ndarray = np.divide(image, np.float32(255), dtype=np.float32)
        return shares
    if image.dtype.kind in "iu":
        top = 65535 if image.dtype == np.uint16 else 255
        if image.min() < 0 or image.max() > top:
            raise ValueError(f"integer pixels must lie in 0..{top}, found {image.min()}..{image.max()}")
        return image.astype(np.float32) / top
    if image.dtype.kind != "f":
        raise TypeError(f"pixels must be numbers, got {image.dtype}")
    image = image.astype(np.float32)
    if not np.isfinite(image).all():
        raise ValueError("the image contains NaN or infinity")
    if image.min() < -1e-3 or image.max() > 1 + 1e-3:
        raise ValueError(f"float pixels must lie in 0..1, found {image.min():g}..{image.max():g}: divide them first")
    return image.clip(0, 1)
