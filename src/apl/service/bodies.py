"""Request bodies, from which `/openapi.json` follows, and the examples in them."""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from apl.classifier.inputs import Examples
from apl.classifier.online import OnlineClassifier
from apl.pictures.drawings import looks_like_a_photograph
from apl.pictures.image_file import open_image
from apl.service.refusal import Refused, invalid
from apl.service.settings import BATCH, LABEL_CHARACTERS, POOL, SOURCE_CHARACTERS, TEXT_CHARACTERS
from apl.store.checks import checked_text

PHOTOGRAPH = (
    "this looks like a photograph, and the model served here knows drawings: serve photographs with "
    '`apl serve --model photo`, or add "anyway": true to the example'
)

TURNS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They change the direction of all text after them."""


def visible(text: str) -> str:
    """Refuse what cannot be read on a page."""
    if all(unicodedata.category(character)[0] in "CZ" for character in text):
        raise ValueError("it is empty")
    if any(unicodedata.category(character) in ("Cc", "Cs") or character in TURNS for character in text):
        raise ValueError("it contains control characters")
    return text


def storable(text: str) -> str:
    """Refuse what no memory can hold: too many bytes in UTF-8, zero characters."""
    return checked_text(text, "text")


def exactly_one(*names: str) -> Any:
    """A check that one of these fields is given."""

    def check(body: Any) -> Any:
        if sum(getattr(body, name) is not None for name in names) != 1:
            raise ValueError(f"give exactly one of {', '.join(names)}")
        return body

    return model_validator(mode="after")(check)


Text = Annotated[StrictStr, Field(min_length=1, max_length=LABEL_CHARACTERS), AfterValidator(visible)]
LabelField = Annotated[
    Text | Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)],
    Field(description='Text or a 64-bit integer; 7 and "7" are different classes.'),
]
SourceField = Annotated[
    StrictStr, Field(min_length=1, max_length=SOURCE_CHARACTERS), AfterValidator(visible), AfterValidator(storable)
]
# Memories from elsewhere may hold names that cannot be read on a page.
GivenText = Annotated[StrictStr, Field(max_length=2000), AfterValidator(storable)]
GivenLabel = GivenText | Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
RowField = Annotated[StrictInt, Field(ge=1, lt=2**63)]


class Strict(BaseModel):
    """A misspelt field is an error."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Question(Strict):
    """One example: `image`, or `text` where sentences are served."""

    image: StrictStr | None = None
    """A PNG, JPEG, WebP, GIF, BMP or TIFF in base64, or as a data: URL."""
    text: Annotated[StrictStr, Field(min_length=1, max_length=TEXT_CHARACTERS)] | None = None
    ink: Literal["auto", "dark", "light"] = "auto"
    """Is the ink darker or lighter than its ground?"""
    anyway: bool = False
    """Accept a photograph although the model knows drawings."""

    one_example = exactly_one("image", "text")


class Lesson(Question):
    """An example and its label."""

    label: LabelField
    source: SourceField | None = None
    """Where it comes from. Examples can be forgotten by source."""


# The first error ends the check: a batch made of errors costs no more than a good one.
class Questions(Strict):
    examples: list[Question] = Field(min_length=1, fail_fast=True, max_length=BATCH)


class Pool(Strict):
    """Unlabelled examples."""

    examples: list[Question] = Field(min_length=1, fail_fast=True, max_length=POOL)


class Lessons(Strict):
    examples: list[Lesson] = Field(min_length=1, fail_fast=True, max_length=BATCH)


class Forgetting(Strict):
    """What to forget: exactly one of a class, a row, and everything from a source."""

    label: GivenLabel | None = None
    row: RowField | None = None
    source: GivenText | None = None

    one_thing = exactly_one("label", "row", "source")


class Renaming(Strict):
    """A class and its new name. If there is a class of that name, the two become one."""

    label: GivenLabel
    to: LabelField


class Relabelling(Strict):
    """A row and its new label. With a source, only what it contributed to the row."""

    row: RowField
    label: LabelField
    source: GivenText | None = None


class Sharing(Strict):
    scope: Literal["read", "learn"] = "learn"
    """What the guest may do in this memory."""


def read_examples(classifier: OnlineClassifier, bodies: Sequence[Question], most_pixels: int) -> list[Examples]:
    """The examples of one request, checked by the classifier. Decoding takes time: not for the event loop."""
    # A pool has together no more pixels than a batch may have.
    most_pixels = min(most_pixels, most_pixels * BATCH // max(1, len(bodies)))
    examples = []
    for number, body in enumerate(bodies):
        try:
            examples.append(_read(classifier, body, most_pixels))
        except Refused as refusal:
            if len(bodies) == 1:
                raise
            raise Refused(refusal.status, refusal.code, f"examples.{number}: {refusal.message}") from None
    return examples


def _read(classifier: OnlineClassifier, body: Question, most_pixels: int) -> Examples:
    kind = classifier.input_kind
    if (body.text is not None) != (kind == "text"):
        raise invalid("text: sentences are served here" if kind == "text" else "image: pictures are served here")
    try:
        if body.text is not None:
            return classifier.read(body.text)
        picture = open_image(_from_base64(body.image or ""), most_pixels)
        if kind == "drawing" and not body.anyway and looks_like_a_photograph(picture):
            raise Refused(422, "photograph", PHOTOGRAPH)
        return classifier.read(picture, ink=body.ink)
    except (ValueError, TypeError) as error:
        raise invalid(f"{'image' if body.text is None else 'text'}: {error}") from None


def _from_base64(text: str) -> bytes:
    """Plain base64, or a data: URL as a browser makes it."""
    try:
        return base64.b64decode(re.sub("^data:[^,]*;base64,", "", text), validate=True)
    except ValueError:
        raise ValueError("not valid base64") from None
