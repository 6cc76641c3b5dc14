"""`encoder="fastembed:NAME"`: a text model of the fastembed library, which needs no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from apl.encoders.contract import checked_vectors
from apl.encoders.examples import TextExamples
from apl.encoders.library import import_library, load_model
from apl.encoders.origins import digest
from apl.onnx_session import usual_threads


class FastembedEncoder(TextExamples):
    """Sentence vectors of a supported model. `folder` holds its files where they must not be downloaded."""

    def __init__(self, name: str, *, folder: str | Path | None = None) -> None:
        library = import_library("fastembed", "fastembed")
        options = {"threads": usual_threads(), "specific_model_path": None if folder is None else str(folder)}
        self._model = load_model("fastembed", name, lambda: library.TextEmbedding(name, **options))
        self.width: int = library.TextEmbedding.get_embedding_size(name)
        # The library hides which files it opened; its description names their origin.
        described = [d for d in library.TextEmbedding.list_supported_models() if d["model"].lower() == name.lower()]
        self.fingerprint = f"fastembed-{name}-{digest(json.dumps(described, sort_keys=True, default=str))}"

    def embed(self, examples: Sequence[str]) -> Float[np.ndarray, "example embed"]:
        if not examples:
            return np.zeros((0, self.width), np.float32)
        return checked_vectors(list(self._model.embed(list(examples))), len(examples), self.width, "fastembed")
