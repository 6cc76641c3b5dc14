"""The memory controller (paper, section 2.1): which of the examples just seen are written to memory, and what becomes
of the others: they are ignored (the paper's rule), or merged into the row that explains them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float


@runtime_checkable
class Controller(Protocol):
    """Chooses what to write from the surprise -ln p(y) of each example and the number of classes."""

    def choose(
        self, surprise_nats: Float[np.ndarray, "episode query"], way: int
    ) -> Bool[np.ndarray, "episode query"]: ...


@dataclass(frozen=True)
class SurpriseController:
    """Write what surprised: -ln p(y) > σ, with σ = ratio · ln N (or a σ given in nats).

    At ratio 1 nothing is ever written: on an empty memory a calibrated learner is surprised by exactly ln N.
    """

    ratio: float = 0.75
    sigma_nats: float | None = None
    """A fixed threshold instead of the one proportional to ln N."""
    most_nats: float = math.inf
    """However many classes there are, σ is not higher than this."""

    def threshold_nats(self, way: int) -> float:
        return min(self.ratio * math.log(way), self.most_nats) if self.sigma_nats is None else self.sigma_nats

    def choose(self, surprise_nats: Float[np.ndarray, "episode query"], way: int) -> Bool[np.ndarray, "episode query"]:
        return surprise_nats > self.threshold_nats(way)


@dataclass(frozen=True)
class ConsolidatingController(SurpriseController):
    """Write what surprised, as above, and merge the rest: what does not surprise still teaches.

    Deviation: the paper throws it away. A memory that is written by this controller is a
    `apl.consolidation.ConsolidatingMemory`, and is read by several readers (`apl.readers`).
    """

    decoder_alone: bool = False
    """The decoder is the only reader, as in its training."""

    def merge(
        self,
        written: Bool[np.ndarray, "episode query"],
        explained: Bool[np.ndarray, "episode query"],
    ) -> Bool[np.ndarray, "episode query"]:
        """Of what is not written, that of which a row of the same class was recalled."""
        return ~written & explained


@dataclass(frozen=True)
class WriteAll:
    """Ablation: keep everything (σ = 0)."""

    def choose(self, surprise_nats: Float[np.ndarray, "episode query"], way: int) -> Bool[np.ndarray, "episode query"]:
        return np.ones_like(surprise_nats, bool)


@dataclass(frozen=True)
class WriteNothing:
    """Ablation and fixed-context evaluation: learn nothing."""

    def choose(self, surprise_nats: Float[np.ndarray, "episode query"], way: int) -> Bool[np.ndarray, "episode query"]:
        return np.zeros_like(surprise_nats, bool)
