"""What encoders of one kind of example share: checking an example, and what a memory keeps of it for explanations."""

from __future__ import annotations

from typing import Any

from PIL import Image

from apl.encoders.contract import EncoderKind
from apl.pictures.photographs import read_photo, reduced, to_jpeg

MOST_CHARACTERS = 20_000
"""Characters of a text that are read and kept. No encoder here reads more tokens than these make."""


class TextExamples:
    """Texts in, texts kept."""

    kind: EncoderKind = "text"

    def read(self, example: Any) -> str:
        if not isinstance(example, str):
            raise TypeError(f"a text is a str, got {type(example).__name__}")
        text = str(example)[:MOST_CHARACTERS]
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("the text is not valid Unicode: it holds half of a surrogate pair") from None
        if not any(character.isprintable() and not character.isspace() for character in text):
            raise ValueError("the text is empty")
        return text

    def payload(self, example: str) -> bytes:
        return example.encode()

    def from_payload(self, payload: bytes) -> str:
        try:
            return self.read(payload.decode())
        except UnicodeDecodeError:
            raise ValueError("what was kept is not a text: it was made from a picture") from None


class PhotoExamples:
    """Photographs in, small JPEG files kept."""

    kind: EncoderKind = "photo"
    size: int
    """Pixels on the shorter side of what the encoder looks at; the memory keeps as many."""

    def read(self, example: Any) -> Image.Image:
        return reduced(read_photo(example), self.size)

    def payload(self, example: Image.Image) -> bytes:
        return to_jpeg(example)

    def from_payload(self, payload: bytes) -> Image.Image:
        return self.read(payload)
