"""New or known: how likely a query belongs to no class in memory, calibrated by the memory itself as it grows.

Two numbers tell best: how near the nearest class mean is, and the largest share that local regression (`apl.reading.readers`)
gives to a class. The cosine is not centred, because the centre of a memory moves as it grows, and counts in units of how near
the nearest class comes to an example that belongs to none: encoders differ in that. How the two are added is fixed; it was
found to be the same for drawings, digits, sentences and photographs.

What a memory learns is where to draw the line. An example of a known class makes a pair of cases: as it was seen before it was
learnt ("known"), and as it would have been seen had its class not been there ("new"). (Not where the class had a single
example: it is farther from that than from any class that was shown more often.) A logistic regression on the sum takes
one Newton step per pair, with forgetting, so that the line follows the memory.

The probability is for a world in which new and known are equally frequent. Where the number of classes is announced, it is
weighed by the share of those not seen yet (`log_odds_of_share`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.reading.readers import Readings, newton_step

CONSTANT, PER_UNIT, PER_SHARE = 3.0, -0.6, -6.0
"""The sum of both numbers. Fitted on BANKING77's and ImageNet's training parts, Omniglot's validation characters and MNIST's
training digits together."""
FORGETTING = 0.98
"""What a lesson still counts after the next one."""
PRIOR, PRIOR_PRECISION = np.array([0.0, 1.0]), np.diag([1.0, 20.0])
"""Offset and slope of the sum before any case, and how firmly they are believed."""
USUAL_COSINE, USUAL_SPREAD, COSINE_CASES, SPREAD_CASES = 0.4, 0.07, 2.0, 3.0
"""How near the nearest class comes to what belongs to none, and how much that varies, before any case; and for how many
cases this counts: two that happen to agree would otherwise make everything else look infinitely far away."""
LEAST_CURVATURE = 0.02
RULE = 2
"""Numbers kept by another rule than this are of no use to it."""


@dataclass
class Novelty:
    """The rule for each of several parallel memories."""

    episodes: int = 1
    weight: Float[np.ndarray, "episode 2"] = field(init=False)
    precision: Float[np.ndarray, "episode 2 2"] = field(init=False)
    total: Float[np.ndarray, " episode"] = field(init=False)
    """Sum over past cases of "new" of the cosine with the nearest class mean; then of its square, then of their number."""
    square: Float[np.ndarray, " episode"] = field(init=False)
    cases: Float[np.ndarray, " episode"] = field(init=False)

    def __post_init__(self) -> None:
        self.weight = np.tile(PRIOR, (self.episodes, 1))
        self.precision = np.tile(PRIOR_PRECISION, (self.episodes, 1, 1))
        self.total, self.square, self.cases = (np.zeros(self.episodes) for _ in range(3))

    def logit(self, readings: Readings) -> Float[np.ndarray, "episode query"]:
        """Log odds of "new" against "known"; infinite where nothing is known."""
        logit = self.weight[:, :1] + self.weight[:, 1:] * self._sum(*readings.nearness)
        return np.where((readings.number > 0)[:, None], logit, np.inf)

    def learn(self, readings: Readings, truth: Int[np.ndarray, "episode query"]) -> None:
        """One query after the other. What they would have been like without their class is read once for all."""
        before = readings.examples[np.arange(len(truth))[:, None], truth]
        several, some = (readings.number > 1)[:, None], (readings.number > 0)[:, None]
        first, left_out = before == 0, (before > 0) & several
        seen = left = readings.nearness
        if left_out.any():
            left = readings.nearness_without(truth)
        cosine, share = np.array([[seen[0], left[0]], [seen[1], left[1]]]).transpose(0, 2, 3, 1)
        nearest = np.where(first, seen[0], left[0])
        is_new, paired = left_out | (first & some), left_out & (before > 1)
        for query in range(truth.shape[1]):
            if paired[:, query].any():
                self._step(self._sum(cosine[:, query], share[:, query]), paired[:, query])
            counts = is_new[:, query]
            kept = np.where(counts, FORGETTING, 1)
            self.total = kept * self.total + counts * nearest[:, query]
            self.square = kept * self.square + counts * np.square(nearest[:, query])
            self.cases = kept * self.cases + counts

    def _sum(
        self, cosine: Float[np.ndarray, "episode case"], share: Float[np.ndarray, "episode case"]
    ) -> Float[np.ndarray, "episode case"]:
        mean = (self.total + COSINE_CASES * USUAL_COSINE) / (self.cases + COSINE_CASES)
        squares = np.maximum(self.square - 2 * mean * self.total + self.cases * np.square(mean), 0)
        spread = np.sqrt((squares + SPREAD_CASES * USUAL_SPREAD**2) / (self.cases + SPREAD_CASES))
        return CONSTANT + PER_UNIT * (cosine - mean[:, None]) / spread[:, None] + PER_SHARE * share

    def _step(self, sums: Float[np.ndarray, "episode 2"], taught: Bool[np.ndarray, " episode"]) -> None:
        """Of each episode a case of "known" and one of "new"; `taught`: in which episodes they count."""
        x = np.empty((*sums.shape, 2))
        x[..., 0], x[..., 1] = taught[:, None], sums * taught[:, None]
        expected = sigmoid((x @ self.weight[..., None])[..., 0])
        curvature = np.maximum(expected * (1 - expected), LEAST_CURVATURE)
        turned = x.swapaxes(1, 2)
        self.weight, self.precision = newton_step(
            self.weight,
            self.precision,
            np.where(taught, FORGETTING, 1.0),
            PRIOR,
            PRIOR_PRECISION,
            turned @ (curvature[..., None] * x),
            (turned @ (np.array([0.0, 1.0]) - expected)[..., None])[..., 0],
        )

    def to_dict(self) -> dict[str, Any]:
        numbers = ("weight", "precision", "total", "square", "cases")
        return {"rule": RULE, **{name: getattr(self, name)[0].tolist() for name in numbers}}

    @staticmethod
    def from_dict(kept: Mapping[str, Any] | None) -> Novelty:
        """As it was kept; from the prior if nothing was, or by another rule."""
        novelty = Novelty()
        if kept and kept.get("rule") == RULE:
            for name in ("weight", "precision", "total", "square", "cases"):
                setattr(novelty, name, np.array([kept[name]]))
        return novelty


def sigmoid(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.minimum(np.maximum(logit, -30), 30)))


def log_odds_of_share(seen: Int[np.ndarray, " episode"], way: int) -> Float[np.ndarray, " episode"]:
    """How much more likely "new" is before looking, when `way` classes are announced and so many were seen."""
    with np.errstate(divide="ignore"):
        return np.log(way - seen) - np.log(seen)
