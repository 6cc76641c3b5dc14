"""The paper's own encoder: Inception-ResNet-v2 (Szegedy et al. 2017), its 1536 activations before the classifier.

Its weights come through timm from a hub (`pip install timm`), so it takes torch and a connection at first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image

from apl.encoders import MissingExtraError
from apl.pictures.photographs import middle_square, read_photo, reduced

NAME = "inception_resnet_v2.tf_in1k"
SIZE, WIDTH = 299, 1536
_AT_ONCE = 8


class InceptionEncoder:
    """Photographs → what Inception-ResNet-v2 sees; pixels enter from −1 to 1."""

    kind = "photo"
    width = WIDTH
    fingerprint = f"timm-{NAME}"

    def __init__(self) -> None:
        try:
            import timm
        except ImportError:
            raise MissingExtraError("Inception-ResNet-v2 comes through timm: pip install timm") from None
        try:
            self._network = timm.create_model(NAME, pretrained=True).eval()
        except Exception as error:
            # A hub that is out of reach fails in the words of whichever library was talking to it.
            raise MissingExtraError(f"the weights of {NAME} could not be fetched: {error}") from error

    def read(self, example: Any) -> Image.Image:
        return reduced(read_photo(example), SIZE)

    def embed(self, examples: Sequence[Image.Image]) -> Float[np.ndarray, "example 1536"]:
        return self.features(examples)

    def imagenet_class(self, features: Float[np.ndarray, "example 1536"]) -> np.ndarray:
        """The number of the ImageNet class that the network was trained to name."""
        with torch.inference_mode():
            return self._network.get_classifier()(torch.from_numpy(features)).argmax(1).numpy()

    @torch.inference_mode()
    def features(self, examples: Sequence[Image.Image]) -> Float[np.ndarray, "example 1536"]:
        seen = [np.zeros((0, WIDTH), np.float32)]
        for start in range(0, len(examples), _AT_ONCE):
            pixels = np.stack([middle_square(photo, SIZE) for photo in examples[start : start + _AT_ONCE]])
            x = torch.from_numpy(pixels / 127.5 - 1).permute(0, 3, 1, 2)
            seen.append(self._network.forward_head(self._network.forward_features(x), pre_logits=True).numpy())
        return np.concatenate(seen)

    def payload(self, example: Image.Image) -> bytes | None:
        return None

    def from_payload(self, payload: bytes) -> Image.Image:
        return self.read(payload)
