"""What the service answers. The classifier's own records are answers as they are; `/openapi.json` follows from all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.functional_serializers import PlainSerializer

from apl.classifier.answers import Explanation, LabelSet, Probabilities, ReaderOpinion, Receipt
from apl.classifier.drift import DriftReport
from apl.classifier.review import Suspect
from apl.classifier.suggest import Suggestion
from apl.service.curve import Curve
from apl.store import Label
from apl.store.transfer import Copied

INFINITE_NATS = 1e6
"""JSON has no infinity."""
Record = TypeVar("Record", Receipt, Suspect)

for record in (Receipt, Suspect, Suggestion, LabelSet, DriftReport, ReaderOpinion, Copied):
    # Descriptions are the docstrings of their fields.
    record.__pydantic_config__ = ConfigDict(use_attribute_docstrings=True)  # type: ignore[union-attr]


def finite_nats(nats: float) -> float:
    return INFINITE_NATS if math.isnan(nats) else min(nats, INFINITE_NATS)


def finite(record: Record) -> Record:
    """A record as JSON can carry it."""
    return replace(record, surprise_nats=finite_nats(record.surprise_nats))


class Answered(BaseModel):
    """An answer, made from the fields of a record."""

    model_config = ConfigDict(from_attributes=True, json_schema_serialization_defaults_required=True)


class ErrorDetail(Answered):
    code: str
    message: str = Field(description="One sentence for people.")


class Error(Answered):
    error: ErrorDetail


class Share(Answered):
    label: str | int
    probability: float


class Prediction(Answered):
    predicted: str | int | None = Field(
        description="The most probable known class; null while nothing is known, or if the example is called new."
    )
    probabilities: list[Share] = Field(
        description="The `top` most probable known classes, largest first; over all known classes they sum to 1."
    )
    probability_new: float = Field(description="The probability of belonging to no known class.")

    @staticmethod
    def of(found: Probabilities, top: int, new_above: float | None = None) -> Prediction:
        likeliest = [Share(label=label, probability=p) for label, p in islice(found.items(), top)]
        is_new = new_above is not None and found.new_class > new_above
        best = likeliest[0].label if likeliest and not is_new else None
        return Prediction(predicted=best, probabilities=likeliest, probability_new=found.new_class)


class Predictions(Answered):
    answers: list[Prediction]


class Neighbour(Answered):
    """One row behind an answer."""

    row: int
    label: str | int
    distance: float
    weight: float = Field(description="The rows of a class share its probability.")
    source: str | None
    examples: int = Field(description="Number of examples that the row is the mean of.")


class Explained(Prediction):
    why: str = Field(description="One sentence.")
    neighbours: list[Neighbour] = Field(description="The rows behind the answer, nearest first.")
    readers: list[ReaderOpinion] = Field(description="The readers of an ensemble; empty without one.")

    @staticmethod
    def explained(found: Explanation, top: int) -> Explained:
        prediction = Prediction.of(found.probabilities, top)
        neighbours = [Neighbour.model_validate(row) for row in found.neighbours]
        return Explained(**vars(prediction), why=found.why, neighbours=neighbours, readers=list(found.readers))


class Receipts(Answered):
    receipts: list[Receipt]


class Suggestions(Answered):
    suggestions: list[Suggestion]


class Review(Answered):
    suspects: list[Suspect]


class ClassCount(Answered):
    label: str | int
    rows: int


class Counts(Answered):
    rows: int
    classes: list[ClassCount]

    @staticmethod
    def of(counts: Mapping[Label, int]) -> Counts:
        classes = [ClassCount(label=label, rows=rows) for label, rows in counts.items()]
        return Counts(rows=sum(counts.values()), classes=classes)


class MemoryRecord(Answered):
    name: str
    rows: int
    created: float = Field(description="Unix time.")
    usable: bool = Field(description="False if its keys were made by another model than the one served.")
    scope: Literal["read", "learn", "admin"] = Field(description="What this client may do in it.")


class MemoryList(Answered):
    memories: list[MemoryRecord]


class MemoryState(MemoryRecord):
    classes: list[ClassCount]
    curve: Curve


class Forgotten(Answered):
    rows: list[int] = Field(description="The rows that were removed.")
    rebuilt: list[int] = Field(description="Rows that stay, recomputed without what was forgotten.")


class Renamed(Answered):
    rows: list[int] = Field(description="The renamed rows.")
    joined: bool = Field(description="There was a class of that name, which they joined.")


class Relabelled(Answered):
    row: int = Field(description="The row that has the label now.")


class Shared(Answered):
    link: str = Field(description="For a browser. The token is behind the #.")
    qr: list[str] = Field(description="The link as a QR code: rows of 0 and 1, without the quiet border.")
    token_name: str


class RowRecord(Answered):
    row: int = Field(validation_alias="id")
    label: str | int
    source: str | None
    surprise_nats: Annotated[float, PlainSerializer(finite_nats, return_type=float)]
    written_at: float
    examples: int = Field(validation_alias="count", description="Examples whose mean it is.")
    image: str | None = Field(
        default=None, description="The kept picture in base64: a drawing as PNG, ink bright on black, or a JPEG."
    )
    text: str | None = Field(default=None, description="The kept sentence.")


class Rows(Answered):
    rows: list[RowRecord]
    next: int | None = Field(description="Give this as `after` for the rows that follow; null at the end.")


class Status(Answered):
    status: str


class ServiceInfo(Answered):
    version: str
    model: str
    takes: Literal["drawing", "photo", "text"]
    fingerprint: str
    client: str
    admin: bool = Field(description="True if this client may make memories.")
    shared: bool = Field(description="True if guests can be invited.")


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a path may answer with, for its description."""
    common = (401, 403, 404, 409, 413, 422, 429, 503, 507)
    return {status: {"model": Error} for status in sorted({*common, *statuses})}
