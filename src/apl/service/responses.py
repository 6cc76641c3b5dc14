"""What the service answers: Python's own records (`apl.classifier.answers`) as JSON, and how they are described to clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from apl.classifier.answers import Explanation, ReaderOpinion, RecalledRow, Receipt
from apl.classifier.open_world import Belief, OpenWorld

INFINITE_NATS = 1e6
"""JSON has no infinity."""


class Described(BaseModel):
    """An answer as clients are told of it."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class ErrorDetail(Described):
    code: str
    message: str = Field(description="One sentence for people.")


class Error(Described):
    error: ErrorDetail


class Share(Described):
    label: str | int
    probability: float


class Answer(Described):
    predicted: str | int | None = Field(description="The most probable known class; null as long as nothing is known.")
    probabilities: list[Share] = Field(
        description="The likeliest of the known classes, as many as `top` says, the largest first; over all of them they "
        "sum to 1."
    )
    probability_new: float = Field(description="That it belongs to no known class.")
    neighbours: list[RecalledRow] = Field(description="The rows it recalled, nearest first.")


class ExplainedAnswer(Answer):
    kernel: list[Share] = Field(description="What a distance-weighted vote of the same neighbours says.")
    nearest: str | int | None = Field(description="The label of the nearest row.")
    readers: list[ReaderOpinion] = Field(description="Who shared the answer, where the memory consolidates.")
    texts: list[str] | None = Field(description="The neighbours' sentences, where sentences are taken.")


class Answers(Described):
    answers: list[Answer]


class TaughtMany(Described):
    receipts: list[Receipt]


class ClassCount(Described):
    label: str | int
    rows: int


class CurveRecord(Described):
    """How the latest lessons went."""

    seen: int = Field(description="Lessons in all.")
    outcomes: str = Field(description="One letter per lesson, the latest last: right, wrong, or new class.")
    rows: list[int] = Field(description="Rows in memory after each of these lessons.")


class MemoryRecord(Described):
    name: str
    rows: int
    created: float = Field(description="Unix time.")
    usable: bool = Field(description="False if its keys were made by another model than the one served.")


class MemoryList(Described):
    memories: list[MemoryRecord]


class MemoryState(MemoryRecord):
    classes: list[ClassCount]
    curve: CurveRecord


class Counts(Described):
    rows: int
    classes: list[ClassCount]


class ForgottenRows(Described):
    rows: list[int] = Field(description="The rows that went.")
    rebuilt: list[int] = Field(description="Rows that stay, made anew without what was forgotten.")
    undo: str | None = Field(description="Give this to `restore` to bring them back; null if there is nothing to undo.")


class Restored(Described):
    rows: list[int] = Field(description="The new ids of the restored rows.")


class Renamed(Described):
    rows: list[int] = Field(description="The new ids of the renamed rows.")
    joined: bool = Field(description="There was a class of that name, which they joined.")


class Shared(Described):
    links: list[str] = Field(description="For a browser, the likeliest first. The token stands behind the #.")
    qr: list[str] = Field(description="The first link as a QR code: rows of 0 and 1.")
    token_name: str


class RowRecord(Described):
    row: int
    label: str | int
    source: str | None
    surprise_nats: float
    written_at: float
    examples: int = Field(description="How many examples stand behind it.")
    image: str | None = Field(
        description="The kept picture in base64: a drawing as PNG, ink bright on black, or a JPEG."
    )
    text: str | None = Field(description="The kept sentence.")


class Rows(Described):
    rows: list[RowRecord]
    next: int | None = Field(description="Give this as `after` for the rows that follow; null at the end.")


class Imported(Described):
    written: int
    already_there: int


class Status(Described):
    status: str


class ServiceInfo(Described):
    version: str
    model: str
    takes: Literal["drawing", "photo", "text"]
    fingerprint: str
    image_size: int = Field(description="Pixels along a side that the model looks at; 0 for sentences.")
    client: str
    admin: bool = Field(description="Whether this client may make memories.")


def finite(value: float) -> float:
    return min(value, INFINITE_NATS) if not math.isnan(value) else INFINITE_NATS


def taught(receipt: Receipt) -> dict[str, Any]:
    """A receipt as JSON; `Receipt` itself describes it to clients."""
    return {
        **receipt.to_dict(),
        "surprise_nats": finite(receipt.surprise_nats),
        "evicted": list(receipt.evicted),
    }


def explained(explanation: Explanation, top: int) -> dict[str, Any]:
    record = explanation.to_dict()
    return {**record, "probabilities": record["probabilities"][:top], "kernel": record["kernel"][:top]}


def answers(world: OpenWorld, belief: Belief, tops: Sequence[int]) -> list[dict[str, Any]]:
    """A record for each query of a batch, naming so many classes; the fields of `Explanation.to_dict` that need no
    second opinion."""
    memory, neighbours = world.memory, belief.neighbours
    columns = (
        neighbours.mask[0].tolist(),
        neighbours.row[0].tolist(),
        neighbours.columns["label"][0].tolist(),
        neighbours.distance[0].tolist(),
        belief.weight.tolist(),
        neighbours.examples[0].astype(int).tolist(),
    )
    known, new = np.asarray(belief.known), np.asarray(belief.new).tolist()
    records = []
    for query, (mask, rows, labels, distances, weights, counts) in enumerate(zip(*columns, strict=True)):
        recalled = [
            vars(RecalledRow(memory.id_at(row), memory.classes[label], distance, weight, memory.sources[row], examples))
            for there, row, label, distance, weight, examples in zip(
                mask, rows, labels, distances, weights, counts, strict=True
            )
            if there
        ]
        # Stable, so that of equally probable classes the one known longer comes first, as it does in Python.
        best = np.argsort(-known[query], kind="stable")[: tops[query]]
        shares = [
            {"label": memory.classes[number], "probability": probability}
            for number, probability in zip(best.tolist(), known[query][best].tolist(), strict=True)
        ]
        records.append(
            {
                "predicted": shares[0]["label"] if shares else None,
                "probabilities": shares,
                "probability_new": new[query],
                "neighbours": recalled,
            }
        )
    return records
