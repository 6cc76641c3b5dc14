"""`encoder="timm:NAME"`: a network of the timm library, prepared and cropped as its own configuration says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from PIL import Image

from apl.encoders.contract import checked_vectors
from apl.encoders.examples import PhotoExamples
from apl.encoders.library import import_library, load_model, weights_digest

_AT_ONCE = 16


class TimmEncoder(PhotoExamples):
    """The pooled features in front of the classifier. `pretrained=False` gives random weights, for tests."""

    def __init__(self, name: str, *, pretrained: bool = True) -> None:
        timm, self._torch = import_library("timm", "timm"), import_library("torch", "timm")
        data = import_library("timm.data", "timm")
        model = load_model("timm", name, lambda: timm.create_model(name, pretrained=pretrained, num_classes=0))
        self._model = model.eval()
        settings = data.resolve_model_data_config(model)
        self._prepare = data.create_transform(**settings, is_training=False)
        # Some of the picture is cropped away: keep enough for the crop to have full resolution.
        self.size = round(max(settings["input_size"][1:]) / settings.get("crop_pct", 1.0))
        self.width: int | None = None
        self.width = self.embed([Image.new("RGB", (self.size, self.size))]).shape[1]
        self.fingerprint = f"timm-{name}-{weights_digest(model.state_dict())}"

    def embed(self, examples: Sequence[Image.Image]) -> Float[np.ndarray, "example embed"]:
        parts = [np.zeros((0, self.width or 0), np.float32)] if not examples else []
        for start in range(0, len(examples), _AT_ONCE):
            pixels = self._torch.stack([self._prepare(photo) for photo in examples[start : start + _AT_ONCE]])
            with self._torch.inference_mode():
                parts.append(checked_vectors(self._model(pixels), len(pixels), self.width, "timm"))
        return np.concatenate(parts)
