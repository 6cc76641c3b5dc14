"""What clients send: examples as JSON or as multipart forms, checked before anything else happens."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import from_json
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from apl.pictures.drawings import Ink
from apl.service.guard import Refused
from apl.service.pictures import array_from_pixels, from_base64, unusable
from apl.service.served_model import ServedModel, content_of
from apl.service.settings import BATCH, LABEL_CHARACTERS, SOURCE_CHARACTERS, TEXT_CHARACTERS, Limits
from apl.store import Label

Text = Annotated[StrictStr, Field(min_length=1, max_length=LABEL_CHARACTERS)]
LabelField = Annotated[
    Text | Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)],
    Field(description='Text or a 64-bit integer; 7 and "7" are different classes.'),
]
Pixels = Annotated[
    Any,  # checked as an array: one by one, a picture full of errors would take a message for each
    WithJsonSchema(
        {
            "type": "array",
            "items": {
                "type": "array",
                "items": {
                    "anyOf": [
                        {"type": "integer", "minimum": 0, "maximum": 255},
                        {"type": "number", "minimum": 0, "maximum": 1},
                    ]
                },
            },
        }
    ),
]
MOST_SIGNS = {b"[": 20_000, b"{": 20_000, b":": 100_000}
"""Looked for before JSON is read: a megabyte of empty lists takes a second to become objects."""
Body = TypeVar("Body", bound=BaseModel)


class Strict(BaseModel):
    """A misspelt field is an error, not silence."""

    model_config = ConfigDict(extra="forbid")


class Asked(Strict):
    """One example: `image` or `pixels`, or `text` where sentences are served."""

    image: StrictStr | None = Field(
        None, description="A PNG, JPEG, WebP, GIF, BMP or TIFF in base64, or as a data: URL."
    )
    pixels: Pixels | None = Field(None, description="Grey rows: integers 0..255, or floats 0..1.")
    text: Annotated[StrictStr, Field(min_length=1, max_length=TEXT_CHARACTERS)] | None = Field(
        None, description="A sentence, for a service of sentences."
    )
    ink: Literal["auto", "dark", "light"] = Field("auto", description="Darker or lighter than its ground?")

    @model_validator(mode="after")
    def _one_of_three(self) -> Asked:
        if sum(what is not None for what in (self.image, self.pixels, self.text)) != 1:
            raise ValueError("give image, pixels or text, one of them")
        return self


class Question(Asked):
    """A picture to be named."""


class Lesson(Asked):
    """A picture and its name."""

    label: LabelField
    source: Annotated[StrictStr, Field(min_length=1, max_length=SOURCE_CHARACTERS)] | None = Field(
        None, description="Where it comes from; rows can be forgotten by it."
    )


class Questions(Strict):
    examples: Annotated[list[Question], FailFast()] = Field(min_length=1, max_length=BATCH)


class Lessons(Strict):
    examples: Annotated[list[Lesson], FailFast()] = Field(min_length=1, max_length=BATCH)


class Forgetting(Strict):
    """What to forget: a class, a row, or all that came from a source. Exactly one of them."""

    label: LabelField | None = None
    row: Annotated[StrictInt, Field(ge=1, lt=2**63)] | None = None
    source: Annotated[StrictStr, Field(min_length=1, max_length=SOURCE_CHARACTERS)] | None = None

    @model_validator(mode="after")
    def _one_of_three(self) -> Forgetting:
        if sum(what is not None for what in (self.label, self.row, self.source)) != 1:
            raise ValueError("say what to forget: label, row or source, one of them")
        return self


class Restoring(Strict):
    undo: StrictStr = Field(min_length=1, max_length=64, description="What the answer to `forget` said.")


class Renaming(Strict):
    """A class and its new name; if there is a class of that name, the two become one."""

    label: LabelField
    to: LabelField


class Sharing(Strict):
    scope: Literal["read", "learn"] = Field("learn", description="What the guest may do in this memory.")


MODELS = (Question, Questions, Lesson, Lessons, Forgetting, Restoring, Renaming, Sharing)
MANY: dict[type[BaseModel], type[BaseModel]] = {Questions: Question, Lessons: Lesson}


@dataclass(frozen=True)
class Example:
    """A checked picture or text in the encoder's own form, and what is said of it."""

    content: Any
    label: Label | None = None
    source: str | None = None


async def read_json(request: Request, kind: type[Body], most_bytes: int = 100_000) -> Body:
    """The body as JSON of this kind. For bodies that are small when they are right."""
    if media_type(request) != "application/json":
        raise Refused(415, "media_type", "the body must be application/json")
    content = await request.body()
    if len(content) > most_bytes:
        raise Refused(413, "too_large", f"the body must not exceed {most_bytes:,} bytes here")
    return parse(kind, content)


def parse(kind: type[Body], content: bytes) -> Body:
    """Stops at the first error: a body made of errors costs no more than one that is right."""
    for sign, most in MOST_SIGNS.items():
        if content.count(sign) > most:
            raise unusable(f"more than {most:,} times {sign.decode()!r}: no picture needs so many lists or fields")
    try:
        value = from_json(content)
    except ValueError as error:
        raise Refused(422, "invalid", f"not JSON that can be read: {error}"[:300]) from None
    _refuse_unknown_fields(kind, value)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        # Of a label, which may be text or a number, pydantic says which of the two it tried.
        parts = [str(part) for part in first["loc"] if not str(part).startswith("constrained-")]
        place = ".".join(parts)[:200]
        message = first["msg"].removeprefix("Value error, ")
        if len(parts) < len(first["loc"]) and first["type"] == "string_type":
            message = f"it must be text of 1 to {LABEL_CHARACTERS} characters, or an integer of 64 bits"
        raise Refused(422, "invalid", f"{place}: {message}" if place else message) from None


