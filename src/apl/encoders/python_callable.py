"""Any Python callable from a list of examples to vectors: `OnlineClassifier(encoder=model.encode)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from apl.encoders.contract import EncoderError, EncoderKind, checked_vectors
from apl.pictures.image_file import open_image
from apl.pictures.photographs import reduced, to_jpeg

_THUMBNAIL = 224


class CallableEncoder:
    """Calls a function with a list of examples, and checks that it returns one finite vector each, always of one width.

    Args:
        fingerprint: tells its vectors from another encoder's. By default the function's attribute `fingerprint`, or its name;
            with a name alone, use another memory when the function changes.
        kind: what it reads, for the command line and the service.

    Examples:
        >>> encoder = CallableEncoder(lambda words: [[len(word), word.count("a")] for word in words], fingerprint="lengths-1")
        >>> encoder.embed(["banana", "fig"])
        array([[6., 3.],
               [3., 0.]], dtype=float32)
    """

    def __init__(
        self, function: Callable[[list], Any], *, fingerprint: str | None = None, kind: EncoderKind = "vector"
    ) -> None:
        self._function, self.kind = function, kind
        self.width: int | None = None
        owner = getattr(function, "__self__", None)
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        module = getattr(function, "__module__", None) or type(owner or function).__module__
        told = fingerprint or getattr(function, "fingerprint", None)
        self.fingerprint = f"callable-{told or f'{module}.{self.name}'}"

    def read(self, example: Any) -> Any:
        return example

    def embed(self, examples: Sequence[Any]) -> Float[np.ndarray, "example embed"]:
        if not examples:
            return np.zeros((0, self.width or 0), np.float32)
        try:
            vectors = self._function(list(examples))
        except Exception as error:
            said = " ".join(str(error).split())
            raise EncoderError(f"the encoder {self.name} raised {type(error).__name__}: {said}") from error
        vectors = checked_vectors(vectors, len(examples), self.width, self.name)
        self.width = vectors.shape[1]
        return vectors

    def payload(self, example: Any) -> bytes | None:
        if isinstance(example, str):
            return example.encode(errors="replace")
        if isinstance(example, Image.Image):
            return to_jpeg(reduced(example.convert("RGB"), _THUMBNAIL))
        return None

    def from_payload(self, payload: bytes) -> Any:
        if payload.startswith(b"\xff\xd8"):
            return open_image(payload)
        return payload.decode()
