"""What is served: a learner, and how what clients send becomes vectors. Drawings, photographs or sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from apl.classifier.features import feature_learner
from apl.config import WITHOUT_WEIGHTS, ImageConfig
from apl.encoders import FrozenEncoder, open_encoder, plugged_encoder
from apl.encoders.trained import trained_encoder
from apl.exported import load_for_use
from apl.learner import Learner
from apl.pictures.drawings import fit, looks_like_a_photograph, read_image, to_png
from apl.pictures.image_file import open_image
from apl.service.guard import Refused
from apl.service.settings import Settings

Takes = Literal["drawing", "photo", "text"]
PHOTOGRAPH = (
    "this looks like a photograph, and the model served here knows drawings: serve photographs with "
    "`apl serve --model photo`, or add ?anyway=true to go on"
)


@dataclass(frozen=True)
class ServedModel:
    """A model, shared by all memories."""

    name: str
    learner: Learner
    encoder: FrozenEncoder | None = None
    """For photographs and sentences; drawings go through the learner's own."""

    @staticmethod
    def open(settings: Settings, learner: Learner | None = None) -> ServedModel:
        # Where a model lies on the server is nobody's business.
        name = Path(settings.model).name
        if learner is None and plugged_encoder(settings.model, None) is not None:
            encoder = open_encoder(settings.model)
            assert encoder.width is not None
            return ServedModel(name, feature_learner(encoder.width, consolidate=True), encoder)
        learner = load_for_use(settings.model) if learner is None else learner
        if not isinstance(learner.config.encoder, ImageConfig):
            raise ValueError(f"{settings.model} does not take pictures: the service needs a model that does")
        if learner.config.decoder.labels == "fixed" and learner.config.decoder.kind not in WITHOUT_WEIGHTS:
            raise ValueError(f"{settings.model} knows a fixed number of classes: take one with neighbourhood labels")
        if (encoder := trained_encoder(learner)) is not None:
            return ServedModel(name, learner.on_embeddings(), encoder)
        return ServedModel(name, learner)

    @property
    def takes(self) -> Takes:
        return "drawing" if self.encoder is None else "text" if self.encoder.kind == "text" else "photo"

    @property
    def fingerprint(self) -> str:
        return self.learner.fingerprint() if self.encoder is None else self.encoder.fingerprint

    @property
    def image_size(self) -> int:
        """Pixels along a side that it looks at; 0 for sentences."""
        return self.learner.config.encoder.image_size if self.encoder is None else getattr(self.encoder, "size", 0)

    def read(self, content: bytes | np.ndarray | str, ink: str, most_pixels: int, anyway: bool) -> Any:
        """A picture or a text, checked, in the encoder's own form. A `ValueError` or `TypeError` says what is wrong."""
        if isinstance(content, str) != (self.takes == "text"):
            raise ValueError(
                "sentences are taken here: send text" if self.takes == "text" else "pictures are taken here"
            )
        picture = open_image(content, most_pixels) if isinstance(content, bytes) else content
        if self.encoder is not None:
            return self.encoder.read(picture)
        if not anyway and looks_like_a_photograph(picture):
            raise Refused(422, "photograph", PHOTOGRAPH)
        return read_image(picture, ink)

    def embed(self, examples: Sequence[Any]) -> np.ndarray:
        if self.encoder is not None:
            return self.encoder.embed(examples)
        networks = self.learner.networks
        return networks.array(networks.embed(fit(examples, self.image_size)))

    def payload(self, example: Any) -> bytes | None:
        """What a row keeps of it."""
        return to_png(example) if self.encoder is None else self.encoder.payload(example)


def content_of(example: Any) -> bytes:
    """Its bytes, to tell whether two examples are the same."""
    return example.encode() if isinstance(example, str) else example.tobytes()
