"""What an ensemble has learnt about one memory (or several parallel ones), as a value that can be kept as JSON."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from apl.reading.column_units import ColumnUnits
from apl.reading.drift import Drift
from apl.reading.false_alarms import MOST_KEPT
from apl.reading.novelty import Novelty
from apl.reading.pool import Pool

LARGEST, SMALLER = 1e150, 1e12
"""Of a number that is read back, and of those that are `SMALL`. Whatever is learnt stays far below."""
SIGNED, SMALL = ("weight", "precision", "total"), ("weight", "lessons", "cases")
DAMAGED = "what the readers have learnt about the memory is damaged: "


@dataclass(frozen=True)
class EnsembleState:
    """The readers' weights, the rule for new classes, for positions the units of the columns, and signs of drift."""

    pool: Pool
    novelty: Novelty
    units: ColumnUnits | None = None
    drift: Drift = field(default_factory=Drift)
    known: Float[np.ndarray, "example 2"] = field(default_factory=lambda: np.zeros((0, 2)))
    """How near classes came to recent examples of known classes (`apl.reading.false_alarms`)."""
    batch: bool = False
    """True if the last examples were learnt as a whole batch (`apl.reading.whole_regression`)."""

    @staticmethod
    def new(readers: tuple[str, ...], columns: int | None, episodes: int = 1) -> EnsembleState:
        units = None if columns is None else ColumnUnits.new(columns, episodes)
        return EnsembleState(Pool.new(readers, episodes), Novelty.new(episodes), units)

    def to_dict(self) -> dict[str, Any]:
        """Of a single memory. Numbers are text, because it is written with every example."""
        numbers = np.concatenate([values.ravel() for _, values in self._numbers()])
        kept = {"readers": list(self.pool.readers), "numbers": _text(numbers, "<f8"), "known": _text(self.known, "<f4")}
        return {**kept, "drift": dict(vars(self.drift)), "batch": self.batch}

    @staticmethod
    def from_dict(readers: tuple[str, ...], columns: int | None, kept: Any) -> EnsembleState:
        """As it was kept. What other readers have learnt is of no use to these: then as before any example."""
        state = EnsembleState.new(readers, columns)
        if not isinstance(kept, dict):
            raise ValueError(DAMAGED + "it is not a table")
        if kept.get("readers") != list(readers):
            return state
        numbers, expected = _array(kept.get("numbers"), "<f8", "numbers"), state._numbers()
        if len(numbers) != sum(values.size for _, values in expected):
            raise ValueError(DAMAGED + "numbers are missing")
        ends = np.cumsum([values.size for _, values in expected])[:-1]
        found = []
        for (name, values), part in zip(expected, np.split(numbers, ends), strict=True):
            if (name not in SIGNED and (part < 0).any()) or (name in SMALL and np.abs(part).max() > SMALLER):
                raise ValueError(DAMAGED + f"bad numbers in {name!r}")
            found.append(part.reshape(values.shape))
        pool, novelty = Pool(readers, *found[:4]), Novelty(*found[4:9])
        for precision in (pool.precision, novelty.precision):
            if not (np.linalg.eigvalsh(precision) > 0).all():
                raise ValueError(DAMAGED + "a precision is not positive")
        known = _array(kept.get("known"), "<f4", "known")
        if len(known) % 2 or len(known) > 2 * MOST_KEPT:
            raise ValueError(DAMAGED + "bad numbers in 'known'")
        if not isinstance(kept.get("batch"), bool):
            raise ValueError(DAMAGED + "'batch' is true or false")
        units = ColumnUnits(*found[9:]) if columns is not None else None
        return EnsembleState(
            pool, novelty, units, Drift.from_dict(kept.get("drift")), known.reshape(-1, 2), kept["batch"]
        )

    def _numbers(self) -> list[tuple[str, np.ndarray]]:
        """All arrays but `known`, by name, in the order of their classes."""
        parts = [vars(self.pool), vars(self.novelty), {} if self.units is None else vars(self.units)]
        return [item for part in parts for item in part.items() if item[0] != "readers"]


def _text(numbers: np.ndarray, dtype: str) -> str:
    return base64.b64encode(numbers.astype(dtype).tobytes()).decode()


def _array(text: Any, dtype: str, name: str) -> np.ndarray:
    try:
        numbers = np.frombuffer(base64.b64decode(text, validate=True), dtype).astype(np.float64)
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    if not (np.abs(numbers) < LARGEST).all():
        raise ValueError(DAMAGED + f"bad numbers in {name!r}")
    return numbers
