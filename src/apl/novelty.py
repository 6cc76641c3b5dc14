"""New or known: how likely a query belongs to no class in memory, learnt from the memory itself as it grows.

Every lesson gives cases. An example of a known class is one of "known", as it was seen before it was learnt; with its own
class left out it is one of "new"; the first example of a class is one of "new" as it is. A logistic regression on four
numbers (how near the nearest row and the nearest class mean are, and by how much they are ahead of the next class) takes
one Newton step per lesson, with forgetting, so a lesson stays cheap and the rule follows the memory.

The probability is for a world in which new and known are equally frequent. Where the number of classes is announced, it is
weighed by the share of those not seen yet (`log_odds_of_share`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.readers import Readings, newton_step

FORGETTING = 0.995
PRIOR = np.array([0.0, -0.8, -0.8, -0.4, -0.2])
"""Weights of standardised numbers before any case; the first is the constant. Chosen on validation data."""
PRIOR_PRECISION = 2.0
USUAL_SPREAD, USUAL_CASES = 0.3, 5
"""What a number's standard deviation is taken for before any case, and how many cases that counts for: two that happen to
agree would otherwise make everything else look infinitely far away."""
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
        logit = (self._standardised(nearness(readings.best)) @ self.weight[..., None])[..., 0]
        return np.where((readings.number > 0)[:, None], logit, np.inf)

    def learn(self, readings: Readings, truth: Int[np.ndarray, "episode query"]) -> None:
        """Each query makes up to two cases: as it was seen, and with its own class left out."""
        numbers = nearness(np.stack([readings.best, left_out(readings, truth)], 2))
        several, some = readings.number > 1, readings.number > 0
        for query in range(truth.shape[1]):
            new = ~readings.known[np.arange(len(truth)), truth[:, query]]
            taught = np.stack([several | (new & some), several & ~new], 1)
            if taught.any():
                self._step(numbers[:, query], np.stack([new, np.ones_like(new)], 1), taught)

    def _standardised(self, numbers: np.ndarray) -> np.ndarray:
        """`[episode, query, 5]`, the constant first."""
        cases = np.maximum(self.cases, 1e-9)[:, None]
        mean = self.total / cases
        squares = np.maximum(self.square - cases * np.square(mean), 0)
        spread = np.sqrt((squares + USUAL_CASES * USUAL_SPREAD**2) / (cases + USUAL_CASES))
        spread[self.cases == 0] = 1
        numbers = (numbers - mean[:, None]) / spread[:, None]
        numbers[..., 0] = 1
        return numbers

    def _step(
        self,
        numbers: Float[np.ndarray, "episode case 5"],
        is_new: Bool[np.ndarray, "episode case"],
        taught: Bool[np.ndarray, "episode case"],
    ) -> None:
        """`taught`: which cases count."""
        kept, counts = np.power(FORGETTING, taught.sum(1)), taught[..., None]
        self.total = kept[:, None] * self.total + (counts * numbers).sum(1)
        self.square = kept[:, None] * self.square + (counts * np.square(numbers)).sum(1)
        self.cases = kept * self.cases + taught.sum(1)
        x = self._standardised(numbers) * counts
        expected = sigmoid((x @ self.weight[..., None])[..., 0])
        curvature = np.maximum(expected * (1 - expected), LEAST_CURVATURE)
        turned = x.swapaxes(1, 2)
        self.weight, self.precision = newton_step(
            self.weight,
            self.precision,
            kept,
            PRIOR,
            PRIOR_PRECISION,
            turned @ (curvature[..., None] * x),
            (turned @ (is_new - expected)[..., None])[..., 0],
        )

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


def left_out(readings: Readings, truth: Int[np.ndarray, "episode query"]) -> Float[np.ndarray, "episode query 2 3"]:
    """The best three without the true class, where it is one of the first two."""
    episode, query = np.indices(truth.shape)
    own = readings.scores[episode, query, :2, truth][..., None]
    best = readings.best
    # From where the true class stood on, each place is taken by the next.
    moved = (own == best).cumsum(-1) > 0
    rest = np.full_like(best, -np.inf)
    rest[..., :2] = np.where(moved[..., :2], best[..., 1:], best[..., :2])
    return rest


def nearness(best: Float[np.ndarray, "*case 2 3"]) -> Float[np.ndarray, "*case 5"]:
    """1, the nearest row, the nearest class mean, and how far each is ahead of the next class."""
    there = np.isfinite(best[..., :2])
    two = np.where(there, best[..., :2], 0)
    numbers = np.ones((*best.shape[:-2], 5))
    numbers[..., 1:3], numbers[..., 3:] = two[..., 0], np.where(there[..., 1], two[..., 0] - two[..., 1], 0)
    return numbers


def sigmoid(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(logit, -30, 30)))


def log_odds_of_share(seen: Int[np.ndarray, " episode"], way: int) -> Float[np.ndarray, " episode"]:
    """How much more likely "new" is before looking, when `way` classes are announced and so many were seen."""
    with np.errstate(divide="ignore"):
        return np.log(way - seen) - np.log(seen)
