"""`encoder="open_clip:NAME"` or `"open_clip:NAME/WEIGHTS"`: the image half of a CLIP model of the open_clip library."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float
from PIL import Image

from apl.encoders.contract import EncoderError
from apl.encoders.examples import PhotoExamples
from apl.encoders.library import embed_photos, import_library, load_model, weights_digest


class OpenClipEncoder(PhotoExamples):
    """Image vectors at unit length. Without WEIGHTS the library's first are taken; `pretrained=False` gives random ones."""

    def __init__(self, name: str, *, pretrained: bool = True) -> None:
        library = import_library("open_clip", "open-clip")
        model_name, _, weights = name.partition("/")
        if pretrained and not weights:
            weights = next(iter(library.list_pretrained_tags_by_model(model_name)), "")
        if pretrained and not weights:
            raise EncoderError(f"open_clip has no weights for {model_name!r}: see open_clip.list_pretrained()")
        chosen = {"model_name": model_name, "pretrained": weights or None}
        load = partial(library.create_model_and_transforms, **chosen)
        self._model, _, self._prepare = load_model("open_clip", name, load)
        self._model.eval()
        self.size = max(np.atleast_1d(self._model.visual.image_size).tolist())
        self.width: int = self._model.visual.output_dim
        self.fingerprint = f"open_clip-{model_name}-{weights_digest(self._model.visual.state_dict())}"

    def embed(self, examples: Sequence[Image.Image]) -> Float[np.ndarray, "example embed"]:
        return embed_photos(partial(self._model.encode_image, normalize=True), self._prepare, examples, self.width)
