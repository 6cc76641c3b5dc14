"""The encoder of something saved: of an encoder alone (`apl train …-encoder` makes one) or of a whole learner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from apl.checkpoint import CheckpointError, find_model, from_json, read_json
from apl.config import ImageConfig, LearnerConfig
from apl.encoder import Encoder, ImageEncoder, build_encoder
from apl.weights_file import below, load_weights, read_weights


@dataclass(frozen=True)
class SavedEncoder:
    """An encoder of images on disk."""

    directory: Path
    config: ImageConfig
    tensors: dict[str, Tensor]
    provenance: dict[str, Any]

    def build(self) -> ImageEncoder:
        """The encoder itself, in evaluation mode."""
        encoder = cast(ImageEncoder, build_encoder(self.config).eval())
        self.load_into(encoder)
        return encoder

    def load_into(self, encoder: Encoder) -> None:
        if self.config != encoder.config:
            raise CheckpointError(f"{self.directory} holds another encoder than the configuration asks for")
        load_weights(encoder, self.tensors, str(self.directory))


def read_encoder(name_or_dir: str | Path) -> SavedEncoder:
    """Of a bundled model by its name, or of a saved encoder or model by its directory."""
    directory = find_model(name_or_dir)
    described, tensors = read_json(directory / "model.json"), read_weights(directory)
    config, provenance = described["config"], described["provenance"]
    if config["type"] == LearnerConfig.__name__:
        config, provenance = config["encoder"], provenance.get("encoder", provenance)
        tensors = below("encoder.", tensors)
    return SavedEncoder(directory, from_json(ImageConfig, config), tensors, provenance)
