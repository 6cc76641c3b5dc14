"""From request bodies to examples that the classifier has checked. Decoding takes time: not for the event loop."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import numpy as np

from apl.classifier.inputs import Examples
from apl.classifier.online import OnlineClassifier
from apl.pictures.drawings import looks_like_a_photograph
from apl.pictures.image_file import open_image
from apl.service.bodies import Question
from apl.service.refusal import Refused, invalid
from apl.service.settings import BATCH

PHOTOGRAPH = (
    "this looks like a photograph, and the model served here knows drawings: serve photographs with "
    "`apl serve --model photo`, or add ?anyway=true to go on"
)


def read_examples(
    classifier: OnlineClassifier, bodies: Sequence[Question], most_pixels: int, anyway: bool = False
) -> list[Examples]:
    """The examples of one request. `anyway` accepts photographs where drawings are served."""
    # A pool has together no more pixels than a batch may have.
    most_pixels = min(most_pixels, most_pixels * BATCH // max(1, len(bodies)))
    examples = []
    for number, body in enumerate(bodies):
        try:
            examples.append(_read(classifier, body, most_pixels, anyway))
        except Refused as refusal:
            if len(bodies) == 1:
                raise
            raise Refused(refusal.status, refusal.code, f"examples.{number}: {refusal.message}") from None
    return examples


def _read(classifier: OnlineClassifier, body: Question, most_pixels: int, anyway: bool) -> Examples:
    kind = classifier.input_kind
    if (body.text is not None) != (kind == "text"):
        raise invalid("text: sentences are served here" if kind == "text" else "image: pictures are served here")
    try:
        if body.text is not None:
            return classifier.read(body.text)
        picture = _picture(body, most_pixels)
        if kind == "drawing" and not anyway and looks_like_a_photograph(picture):
            raise Refused(422, "photograph", PHOTOGRAPH)
        return classifier.read(picture, ink=body.ink)
    except (ValueError, TypeError) as error:
        raise invalid(f"{'image' if body.text is None else 'text'}: {error}") from None


def _picture(body: Question, most_pixels: int) -> object:
    if body.pixels is None:
        return open_image(_from_base64(body.image or ""), most_pixels)
    height, width = len(body.pixels), len(body.pixels[0])
    if any(len(row) != width for row in body.pixels):
        raise ValueError("every row of pixels must have the same length")
    if height * width > most_pixels:
        raise ValueError(f"{height}×{width} pixels; at most {most_pixels:,} are allowed")
    return np.array(body.pixels)


def _from_base64(text: str) -> bytes:
    """Plain base64, or a data: URL as a browser makes it."""
    if text.startswith("data:"):
        head, comma, text = text.partition(",")
        if not comma or not head.endswith(";base64"):
            raise ValueError("a data URL must be base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not valid base64") from None
