"""What the service answers: the classifier's own records as models, from which `/openapi.json` follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.functional_serializers import PlainSerializer

from apl.classifier import answers
from apl.classifier.answers import Explanation, Probabilities, ReaderOpinion
from apl.store import Label

INFINITE_NATS = 1e6
"""JSON has no infinity."""
Nats = Annotated[
    float,
    PlainSerializer(lambda nats: INFINITE_NATS if math.isnan(nats) else min(nats, INFINITE_NATS), return_type=float),
]


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
        description="The most probable known class; null while nothing is known, or if `probability_new` is above `new_above`."
    )
    probabilities: list[Share] = Field(
        description="The `top` most probable known classes, largest first; over all known classes they sum to 1."
    )
    probability_new: float = Field(description="The probability of belonging to no known class.")

    @staticmethod
    def of(found: Probabilities, top: int, new_above: float = 1.0) -> Prediction:
        likeliest = shares(found, top)
        best = likeliest[0].label if likeliest and found.new_class <= new_above else None
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
    texts: list[str] | None = Field(description="The neighbours' sentences, where sentences are served.")

    @staticmethod
    def explained(found: Explanation, top: int, texts: list[str] | None) -> Explained:
        return Explained(
            **vars(Prediction.of(found.probabilities, top)),
            why=found.why,
            neighbours=[Neighbour.model_validate(row.to_dict()) for row in found.neighbours],
            readers=list(found.readers),
            texts=texts,
        )


class Receipt(Answered):
    """What became of one example."""

    label: str | int
    surprise_nats: Nats = Field(description="-ln of the probability of the true label; above the threshold is written.")
    threshold_nats: float
    written: bool
    row: int | None = Field(description="The row it was written to.")
    merged_into: int | None = Field(description="The row it was merged into because it did not surprise.")
    evicted: list[int] = Field(description="Rows that made room.")
    predicted: str | int | None = Field(description="The answer before the label was given.")
    probability: float = Field(description="Of the true label among the known classes; 0 for a new label.")
    probability_new: float
    new_label: bool = Field(description="This was the first example of its class.")

    @staticmethod
    def of(receipt: answers.Receipt) -> Receipt:
        return Receipt.model_validate(receipt.to_dict() | {"evicted": list(receipt.evicted)})


class Receipts(Answered):
    receipts: list[Receipt]


class ClassCount(Answered):
    label: str | int
    rows: int


class Counts(Answered):
    rows: int
    classes: list[ClassCount]

    @staticmethod
    def of(counts: Mapping[Label, int]) -> Counts:
        return Counts(rows=sum(counts.values()), classes=class_counts(counts))


class Curve(Answered):
    """How the latest lessons went."""

    seen: int = Field(description="Lessons in all.")
    outcomes: str = Field(description="One letter per lesson, latest last: r(ight), w(rong) or n(ew class).")
    rows: list[int] = Field(description="Rows in memory after each of these lessons.")


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


class SuspectRecord(Answered):
    row: int
    source: str | None
    label: str | int
    suggested: str | int = Field(description="The most probable label by the other rows.")
    surprise_nats: Nats = Field(description="-ln of the probability that the label had by the other rows.")


class Review(Answered):
    suspects: list[SuspectRecord]


class Relabelled(Answered):
    row: int = Field(description="The row that has the label now.")


class Shared(Answered):
    links: list[str] = Field(description="For a browser, the likeliest first. The token is behind the #.")
    qr: list[str] = Field(description="The first link as a QR code: rows of 0 and 1.")
    token_name: str


class RowRecord(Answered):
    row: int
    label: str | int
    source: str | None
    surprise_nats: Nats
    written_at: float
    examples: int = Field(description="Examples whose mean it is.")
    image: str | None = Field(
        description="The kept picture in base64: a drawing as PNG, ink bright on black, or a JPEG."
    )
    text: str | None = Field(description="The kept sentence.")


class Rows(Answered):
    rows: list[RowRecord]
    next: int | None = Field(description="Give this as `after` for the rows that follow; null at the end.")


class Imported(Answered):
    written: int
    already_there: int


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


def shares(found: Probabilities, top: int) -> list[Share]:
    return [Share(label=label, probability=p) for label, p in islice(found.items(), top)]


def class_counts(counts: Mapping[Label, int]) -> list[ClassCount]:
    return [ClassCount(label=label, rows=rows) for label, rows in counts.items()]


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a path may answer with, for its description."""
    common = (401, 403, 413, 422, 429, 503)
    return {status: {"model": Error} for status in sorted({*common, *statuses})}
