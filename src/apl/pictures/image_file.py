"""Image files from any source: the only place where untrusted bytes become pictures.

Pillow would try some forty formats, and for one of them start another program (Ghostscript, for PostScript). Here a
picture is one of six, independent of its name. Its size is read from the header before anything is unpacked, and it is
turned upright. A JPEG may have up to four times the largest number of pixels: its decoder can halve both sides. (It is not
reduced further: a progressive JPEG takes six bytes per pixel of its full size while it is decoded.)
"""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
LARGEST_PIXELS = 64_000_000
SCAN, MOST_SCANS = b"\xff\xda", 100
"""A JPEG usually has 1 to 12 scans. Each takes a pass over the whole picture and may be a few bytes long: a small file with
thousands of scans would take minutes."""
MOST_PIECES = 10_000
"""Strips or tiles of a TIFF. They may be a single pixel each, and Pillow makes an object of every one when it opens the file."""


def open_image(source: str | os.PathLike[str] | bytes, most_pixels: int = LARGEST_PIXELS) -> Image.Image:
    """The picture in a file, or in bytes, unpacked and upright. A `ValueError` says what is wrong with it."""
    try:
        if isinstance(source, bytes) and _tiff_pieces(source) > MOST_PIECES:
            raise ValueError("too many pieces")
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
            if isinstance(image, JpegImagePlugin.JpegImageFile):
                _read_smaller(image, source, most_pixels)
            if image.width * image.height > most_pixels:
                raise _too_large(f"{image.width}×{image.height} pixels", most_pixels)
            image.load()
            return ImageOps.exif_transpose(image)
    except _TooLarge:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large("far too many pixels", most_pixels) from None
    except UnidentifiedImageError:
        raise ValueError(f"not a picture: it may be {', '.join(FORMATS)}") from None
    except FileNotFoundError:
        raise ValueError("there is no such file") from None
    except (IsADirectoryError, PermissionError) as error:
        raise ValueError((error.strerror or "it cannot be read").lower()) from None
    except Exception:
        # Decoders meet damaged files with errors of every kind; all of them mean the same here.
        raise ValueError("the picture is damaged") from None


def opened(picture: Any) -> Any:
    """A path, a file or its bytes as the picture in it; anything else as it is."""
    if hasattr(picture, "read"):
        picture = picture.read()
    if isinstance(picture, (bytes, bytearray)):
        return open_image(bytes(picture))
    if isinstance(picture, (str, os.PathLike)):
        try:
            return open_image(picture)
        except ValueError as error:
            raise ValueError(f"{os.fspath(picture)}: {error}") from None
    return picture


def _read_smaller(
    image: JpegImagePlugin.JpegImageFile, source: str | os.PathLike[str] | bytes, most_pixels: int
) -> None:
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    if data.count(SCAN) > MOST_SCANS:
        raise ValueError("too many scans")
    halved = -(-image.width // 2) * -(-image.height // 2)
    if halved <= most_pixels < image.width * image.height:
        image.draft(None, (max(1, image.width // 2), max(1, image.height // 2)))


def _tiff_pieces(data: bytes) -> int:
    """How many strips or tiles the first picture of a TIFF claims to have; 0 of anything else."""
    if data[:2] not in (b"II", b"MM"):
        return 0
    order, big = "<" if data[:2] == b"II" else ">", data[2:4] in (b"+\0", b"\0+")
    first, number, entry, size, wide = (8, "Q", "HHQ", 20, 8) if big else (4, "H", "HHI", 12, 2)
    (at,) = struct.unpack_from(order + ("Q" if big else "I"), data, first)
    (entries,) = struct.unpack_from(order + number, data, at)
    start = at + wide
    here = (struct.unpack_from(order + entry, data, start + size * i) for i in range(min(entries, len(data) // size)))
    return max((count for tag, _, count in here if tag in (273, 324)), default=0)


class _TooLarge(ValueError):
    pass


def _too_large(found: str, most_pixels: int) -> _TooLarge:
    return _TooLarge(f"the picture has {found}, the most is {most_pixels:,}: reduce it first")
