"""`encoder="sentence-transformers:NAME"`: a model of that library, by its name on the hub or the folder it was saved to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from apl.encoders.contract import checked_vectors
from apl.encoders.examples import TextExamples
from apl.encoders.library import import_library, load_model, weights_digest


class SentenceTransformersEncoder(TextExamples):
    """Sentence vectors, scaled as the model itself scales them."""

    def __init__(self, name: str) -> None:
        library = import_library("sentence_transformers", "sentence-transformers")
        self._model = load_model(
            "sentence-transformers", name, lambda: library.SentenceTransformer(name, device="cpu").eval()
        )
        self.width: int | None = None
        self.width = self.embed(["width"]).shape[1]
        self.fingerprint = f"sentence-transformers-{weights_digest(self._model.state_dict())}"

    def embed(self, examples: Sequence[str]) -> Float[np.ndarray, "example embed"]:
        if not examples:
            return np.zeros((0, self.width or 0), np.float32)
        found = self._model.encode(list(examples), show_progress_bar=False, convert_to_numpy=True)
        return checked_vectors(found, len(examples), self.width, "sentence-transformers")
