"""How the lessons of a memory went, kept in the memory's own settings for the page's curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apl.classifier.answers import Receipt

CURVE_SETTING = "service curve"
LESSONS_REMEMBERED = 1000


@dataclass(frozen=True)
class LearningCurve:
    """One letter per lesson, and the rows after it; the latest last."""

    seen: int = 0
    outcomes: str = ""
    rows: tuple[int, ...] = ()

    @staticmethod
    def read(settings: Mapping[str, Any]) -> LearningCurve:
        kept = settings.get(CURVE_SETTING) or {}
        return LearningCurve(kept.get("seen", 0), kept.get("outcomes", ""), tuple(kept.get("rows", ())))

    def after(self, receipt: Receipt, rows: int) -> LearningCurve:
        """The curve with one lesson more."""
        right = receipt.predicted == receipt.label and type(receipt.predicted) is type(receipt.label)
        letter = "n" if receipt.new_label else "r" if right else "w"
        return LearningCurve(
            self.seen + 1,
            (self.outcomes + letter)[-LESSONS_REMEMBERED:],
            (*self.rows, rows)[-LESSONS_REMEMBERED:],
        )

    def record(self) -> dict[str, Any]:
        return {"seen": self.seen, "outcomes": self.outcomes, "rows": list(self.rows)}

    def settings(self) -> dict[str, Any]:
        return {CURVE_SETTING: self.record()}