def _refuse_unknown_fields(kind: type[BaseModel], value: Any) -> None:
    parts = [(value, kind)]
    if kind in MANY and isinstance(value, dict) and isinstance(value.get("examples"), list):
        parts += [(item, MANY[kind]) for item in value["examples"][:BATCH]]
    for part, its_kind in parts:
        unknown = set(part) - set(its_kind.model_fields) if isinstance(part, dict) else ()
        if unknown:
            raise unusable(f"{min(unknown)[:100]}: no such field is expected here")


async def read_examples(request: Request, *, many: bool, labelled: bool) -> Unread:
    """The examples of a request as they came, in either form. What takes a while is left to `decode`."""
    match media_type(request):
        case "application/json":
            kind = (Lessons if labelled else Questions) if many else (Lesson if labelled else Question)
            return JsonBody(kind, await request.body())
        case "multipart/form-data":
            return await _read_form(request, many=many, labelled=labelled)
    raise Refused(415, "media_type", "the body must be application/json or multipart/form-data")


@dataclass(frozen=True)
class Form:
    """One example of a multipart form."""

    data: bytes
    ink: Ink
    label: Label | None
    source: str | None


@dataclass(frozen=True)
class JsonBody:
    """A body, and what it is said to be."""

    kind: type[BaseModel]
    content: bytes


Unread = JsonBody | list[Form]


def decode(unread: Unread, model: ServedModel, limits: Limits, anyway: bool = False) -> list[Example]:
    """Bodies to examples. Takes a while: not for the event loop."""
    if isinstance(unread, JsonBody):
        parsed: Any = parse(unread.kind, unread.content)
        pictures: Sequence[Asked | Form] = parsed.examples if unread.kind in MANY else [parsed]
    else:
        pictures = unread
    examples = []
    for number, picture in enumerate(pictures):
        try:
            examples.append(_decode(picture, model, limits, anyway))
        except Refused as refusal:
            if len(pictures) == 1:
                raise
            raise Refused(refusal.status, refusal.code, f"examples.{number}: {refusal.message}") from None
    return examples


def digest(examples: Sequence[Example]) -> str:
    """Tells whether a repeated request says the same thing, whatever form it comes in."""
    total = hashlib.sha256()
    for example in examples:
        content = content_of(example.content)
        for part in (repr(len(content)), repr(example.label), repr(example.source)):
            total.update(part.encode() + b"\0")
        total.update(content)
    return total.hexdigest()


def _decode(asked: Asked | Form, model: ServedModel, limits: Limits, anyway: bool) -> Example:
    label, source = getattr(asked, "label", None), getattr(asked, "source", None)
    for text, what in ((label, "label"), (source, "source")):
        if text is not None:
            check_text(text, what)
    if isinstance(asked, Form):
        what, content = "image", asked.data
    elif asked.text is not None:
        what, content = "text", asked.text
    elif asked.pixels is not None:
        what, content = "pixels", array_from_pixels(asked.pixels, limits.image_pixels)
    else:
        what, content = "image", from_base64(asked.image or "")
    try:
        return Example(model.read(content, asked.ink, limits.image_pixels, anyway), label, source)
    except (ValueError, TypeError) as error:
        raise unusable(f"{what}: {error}") from None


def check_text(text: str | int, what: str) -> None:
    if isinstance(text, int):
        return
    if not text.strip():
        raise unusable(f"{what}: it is empty")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
        raise unusable(f"{what}: it contains control characters")


async def _read_form(request: Request, *, many: bool, labelled: bool) -> list[Form]:
    try:
        form = await request.form(max_files=BATCH, max_fields=200, max_part_size=8192)
    except Exception as error:
        # Starlette answers a broken form with an exception of its own, the parser below it with others.
        detail = getattr(error, "detail", None) or "the form cannot be read"
        raise Refused(422, "invalid", f"multipart: {detail}") from None
    try:
        return await _examples_of(form, many=many, labelled=labelled)
    finally:
        await form.close()


async def _examples_of(form: FormData, *, many: bool, labelled: bool) -> list[Form]:
    unknown = set(form) - {"image", "ink", *(("label", "source") if labelled else ())}
    if unknown:
        raise unusable(f"multipart: no field {min(unknown)[:100]!r} is expected here")
    files = form.getlist("image")
    if not files or not all(isinstance(file, UploadFile) for file in files) or (len(files) > 1 and not many):
        raise unusable("multipart: send " + ("files" if many else "one file") + " named image")
    columns = {name: _column(form.getlist(name), len(files), name) for name in ("label", "source", "ink")}
    if labelled and None in columns["label"]:
        raise unusable("multipart: send a label with each image, in the same order")
    examples = []
    for file, label, source, ink in zip(files, *columns.values(), strict=True):
        if ink not in (None, "auto", "dark", "light"):
            raise unusable("multipart: ink is auto, dark or light")
        if label is not None and not 0 < len(label) <= LABEL_CHARACTERS:
            raise unusable(f"label: it must have 1 to {LABEL_CHARACTERS} characters")
        if source is not None and not 0 < len(source) <= SOURCE_CHARACTERS:
            raise unusable(f"source: it must have 1 to {SOURCE_CHARACTERS} characters")
        examples.append(Form(await file.read(), ink or "auto", label, source))
    return examples


def _column(values: Sequence[Any], length: int, name: str) -> list[str | None]:
    if not values:
        return [None] * length
    if len(values) != length or not all(isinstance(value, str) for value in values):
        raise unusable(f"multipart: {len(values)} fields {name} for {length} images")
    return list(values)


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
