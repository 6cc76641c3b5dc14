"""What the service answers. The classifier's own records are answers as they are; `/openapi.json` follows from all of them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.functional_serializers import PlainSerializer

from apl.classifier.answers import LabelSet, Probabilities, ReaderOpinion, RecalledRow, Receipt
from apl.classifier.drift import DriftReport
from apl.classifier.review import Suspect
from apl.classifier.suggest import Suggestion
from apl.service.curve import Curve
from apl.service.tokens import Scope
from apl.store.transfer import Copied

INFINITE_NATS = 1e6
"""JSON has no infinity."""
Record = TypeVar("Record", Receipt, Suspect)

for record in (Receipt, Suspect, Suggestion, LabelSet, DriftReport, ReaderOpinion, RecalledRow, Copied):
    # Descriptions are the docstrings of their fields.
    record.__pydantic_config__ = ConfigDict(use_attribute_docstrings=True, ser_json_bytes="base64")  # type: ignore[union-attr]


def finite_nats(nats: float) -> float:
    return INFINITE_NATS if math.isnan(nats) else min(nats, INFINITE_NATS)


def finite(record: Record) -> Record:
    """A record as JSON can carry it."""
    return replace(record, surprise_nats=finite_nats(record.surprise_nats))


class Answered(BaseModel):
    """An answer, made from the fields of a record."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_serialization_defaults_required=True,
        ser_json_bytes="base64",
        use_attribute_docstrings=True,
    )


class ErrorDetail(Answered):
    code: str
    message: str
    """One sentence for people."""


class Error(Answered):
    error: ErrorDetail


class Share(Answered):
    label: str | int
    probability: float


def _listed(found: Any) -> Any:
    """Probabilities as a list: 7 and "7" are different classes, and the keys of a JSON object are texts."""
    return [{"label": label, "probability": p} for label, p in found.items()] if isinstance(found, dict) else found


class Prediction(Answered):
    predicted: str | int | None
    """The most probable known class; null while nothing is known, or if the example is called new."""
    probabilities: Annotated[list[Share], BeforeValidator(_listed)]
    """The `top` most probable known classes, largest first; over all known classes they sum to 1."""
    probability_new: float
    """The probability of belonging to no known class."""

    @classmethod
    def of(cls, found: Probabilities, top: int, new_above: float | None) -> Prediction:
        is_new = new_above is not None and found.new_class > new_above
        predicted = None if is_new else next(iter(found), None)
        likeliest = _listed(dict(islice(found.items(), top)))
        return cls(predicted=predicted, probabilities=likeliest, probability_new=found.new_class)


class Explained(Prediction):
    why: str
    """One sentence."""
    neighbours: list[RecalledRow]
    """The rows behind the answer, nearest first."""
    readers: list[ReaderOpinion]
    """The readers of an ensemble; empty without one."""


class ClassCount(Answered):
    label: str | int
    rows: int


class MemoryRecord(Answered):
    name: str
    rows: int
    created: float
    """Unix time."""
    usable: bool
    """False if its keys were made by another model than the one served."""
    scope: Scope
    """What this client may do in it."""


class MemoryState(MemoryRecord):
    classes: list[ClassCount]
    curve: Curve


class Forgotten(Answered):
    rows: list[int]
    """The rows that were removed."""
    rebuilt: list[int]
    """Rows that stay, recomputed without what was forgotten."""


class Shared(Answered):
    link: str
    """For a browser. The token is behind the #."""
    token_name: str


class RowRecord(Answered):
    row: int = Field(validation_alias="id")
    label: str | int
    source: str | None
    surprise_nats: Annotated[float, PlainSerializer(finite_nats, return_type=float)]
    written_at: float
    examples: int = Field(validation_alias="count")
    """Number of examples that the row is the mean of."""
    payload: bytes | None
    """The text or the picture that was kept with the row, in URL-safe base64; a drawing is a PNG, ink bright on black."""


class Rows(Answered):
    rows: list[RowRecord]
    next: int | None
    """Give this as `after` for the rows that follow; null at the end."""


class ServiceInfo(Answered):
    version: str
    model: str
    takes: Literal["drawing", "photo", "text"]
    fingerprint: str
    admin: bool
    """True if this client may make memories."""


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a path may answer with, for its description."""
    common = (401, 403, 404, 408, 409, 413, 421, 422, 429, 503, 507)
    return {status: {"model": Error} for status in sorted({*common, *statuses})}
