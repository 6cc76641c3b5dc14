"""From request bodies to examples that the classifier has checked. Decoding takes time: not for the event loop."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apl.classifier.inputs import Examples
from apl.classifier.online import OnlineClassifier
from apl.pictures.drawings import looks_like_a_photograph
from apl.pictures.image_file import open_image
from apl.service.bodies import Ink, Lesson, Question
from apl.service.refusal import Refused, invalid
from apl.store import Label

PHOTOGRAPH = (
    "this looks like a photograph, and the model served here knows drawings: serve photographs with "
    "`apl serve --model photo`, or add ?anyway=true to go on"
)


@dataclass(frozen=True)
class Batch:
    """The examples of one request."""

    examples: list[Examples]
    labels: list[Label]
    """Empty for questions."""
    sources: list[str | None]

    def __len__(self) -> int:
        return len(self.examples)

    def digest(self) -> str:
        """Equal for requests that say the same, in whatever form they come."""
        total = hashlib.sha256()
        for example, label, source in zip(self.examples, self.labels, self.sources, strict=True):
            content = example.payload(0) or b""
            for part in (repr(len(content)).encode(), repr(label).encode(), repr(source).encode(), content):
                total.update(part + b"\0")
        return total.hexdigest()


@dataclass(frozen=True)
class Reader:
    """Reads bodies for one model."""

    classifier: OnlineClassifier
    most_pixels: int

    def read(self, bodies: Sequence[Question], anyway: bool = False) -> Batch:
        examples = []
        for number, body in enumerate(bodies):
            try:
                examples.append(self._one(body, anyway))
            except Refused as refusal:
                if len(bodies) == 1:
                    raise
                raise Refused(refusal.status, refusal.code, f"examples.{number}: {refusal.message}") from None
        lessons = [body for body in bodies if isinstance(body, Lesson)]
        return Batch(examples, [body.label for body in lessons], [body.source for body in lessons])

    def _one(self, body: Question, anyway: bool) -> Examples:
        kind = self.classifier.input_kind
        if (body.text is not None) != (kind == "text"):
            raise invalid("text: sentences are served here" if kind == "text" else "image: pictures are served here")
        if body.text is not None:
            return self._checked("text", body.text, body.ink)
        try:
            picture = self._picture(body)
        except ValueError as error:
            raise invalid(f"image: {error}") from None
        if kind == "drawing" and not anyway and looks_like_a_photograph(picture):
            raise Refused(422, "photograph", PHOTOGRAPH)
        return self._checked("image", picture, body.ink)

    def _picture(self, body: Question) -> object:
        if body.pixels is not None:
            height, width = len(body.pixels), len(body.pixels[0])
            if any(len(row) != width for row in body.pixels):
                raise ValueError("every row of pixels must have the same length")
            if height * width > self.most_pixels:
                raise ValueError(f"{height}×{width} pixels; at most {self.most_pixels:,} are allowed")
            return np.array(body.pixels)
        return open_image(from_base64(body.image or ""), self.most_pixels)

    def _checked(self, what: str, example: object, ink: Ink) -> Examples:
        try:
            return self.classifier.read(example, ink=ink)
        except (ValueError, TypeError) as error:
            raise invalid(f"{what}: {error}") from None


def from_base64(text: str) -> bytes:
    """Plain base64, or a data: URL as a browser makes it."""
    if text.startswith("data:"):
        head, comma, text = text.partition(",")
        if not comma or not head.endswith(";base64"):
            raise ValueError("a data URL must be base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not valid base64") from None
