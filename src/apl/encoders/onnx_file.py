"""Your own encoder: an ONNX file, and a small JSON beside it that says how to prepare a picture.

    {"size": 224, "colour": "RGB", "mean": [123.7, 116.3, 103.5], "scale": [58.4, 57.1, 57.4], "layout": "NCHW"}

`size` is the side of the square it looks at; a pixel enters as (value − mean) / scale, values running from 0 to 255.
`colour` is RGB, BGR or grey, `layout` NCHW or NHWC. `input` and `output` name the graph's, where it has several. Only
`size` is required.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from apl.encoders.contract import EncoderError, checked_vectors
from apl.encoders.examples import PhotoExamples
from apl.encoders.origins import digest
from apl.onnx_session import GraphError, onnx_session
from apl.pictures.photographs import middle_square

_AT_ONCE = 8


@dataclass(frozen=True)
class Preparation:
    """How a picture becomes a graph's input."""

    # Any: they come from a file, and are checked below.
    size: Any
    colour: Any = "RGB"
    mean: Any = 0.0
    scale: Any = 255.0
    layout: Any = "NCHW"
    input: Any = None
    output: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= 4096:
            raise EncoderError(f"size is the side of the picture in pixels, 1 to 4096, got {self.size!r}")
        if self.colour not in ("RGB", "BGR", "grey"):
            raise EncoderError(f'colour is "RGB", "BGR" or "grey", got {self.colour!r}')
        if self.layout not in ("NCHW", "NHWC"):
            raise EncoderError(f'layout is "NCHW" or "NHWC", got {self.layout!r}')
        channels = 1 if self.colour == "grey" else 3
        for name in ("mean", "scale"):
            try:
                values = np.asarray(getattr(self, name), np.float32)
            except (TypeError, ValueError):
                values = np.array(np.nan)
            if values.shape not in ((), (channels,)) or not np.isfinite(values).all():
                raise EncoderError(f"{name} is one number or {channels}, got {getattr(self, name)!r}")
            if name == "scale" and (values == 0).any():
                raise EncoderError("scale must not be 0: pixels are divided by it")

    def pixels(self, photos: Sequence[Image.Image]) -> np.ndarray:
        values = np.stack([middle_square(photo, self.size) for photo in photos])
        if self.colour == "BGR":
            values = values[..., ::-1]
        elif self.colour == "grey":
            values = values @ np.array([[0.299], [0.587], [0.114]], np.float32)
        values = (values - np.asarray(self.mean, np.float32)) / np.asarray(self.scale, np.float32)
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2) if self.layout == "NCHW" else values)


class OnnxFileEncoder(PhotoExamples):
    """Pictures → vectors by a graph of your own, prepared as the JSON beside it says."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise EncoderError(f"there is no ONNX file {self.path}")
        self.preparation = read_preparation(self.path.with_suffix(".json"))
        self.size = self.preparation.size
        try:
            self._session = onnx_session(self.path)
        except GraphError as error:
            raise EncoderError(f"{self.path} cannot be used: {error}") from None
        self._input = _chosen(self.preparation.input, self._session.get_inputs(), "input", self.path)
        self._output = _chosen(self.preparation.output, self._session.get_outputs(), "output", self.path)
        self.fingerprint = "onnx-" + digest(self.path, json.dumps(vars(self.preparation), sort_keys=True))
        # One black picture shows whether size and layout fit, and the width, before anything is learnt.
        self.width: int | None = None
        self.width = self.embed([Image.new("RGB", (self.preparation.size,) * 2)]).shape[1]

    def embed(self, examples: Sequence[Image.Image]) -> Float[np.ndarray, "example embed"]:
        parts = [np.zeros((0, self.width or 0), np.float32)] if not examples else []
        for start in range(0, len(examples), _AT_ONCE):
            pixels = self.preparation.pixels(examples[start : start + _AT_ONCE])
            parts.append(self._run(pixels))
        return np.concatenate(parts)

    def _run(self, pixels: np.ndarray) -> np.ndarray:
        batch = self._input.shape[0] if self._input.shape else None
        # A graph exported for a fixed number of pictures gets them one by one, if that number is one.
        parts = pixels[:, None] if batch == 1 else [pixels]
        try:
            found = np.concatenate([self._session.run([self._output.name], {self._input.name: p})[0] for p in parts])
        except Exception as error:
            raise EncoderError(
                f"{self.path.name} takes {self._input.type} {self._input.shape} and was given {list(pixels.shape)}, as "
                f"its JSON says (size, colour, layout): {error}"
            ) from None
        if found.ndim == 4 and found.shape[2:] == (1, 1):
            found = found[:, :, 0, 0]
        return checked_vectors(found, len(pixels), self.width, self.path.name)


def read_preparation(path: Path) -> Preparation:
    if not path.is_file():
        raise EncoderError(f'there is no {path}: it says how to prepare a picture, at least {{"size": 224}}')
    try:
        told = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise EncoderError(f"{path} is no JSON: {error}") from None
    if not isinstance(told, dict) or "size" not in told:
        raise EncoderError(f'{path} must be an object with at least "size", the side of the picture in pixels')
    known = [field.name for field in fields(Preparation)]
    if strange := sorted(set(told) - set(known)):
        raise EncoderError(f"{path} says {', '.join(strange)}, known are {', '.join(known)}")
    try:
        return Preparation(**told)
    except EncoderError as error:
        raise EncoderError(f"{path}: {error}") from None


def _chosen(name: str | None, there: list, which: str, path: Path) -> Any:
    names = [value.name for value in there]
    if name is None and len(there) == 1:
        return there[0]
    if name not in names:
        asked = f"has no {which} {name!r}" if name is not None else f"has several {which}s: name one in the JSON"
        raise EncoderError(f"{path.name} {asked} (it has {', '.join(names)})")
    return there[names.index(name)]
