"""Request bodies and query parameters. The description at `/openapi.json` follows from these models."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr
from pydantic import model_validator as validator

from apl.service.settings import BATCH, LABEL_CHARACTERS, MOST_TOP, POOL, SOURCE_CHARACTERS, TEXT_CHARACTERS, TOP


def visible(text: str) -> str:
    """Refuse what cannot be read on a page."""
    if not text.strip():
        raise ValueError("it is empty")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise ValueError("it contains control characters")
    return text


Text = Annotated[StrictStr, Field(min_length=1, max_length=LABEL_CHARACTERS), AfterValidator(visible)]
LabelField = Annotated[
    Text | Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)],
    Field(description='Text or a 64-bit integer; 7 and "7" are different classes.'),
]
SourceField = Annotated[StrictStr, Field(min_length=1, max_length=SOURCE_CHARACTERS), AfterValidator(visible)]
Ink = Literal["auto", "dark", "light"]
Grey = Annotated[StrictInt, Field(ge=0, le=255)] | Annotated[StrictFloat, Field(ge=0, le=1)]
# The first error ends the check: a picture made of errors costs no more than a good one.
GreyRow = Annotated[list[Grey], Field(min_length=1, fail_fast=True)]


class Strict(BaseModel):
    """A misspelt field is an error."""

    model_config = ConfigDict(extra="forbid")


class Question(Strict):
    """One example: `image` or `pixels`, or `text` where sentences are served."""

    image: StrictStr | None = Field(
        default=None, description="A PNG, JPEG, WebP, GIF, BMP or TIFF in base64, or as a data: URL."
    )
    pixels: Annotated[list[GreyRow], Field(min_length=1, fail_fast=True)] | None = Field(
        default=None, description="Grey rows of the same length: integers 0..255, or floats 0..1."
    )
    text: Annotated[StrictStr, Field(min_length=1, max_length=TEXT_CHARACTERS)] | None = None
    ink: Ink = Field(default="auto", description="Is the ink darker or lighter than its ground?")

    @validator(mode="after")
    def _one_of_three(self) -> Question:
        if sum(what is not None for what in (self.image, self.pixels, self.text)) != 1:
            raise ValueError("give exactly one of image, pixels and text")
        return self


class Lesson(Question):
    """An example and its label."""

    label: LabelField
    source: SourceField | None = Field(
        default=None, description="Where it comes from. Examples can be forgotten by source."
    )


class Questions(Strict):
    examples: list[Question] = Field(min_length=1, fail_fast=True, max_length=BATCH)


class Pool(Strict):
    """Unlabelled examples."""

    examples: list[Question] = Field(min_length=1, fail_fast=True, max_length=POOL)


class Lessons(Strict):
    examples: list[Lesson] = Field(min_length=1, fail_fast=True, max_length=BATCH)


class Forgetting(Strict):
    """What to forget: exactly one of a class, a row, and everything from a source."""

    label: LabelField | None = None
    row: Annotated[StrictInt, Field(ge=1, lt=2**63)] | None = None
    source: SourceField | None = None

    @validator(mode="after")
    def _one_of_three(self) -> Forgetting:
        if sum(what is not None for what in (self.label, self.row, self.source)) != 1:
            raise ValueError("give exactly one of label, row and source")
        return self


class Renaming(Strict):
    """A class and its new name. If there is a class of that name, the two become one."""

    label: LabelField
    to: LabelField


class Relabelling(Strict):
    """A row and its new label. With a source, only what it contributed to the row."""

    row: Annotated[StrictInt, Field(ge=1, lt=2**63)]
    label: LabelField
    source: SourceField | None = None


class Sharing(Strict):
    scope: Literal["read", "learn"] = Field(default="learn", description="What the guest may do in this memory.")


class Reading(BaseModel):
    """How an example is taken."""

    anyway: bool = Field(default=False, description="Accept a photograph although the model knows drawings.")


class Choosing(Reading):
    n: int = Field(default=TOP, ge=1, le=POOL, description="How many examples to name.")


class Naming(Reading):
    """How many classes an answer names."""

    top: int = Field(default=TOP, ge=1, le=MOST_TOP, description="How many of the most probable classes to name.")


class Asking(Naming):
    """When an example is called new."""

    new_above: float | None = Field(
        default=None, ge=0, le=1, description="Answer null for what is new with a probability above this."
    )
    false_alarms: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Answer null for this share of examples of known classes, and for what is as new.",
    )

    @validator(mode="after")
    def _one_of_two(self) -> Asking:
        if self.new_above is not None and self.false_alarms is not None:
            raise ValueError("give new_above or false_alarms, not both")
        return self


class Covering(Reading):
    coverage: float = Field(default=0.9, gt=0, lt=1, description="How often the set contains the true label.")
