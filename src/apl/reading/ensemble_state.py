"""What an ensemble has learnt about one memory (or several parallel ones), as a value that can be kept as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from apl.reading.column_units import ColumnUnits
from apl.reading.drift import Drift
from apl.reading.false_alarms import from_text, to_text
from apl.reading.novelty import Novelty
from apl.reading.pool import Pool

Numbers = TypeVar("Numbers", Pool, Novelty, ColumnUnits)
LARGEST = 1e12
"""Of a number that is read back. Whatever is learnt stays far below."""


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
        """Of a single memory."""
        kept: dict[str, Any] = {"pool": _kept(self.pool), "novelty": _kept(self.novelty)}
        kept |= {"drift": dict(vars(self.drift)), "known": to_text(self.known), "batch": self.batch}
        return kept if self.units is None else {**kept, "units": _kept(self.units)}

    @staticmethod
    def from_dict(readers: tuple[str, ...], columns: int | None, kept: Any) -> EnsembleState:
        """As it was kept. What other readers have learnt is of no use to these: then as before any example."""
        state = EnsembleState.new(readers, columns)
        if not isinstance(kept, dict) or not isinstance(kept.get("pool"), dict):
            raise ValueError("what the readers have learnt about the memory is damaged: it is not a table of numbers")
        if kept["pool"].get("readers") != list(readers):
            return state
        units = None if state.units is None else _restored(state.units, kept.get("units"))
        pool, novelty = _restored(state.pool, kept["pool"]), _restored(state.novelty, kept.get("novelty"))
        for precision in (pool.precision, novelty.precision):
            if not (np.linalg.eigvalsh(precision) > 0).all():
                raise ValueError(
                    "what the readers have learnt about the memory is damaged: a precision is not positive"
                )
        if not isinstance(kept.get("batch", False), bool):
            raise ValueError("what the readers have learnt about the memory is damaged: 'batch' is true or false")
        drift, known = Drift.from_dict(kept.get("drift")), from_text(kept.get("known"))
        return EnsembleState(pool, novelty, units, drift, known, kept.get("batch", False))


def _kept(numbers: Pool | Novelty | ColumnUnits) -> dict[str, Any]:
    values = {field.name: getattr(numbers, field.name) for field in fields(numbers)}
    return {name: value[0].tolist() if isinstance(value, np.ndarray) else list(value) for name, value in values.items()}


def _restored(empty: Numbers, kept: Any) -> Numbers:
    """Numbers of the same shapes as those before any example."""
    if not isinstance(kept, dict) or set(kept) != {field.name for field in fields(empty)}:
        raise ValueError("what the readers have learnt about the memory is damaged: numbers are missing")
    found: dict[str, Any] = {}
    for name, expected in vars(empty).items():
        if not isinstance(expected, np.ndarray):
            continue
        try:
            values = np.array([kept[name]], np.float64)
        except (TypeError, ValueError, OverflowError):
            values = np.empty(0)
        signed = name in ("weight", "precision", "total")
        if (
            values.shape != expected.shape
            or not np.isfinite(values).all()
            or (not signed and (values < 0).any())
            or (name in ("weight", "lessons", "cases") and np.abs(values).max(initial=0) > LARGEST)
        ):
            raise ValueError(f"what the readers have learnt about the memory is damaged: bad numbers in {name!r}")
        found[name] = values
    return replace(empty, **found)
