"""The encoders of models that were trained here, used like any other; the model's own decoder reads their vectors.

Those of drawings see grey, those that `apl train … --data DIR --colour` made see colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from apl.encoders.contract import EncoderKind
from apl.encoders.examples import PhotoExamples
from apl.exported import load_for_use
from apl.learner import Learner
from apl.pictures import drawings
from apl.pictures.image_file import opened
from apl.pictures.photographs import fit_coloured, read_coloured

_AT_ONCE = 64


class TrainedEncoder:
    """Pictures → vectors by a learner's own encoder."""

    kind: EncoderKind

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.size: int = getattr(learner.config.encoder, "image_size", 0)
        self.width: int = learner.networks.width
        self.fingerprint = learner.fingerprint()

    def pixels(self, examples: Sequence[Any]) -> np.ndarray:
        """Examples in the form that the networks take."""
        raise NotImplementedError

    def embed(self, examples: Sequence[Any]) -> Float[np.ndarray, "example embed"]:
        networks, parts = self.learner.networks, [np.zeros((0, self.width), np.float32)]
        for start in range(0, len(examples), _AT_ONCE):
            parts.append(networks.array(networks.embed(self.pixels(examples[start : start + _AT_ONCE]))))
        return np.concatenate(parts)


class ColourEncoder(TrainedEncoder, PhotoExamples):
    """The encoder of a model of photographs."""

    def read(self, example: Any) -> Image.Image:
        return read_coloured(example, self.size)

    def pixels(self, examples: Sequence[Image.Image]) -> np.ndarray:
        return fit_coloured(examples, self.size)


class DrawingEncoder(TrainedEncoder):
    """The encoder of a model of drawings, which are canvases once they are read (`apl.pictures.drawings`)."""

    kind: EncoderKind = "drawing"

    def read(self, example: Any) -> np.ndarray:
        return drawings.read_image(opened(example))

    def pixels(self, examples: Sequence[np.ndarray]) -> np.ndarray:
        return drawings.fit(examples, self.size)

    def payload(self, example: np.ndarray) -> bytes:
        return drawings.to_png(example)

    def from_payload(self, payload: bytes) -> np.ndarray:
        return drawings.from_png(payload)


def trained_encoder(model: str | Path | Learner) -> ColourEncoder | DrawingEncoder:
    """The model's own encoder."""
    learner = model if isinstance(model, Learner) else load_for_use(model)
    colours = getattr(learner.config.encoder, "channels", 1) > 1
    return ColourEncoder(learner) if colours else DrawingEncoder(learner)
