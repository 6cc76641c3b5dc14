"""The memory controller (paper, section 2.1): what becomes of an example once its label is known.

It is written as a new row, merged into the row that explains it, or ignored. The paper's rule is `SurpriseController`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int


class Action(IntEnum):
    """What becomes of an example."""

    IGNORE = 0
    MERGE = 1
    """Into the nearest recalled row of its class. Where none was recalled, the example is written."""
    WRITE = 2


@runtime_checkable
class Controller(Protocol):
    """Decides from the surprise -ln p(y) of each example and the number of classes."""

    def decide(self, surprise_nats: Float[np.ndarray, "episode query"], way: int) -> Int[np.ndarray, "episode query"]:
        """The `Action` for each example."""

    def threshold_nats(self, way: int) -> float:
        """An example is written if its surprise exceeds this."""


@dataclass(frozen=True)
class SurpriseController:
    """Write what surprised: -ln p(y) > σ, with σ = ratio · ln N (or a σ given in nats). Ignore the rest."""

    ratio: float = 0.75
    sigma_nats: float | None = None
    """A fixed threshold instead of the one proportional to ln N."""
    most_nats: float = math.inf
    """An upper bound of σ, whatever the number of classes."""

    def threshold_nats(self, way: int) -> float:
        return min(self.ratio * math.log(way), self.most_nats) if self.sigma_nats is None else self.sigma_nats

    def decide(self, surprise_nats: Float[np.ndarray, "episode query"], way: int) -> Int[np.ndarray, "episode query"]:
        return np.where(surprise_nats > self.threshold_nats(way), int(Action.WRITE), int(Action.IGNORE))


@dataclass(frozen=True)
class ConsolidatingController(SurpriseController):
    """Write what surprised and merge the rest.

    Deviation: the paper ignores what does not surprise.
    """

    def decide(self, surprise_nats: Float[np.ndarray, "episode query"], way: int) -> Int[np.ndarray, "episode query"]:
        return np.where(surprise_nats > self.threshold_nats(way), int(Action.WRITE), int(Action.MERGE))


@dataclass(frozen=True)
class WriteAll:
    """Ablation: write everything."""

    def threshold_nats(self, way: int) -> float:
        return 0.0

    def decide(self, surprise_nats: Float[np.ndarray, "episode query"], way: int) -> Int[np.ndarray, "episode query"]:
        return np.full(surprise_nats.shape, int(Action.WRITE))
