"""How the lessons of a memory went, kept in the memory's own settings for the page's curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
    def read(kept: Any) -> LearningCurve:
        """The curve as a memory keeps it. A curve is no reason to refuse a memory: a damaged one starts over."""
        if isinstance(kept, Mapping):
            seen, outcomes, rows = kept.get("seen"), kept.get("outcomes"), kept.get("rows")
            if (
                isinstance(seen, int)
                and isinstance(outcomes, str)
                and isinstance(rows, list)
                and set(outcomes) <= set("rwn")
                and seen >= len(outcomes) == len(rows)
                and all(isinstance(count, int) and count >= 0 for count in rows)
            ):
                return LearningCurve(seen, outcomes[-LESSONS_REMEMBERED:], tuple(rows[-LESSONS_REMEMBERED:]))
        return LearningCurve()

    def after(self, receipts: Sequence[Receipt], rows: int) -> LearningCurve:
        """The curve after these lessons, which found `rows` rows."""
        letters, counts = [], list(self.rows)
        for receipt in receipts:
            rows += (receipt.row is not None) - len(receipt.evicted)
            counts.append(rows)
            right = receipt.predicted == receipt.label and type(receipt.predicted) is type(receipt.label)
            letters.append("n" if receipt.new_label else "r" if right else "w")
        outcomes = (self.outcomes + "".join(letters))[-LESSONS_REMEMBERED:]
        return LearningCurve(self.seen + len(receipts), outcomes, tuple(counts[-LESSONS_REMEMBERED:]))

    def setting(self) -> dict[str, Any]:
        return {CURVE_SETTING: asdict(self) | {"rows": list(self.rows)}}
