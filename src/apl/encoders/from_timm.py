"""`encoder="timm:NAME"`: a network of the timm library, prepared and cropped as its own configuration says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from PIL import Image

from apl.encoders.examples import PhotoExamples
from apl.encoders.library import embed_photos, import_library, load_model, weights_digest


class TimmEncoder(PhotoExamples):
    """The pooled features in front of the classifier. `pretrained=False` gives random weights, for tests."""

    def __init__(self, name: str, *, pretrained: bool = True) -> None:
        timm, data = import_library("timm", "timm"), import_library("timm.data", "timm")
        model = load_model("timm", name, lambda: timm.create_model(name, pretrained=pretrained, num_classes=0))
        self._model = model.eval()
        settings = data.resolve_model_data_config(model)
        self._prepare = data.create_transform(**settings, is_training=False)
        # Some of the picture is cropped away: keep enough for the crop to have full resolution.
        self.size = round(max(settings["input_size"][1:]) / settings.get("crop_pct", 1.0))
        self.width: int = model.head_hidden_size if hasattr(model, "head_hidden_size") else model.num_features
        self.fingerprint = f"timm-{name}-{weights_digest(model.state_dict())}"

    def embed(self, examples: Sequence[Image.Image]) -> Float[np.ndarray, "example embed"]:
        return embed_photos(self._model, self._prepare, examples, self.width)
