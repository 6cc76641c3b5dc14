"""Examples in requests: texts, and pictures in base64."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from apl.pictures.photographs import read_photo, reduced, to_jpeg

AT_ONCE = 64
"""Examples in a request; the service takes no more."""
MOST_CHARACTERS = 3_000_000
"""Of pictures in a request; the service takes 4 MB."""
SHORTER_SIDE = 1024
"""Pixels that a picture too large for a request is reduced to; no encoder looks at more."""


def encoded(takes: str, x: Any) -> dict[str, Any]:
    """An example as the service takes it."""
    if takes == "text":
        if not isinstance(x, str):
            raise TypeError(f"this service takes texts, got {type(x).__name__}")
        return {"text": x}
    if isinstance(x, (str, os.PathLike)):
        content = Path(x).read_bytes()
    elif isinstance(x, (bytes, bytearray)):
        content = bytes(x)
    else:
        file = io.BytesIO()
        (x if isinstance(x, Image.Image) else read_photo(x)).save(file, "PNG")
        content = file.getvalue()
    if len(content) > MOST_CHARACTERS // 2:
        content = to_jpeg(reduced(read_photo(content), SHORTER_SIDE))
    return {"image": base64.b64encode(content).decode()}


def in_parts(bodies: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Requests with as many examples as the service takes at once."""
    part: list[dict[str, Any]] = []
    characters = 0
    for body in bodies:
        size = len(body.get("image") or body.get("text") or "")
        if part and (len(part) == AT_ONCE or characters + size > MOST_CHARACTERS):
            yield part
            part, characters = [], 0
        part.append(body)
        characters += size
    if part:
        yield part
