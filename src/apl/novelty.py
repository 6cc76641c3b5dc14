"""New or known: how likely a query belongs to no class in memory, learnt from the memory itself as it grows.

Every lesson gives cases. An example of a known class is one of "known", as it was seen before it was learnt; with its own
class left out it is one of "new"; the first example of a class is one of "new" as it is. A logistic regression on four
numbers (how near the nearest row and the nearest class mean are, and by how much they are ahead of the next class) takes
one Newton step per case, with forgetting, so a lesson stays cheap and the rule follows the memory.

The probability is for a world in which new and known are equally frequent. Where the number of classes is announced, it is
weighed by the share of those not seen yet (`log_odds_of_share`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.readers import Readings

FORGETTING = 0.995
PRIOR = np.array([0.0, -0.8, -0.8, -0.4, -0.2])
"""Weights of standardised numbers before any case; the first is the constant. Chosen on validation data."""
PRIOR_PRECISION = 2.0
LEAST_SPREAD = 0.01
"""Standard deviation below which a number is not trusted to be standardised by."""
LEAST_CURVATURE = 0.02


@dataclass
class Novelty:
    """The rule for each of several parallel memories."""

    episodes: int = 1
    weight: Float[np.ndarray, "episode 5"] = field(init=False)
    precision: Float[np.ndarray, "episode 5 5"] = field(init=False)
    total: Float[np.ndarray, "episode 5"] = field(init=False)
    square: Float[np.ndarray, "episode 5"] = field(init=False)
    cases: Float[np.ndarray, " episode"] = field(init=False)

    def __post_init__(self) -> None:
        self.weight = np.tile(PRIOR, (self.episodes, 1))
        self.precision = np.tile(PRIOR_PRECISION * np.eye(len(PRIOR)), (self.episodes, 1, 1))
        self.total, self.square = np.zeros((self.episodes, len(PRIOR))), np.zeros((self.episodes, len(PRIOR)))
        self.cases = np.zeros(self.episodes)

    def logit(self, readings: Readings) -> Float[np.ndarray, "episode query"]:
        """Log odds of "new" against "known"; infinite where nothing is known."""
        numbers = nearness(readings.best)
        logit = np.einsum("eqn,en->eq", self._standardised(numbers), self.weight)
        return np.where(readings.known.any(1)[:, None], logit, np.inf)

    def learn(self, readings: Readings, truth: Int[np.ndarray, "episode query"]) -> None:
        known = np.take_along_axis(readings.known, truth, 1)
        number = readings.known.sum(1)[:, None]
        best = readings.best
        as_seen, without = nearness(best), nearness(left_out(best, readings, truth))
        for query in range(truth.shape[1]):
            new = ~known[:, query]
            self._step(as_seen[:, query], new, ((number > 1) | (new[:, None] & (number > 0)))[:, 0])
            self._step(without[:, query], np.ones_like(new), ~new & (number > 1)[:, 0])

    def _standardised(self, numbers: np.ndarray) -> np.ndarray:
        """`[episode, query, 5]`, the constant first."""
        cases = self.cases.clip(1e-9)[:, None]
        mean = self.total / cases
        spread = np.sqrt((self.square / cases - np.square(mean)).clip(LEAST_SPREAD**2))
        mean, spread = (np.where(self.cases[:, None] > 0, a, b) for a, b in ((mean, 0.0), (spread, 1.0)))
        numbers = (numbers - mean[:, None]) / spread[:, None]
        numbers[..., 0] = 1
        return numbers

    def _step(self, numbers: Float[np.ndarray, "episode 5"], is_new: np.ndarray, taught: np.ndarray) -> None:
        if not taught.any():
            return
        kept = np.where(taught, FORGETTING, 1.0)
        self.total = kept[:, None] * self.total + taught[:, None] * numbers
        self.square = kept[:, None] * self.square + taught[:, None] * np.square(numbers)
        self.cases = kept * self.cases + taught
        x = self._standardised(numbers[:, None])[:, 0] * taught[:, None]
        prior = PRIOR_PRECISION * np.eye(len(PRIOR))
        precision = kept[:, None, None] * self.precision + (1 - kept)[:, None, None] * prior
        pulled = kept[:, None] * np.einsum("enm,em->en", self.precision, self.weight)
        pulled += (1 - kept)[:, None] * (PRIOR_PRECISION * PRIOR)
        weight = np.linalg.solve(precision, pulled[..., None])[..., 0]
        expected = sigmoid(np.einsum("en,en->e", x, weight))
        curvature = (expected * (1 - expected)).clip(LEAST_CURVATURE)
        self.precision = precision + curvature[:, None, None] * x[:, :, None] * x[:, None, :]
        error = ((is_new - expected)[:, None] * x)[..., None]
        self.weight = weight + np.linalg.solve(self.precision, error)[..., 0]

    def to_dict(self) -> dict[str, Any]:
        return {
            "weight": self.weight[0].tolist(),
            "precision": self.precision[0].tolist(),
            "total": self.total[0].tolist(),
            "square": self.square[0].tolist(),
            "cases": float(self.cases[0]),
        }

    @staticmethod
    def from_dict(kept: Mapping[str, Any] | None) -> Novelty:
        novelty = Novelty()
        for name, value in (kept or {}).items():
            setattr(novelty, name, np.array([value]))
        return novelty


def left_out(
    best: Float[np.ndarray, "episode query 2 3"], readings: Readings, truth: Int[np.ndarray, "episode query"]
) -> Float[np.ndarray, "episode query 2 3"]:
    """The best three without the true class, where it is one of the first two."""
    own = np.take_along_axis(readings.scores[..., :2], truth[..., None, None], 2)[:, :, 0, :, None]
    place = np.where(own == best, np.arange(3), 3).min(-1, keepdims=True)
    rest = np.where(np.arange(3) >= place, np.roll(best, -1, -1), best)
    return np.concatenate([rest[..., :2], np.full_like(rest[..., :1], -np.inf)], -1)


def nearness(best: Float[np.ndarray, "episode query 2 3"]) -> Float[np.ndarray, "episode query 5"]:
    """1, the nearest row, the nearest class mean, and how far each is ahead of the next class."""
    first, second = best[..., 0], best[..., 1]
    several = np.isfinite(second)
    first = np.where(np.isfinite(first), first, 0)
    gap = np.where(several, first - np.where(several, second, 0), 0)
    return np.concatenate([np.ones((*first.shape[:2], 1)), first, gap], -1)


def sigmoid(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(logit, -30, 30)))


def log_odds_of_share(
    seen: Bool[np.ndarray, "episode class"],
) -> Float[np.ndarray, " episode"]:
    """How much more likely "new" is before looking, when the classes are announced and some were not seen yet."""
    number = seen.sum(1)
    with np.errstate(divide="ignore"):
        return np.log(seen.shape[1] - number) - np.log(number)
