"""Vectors computed elsewhere, read without trained weights: a Gaussian kernel that finds its own scale.

The numbers of an unknown embedding may be of any size, so the kernel measures distance in a unit taken from the memory itself:
the usual distance of a row to its nearest row of the same class. The decision does not change when all features are multiplied
by a constant.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from apl.config import IdentityConfig
from apl.memory import LABEL, Memory, Neighbours, ReadingState
from apl.metric import distances, measured
from apl.posterior import IMPOSSIBLE, Array, Posterior
from apl.reading.decoder import DecoderReading

ROWS_MEASURED = 512
"""The unit is the median over at most this number of rows."""
ROWS_AT_ONCE = 64
SHARPNESS = 2.0
NONE_UNITS = 2.0
"""A row at this distance weighs as much as "none of these"."""


class VectorNetworks:
    """Vectors are their own embeddings. There is no decoder: a reading without weights answers."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.key_widths: Mapping[str, int] = {"embedding": width}

    tensor = array = staticmethod(np.asarray)

    def embed(self, x: Float[np.ndarray, "example embed"]) -> Float[np.ndarray, "example embed"]:
        if x.ndim != 2 or x.shape[1] != self.width:
            raise ValueError(f"expected vectors of shape [any, {self.width}], got {list(x.shape)}")
        return np.asarray(x, np.float32)

    def decode(self, query: Array, neighbours: Neighbours, log_elsewhere: np.ndarray) -> Posterior:
        raise NotImplementedError("vectors have no decoder")

    def fingerprint(self) -> str:
        return hashlib.sha256(repr(IdentityConfig(self.width)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class DistanceUnit:
    """The unit of distance in one memory."""

    unit: float | None = None
    """None while there are no two rows to measure it on: then every distance counts as zero."""
    rows: int = 0
    """Number of rows when it was measured."""

    def to_dict(self) -> dict[str, Any]:
        return {"unit": self.unit, "rows": self.rows}

    @staticmethod
    def from_dict(kept: Any) -> DistanceUnit:
        unit, rows = (kept.get("unit", -1), kept.get("rows")) if isinstance(kept, dict) else (-1, None)
        right = unit is None or (isinstance(unit, int | float) and 0 < unit < math.inf)
        if not right or isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
            raise ValueError("the unit of distance kept with the memory is damaged")
        return DistanceUnit(unit, rows)


class KernelReading(DecoderReading):
    """The recalled rows vote by a Gaussian kernel of their distance. For single memories."""

    def new_state(self, episodes: int, width: int, kept: Any = None) -> ReadingState:
        return DistanceUnit() if kept is None else DistanceUnit.from_dict(kept)

    def prepare(self, memory: Memory) -> None:
        """Measure the unit, once the memory has grown or shrunk by a quarter."""
        measured_at = memory.state.rows if isinstance(memory.state, DistanceUnit) else -1
        rows = len(memory)
        if not 0.75 * measured_at <= rows <= 1.25 * measured_at:
            keys = measured(memory.column(memory.keys[0])[0], memory.metric)
            memory.state = DistanceUnit(measure_unit(keys, memory.column(LABEL)[0]), rows)

    def decode(self, memory: Memory, query: Array, neighbours: Neighbours, log_elsewhere: np.ndarray) -> Posterior:
        unit = memory.state.unit if isinstance(memory.state, DistanceUnit) else None
        distance = neighbours.distance / np.float32(unit) if unit else np.zeros_like(neighbours.distance)
        logits = np.where(neighbours.mask, np.float32(-SHARPNESS) * np.square(distance), np.float32(IMPOSSIBLE))
        none = (log_elsewhere - np.float32(SHARPNESS * NONE_UNITS**2))[..., None]
        logits = np.concatenate([logits, none], -1).reshape(-1, neighbours.k + 1)
        logits -= logits.max(-1, keepdims=True)
        share = np.exp(logits)
        share /= share.sum(-1, keepdims=True)
        weight = share[:, :-1]
        of_class = np.einsum("qkj,qj->qk", neighbours.same.reshape(-1, neighbours.k, neighbours.k), weight)
        with np.errstate(divide="ignore"):
            return Posterior(np.log(share[:, -1]), weight, np.log(of_class).clip(IMPOSSIBLE))


def measure_unit(keys: Float[np.ndarray, "row embed"], labels: Int[np.ndarray, " row"]) -> float | None:
    """The median distance to the nearest row of the same class; half of that to another class where there is none."""
    if len(keys) < 2:
        return None
    rows = np.linspace(0, len(keys) - 1, min(len(keys), ROWS_MEASURED)).round().astype(int)
    reach = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        distance = distances(keys[part], keys)
        distance[distance == 0] = np.inf
        same = labels[part][:, None] == labels
        within, between = np.where(same, distance, np.inf).min(1), np.where(same, np.inf, distance).min(1)
        reach[start : start + ROWS_AT_ONCE] = np.where(np.isfinite(within), within, between / 2)
    reach = np.sort(reach[np.isfinite(reach)])
    return float(reach[(len(reach) - 1) // 2]) if len(reach) else None
