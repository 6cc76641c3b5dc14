"""How the examples of a memory were predicted before they were learnt, kept in the memory's settings for the page's curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError, model_validator

from apl.classifier.answers import Receipt

CURVE_SETTING = "service curve"
REMEMBERED = 1000


class Curve(BaseModel):
    """How the latest examples went."""

    seen: NonNegativeInt = Field(default=0, description="Examples learnt in all.")
    outcomes: str = Field(
        default="", pattern="^[rwn]*$", description="One letter each, latest last: r(ight), w(rong) or n(ew class)."
    )
    rows: list[NonNegativeInt] = Field(default=[], description="Rows in memory after each of these.")

    @model_validator(mode="after")
    def _agree(self) -> Curve:
        if not self.seen >= len(self.outcomes) == len(self.rows):
            raise ValueError("the parts of the curve do not agree")
        return self

    @staticmethod
    def read(kept: Any) -> Curve:
        """As a memory keeps it. A damaged curve is no reason to refuse a memory: it starts over."""
        try:
            return Curve.model_validate(kept, strict=True)
        except ValidationError:
            return Curve()

    def after(self, receipts: Sequence[Receipt], rows: int) -> dict[str, Any]:
        """The setting after these examples, which found `rows` rows."""
        letters, counts = "", []
        for receipt in receipts:
            rows += (receipt.row is not None) - len(receipt.evicted)
            counts.append(rows)
            right = receipt.predicted == receipt.label and type(receipt.predicted) is type(receipt.label)
            letters += "n" if receipt.new_label else "r" if right else "w"
        latest = slice(-REMEMBERED, None)
        seen = self.seen + len(receipts)
        curve = Curve(seen=seen, outcomes=(self.outcomes + letters)[latest], rows=(self.rows + counts)[latest])
        return {CURVE_SETTING: curve.model_dump()}
