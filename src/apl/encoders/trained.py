"""The encoder of a colour model that `apl train … --data DIR --colour` made, used like any encoder of photographs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from apl.checkpoint import find_model, learner_config
from apl.encoders.examples import PhotoExamples
from apl.exported import load_for_use
from apl.learner import Learner
from apl.pictures.photographs import fit_coloured, read_coloured

_AT_ONCE = 64


class TrainedEncoder(PhotoExamples):
    """Pictures → vectors by a learner's own encoder; the learner's decoder reads them."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.size: int = getattr(learner.config.encoder, "image_size", 0)
        self.width: int = learner.networks.width
        self.fingerprint = learner.fingerprint()

    def read(self, example: Any) -> Image.Image:
        return read_coloured(example, self.size)

    def embed(self, examples: Sequence[Image.Image]) -> Float[np.ndarray, "example embed"]:
        networks, parts = self.learner.networks, [np.zeros((0, self.width), np.float32)]
        for start in range(0, len(examples), _AT_ONCE):
            pixels = fit_coloured(examples[start : start + _AT_ONCE], self.size)
            parts.append(networks.array(networks.embed(pixels)))
        return np.concatenate(parts)


def trained_encoder(model: str | Path | Learner | None) -> TrainedEncoder | None:
    """The model's encoder if it sees colours, else None: the learner itself embeds drawings."""
    if model is None:
        return None
    config = model.config if isinstance(model, Learner) else learner_config(find_model(model))
    if getattr(config.encoder, "channels", 1) == 1:
        return None
    return TrainedEncoder(model if isinstance(model, Learner) else load_for_use(model))
