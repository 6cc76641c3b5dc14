"""New or known: the probability that a query belongs to no class in memory, calibrated by the memory as it grows.

Two numbers tell best: how near the nearest class mean is, and the largest share that local regression (`apl.reading.readers`)
gives to a class. The cosine is not centred, because the centre of a memory moves as it grows. It counts in units of how near the
nearest class comes to an example that belongs to none: encoders differ in that. How the two are added is fixed; it was found to
be the same for drawings, digits, sentences and photographs.

A memory learns where to draw the line. An example of a known class makes a pair of cases: as it was seen before it was learnt
("known"), and as it would have been seen without its class ("new"). (Not where the class had a single example: it is farther
from that than from any class that was shown more often.) A logistic regression on the sum takes one Newton step per pair, with
forgetting, so that the line follows the memory.

The probability is for a world in which new and known are equally frequent. Where the number of classes is announced, it is
weighed by the share of those not seen yet (`log_odds_of_share`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from apl.reading.readers import Readings

CONSTANT, PER_UNIT, PER_SHARE = 3.0, -0.6, -6.0
"""The sum of both numbers. Fitted on BANKING77's and ImageNet's training parts, Omniglot's validation characters and MNIST's
training digits together."""
FORGETTING = 0.98
"""The weight of an example after the next one."""
PRIOR, PRIOR_PRECISION = (0.0, 1.0), (1.0, 20.0)
"""Offset and slope of the sum before any case, and their precisions."""
USUAL_COSINE, USUAL_SPREAD, COSINE_CASES, SPREAD_CASES = 0.4, 0.07, 2.0, 3.0
"""How near the nearest class comes to what belongs to none, and how much that varies, before any case; and for how many
cases this counts: two that happen to agree would otherwise make everything else look infinitely far away."""
LEAST_CURVATURE = 0.02


@dataclass(frozen=True)
class Novelty:
    """The rule in each of several parallel memories."""

    weight: Float[np.ndarray, "episode 2"]
    precision: Float[np.ndarray, "episode 2 2"]
    total: Float[np.ndarray, " episode"]
    """Discounted sum over past cases of "new" of the cosine with the nearest class mean."""
    square: Float[np.ndarray, " episode"]
    """The same of its square."""
    cases: Float[np.ndarray, " episode"]
    """Their discounted number."""

    @staticmethod
    def new(episodes: int = 1) -> Novelty:
        zeros = np.zeros(episodes)
        return Novelty(
            np.tile(PRIOR, (episodes, 1)), np.tile(np.diag(PRIOR_PRECISION), (episodes, 1, 1)), zeros, zeros, zeros
        )

    def logit(self, readings: Readings) -> Float[np.ndarray, "episode query"]:
        """Log odds of "new" against "known"; infinite where nothing is known."""
        return np.where((readings.classes.number > 0)[:, None], self.log_odds(*readings.nearness), np.inf)

    def log_odds(
        self, cosine: Float[np.ndarray, "episode case"], share: Float[np.ndarray, "episode case"]
    ) -> Float[np.ndarray, "episode case"]:
        """The same, of the two numbers that tell (`Readings.nearness`)."""
        usual = np.array(list(map(_usual, self.total.tolist(), self.square.tolist(), self.cases.tolist())))
        odds: np.ndarray = self.weight[:, :1] + self.weight[:, 1:] * _sum(cosine, share, usual[:, :1], usual[:, 1:])
        return odds

    def learnt(self, readings: Readings, truth: Int[np.ndarray, "episode query"]) -> Novelty:
        """After these examples, one after the other."""
        seen, without = readings.nearness, readings.nearness_without(truth)
        before = readings.classes.examples[np.arange(len(truth))[:, None], truth]
        numbers = np.stack([before, *seen, *without], 2).tolist()
        rules = map(np.ndarray.tolist, (self.weight, self.precision, self.total, self.square, self.cases))
        learnt = []
        for known, cases, *rule in zip(readings.classes.number.tolist(), numbers, *rules, strict=True):
            for case in cases:
                rule = _after(rule, known, *case)
            learnt.append(rule)
        return Novelty(*map(np.array, zip(*learnt, strict=True)))


Rule = list[Any]
"""Weight, precision, total, square and cases of one memory: few numbers, so no arrays."""


def _after(
    rule: Rule, known: int, examples: float, cosine: float, share: float, other_cosine: float, other_share: float
) -> Rule:
    """After an example of a class that had `examples`, one of `known` classes. `other_…`: nearness without its class."""
    weight, precision, total, square, cases = rule
    if known < 1 + (examples > 0):
        return rule
    nearest = other_cosine if examples else cosine
    if examples > 1:
        usual = _usual(total, square, cases)
        weight, precision = _step(
            weight, precision, _sum(cosine, share, *usual), _sum(other_cosine, other_share, *usual)
        )
    return [weight, precision, FORGETTING * total + nearest, FORGETTING * square + nearest**2, FORGETTING * cases + 1]


def _usual(total: float, square: float, cases: float) -> tuple[float, float]:
    """Mean and spread of the cosine of what belongs to no class with the nearest class mean."""
    mean = (total + COSINE_CASES * USUAL_COSINE) / (cases + COSINE_CASES)
    squares = max(square - 2 * mean * total + cases * mean**2, 0.0)
    return mean, math.sqrt((squares + SPREAD_CASES * USUAL_SPREAD**2) / (cases + SPREAD_CASES))


def _sum(cosine: Any, share: Any, mean: Any, spread: Any) -> Any:
    """Of numbers, or of arrays."""
    return CONSTANT + PER_UNIT * (cosine - mean) / spread + PER_SHARE * share


def _step(
    weight: list[float], precision: list[list[float]], seen: float, left_out: float
) -> tuple[list[float], list[list[float]]]:
    """One Newton step of the logistic regression for a case of "known" and one of "new".

    What was known before counts `FORGETTING`, and the rest fades towards the prior.
    """
    offset, slope = weight
    (a, b), (_, d) = precision
    faded = 1 - FORGETTING
    a, b, d = FORGETTING * a, FORGETTING * b, FORGETTING * d
    first, second = 0.0, 0.0
    for x, is_new in ((seen, 0.0), (left_out, 1.0)):
        expected = 1 / (1 + math.exp(-min(max(offset + slope * x, -30.0), 30.0)))
        curvature = max(expected * (1 - expected), LEAST_CURVATURE)
        a, b, d = a + curvature, b + curvature * x, d + curvature * x * x
        first, second = first + is_new - expected, second + (is_new - expected) * x
    first += a * offset + b * slope + faded * PRIOR_PRECISION[0] * PRIOR[0]
    second += b * offset + d * slope + faded * PRIOR_PRECISION[1] * PRIOR[1]
    a, d = a + faded * PRIOR_PRECISION[0], d + faded * PRIOR_PRECISION[1]
    determinant = a * d - b * b
    return [(d * first - b * second) / determinant, (a * second - b * first) / determinant], [[a, b], [b, d]]


def log_odds_of_share(seen: Int[np.ndarray, " episode"], way: int) -> Float[np.ndarray, " episode"]:
    """How much more likely "new" is before looking, when `way` classes are announced and `seen` of them were seen."""
    with np.errstate(divide="ignore"):
        odds: np.ndarray = np.log(way - seen) - np.log(seen)
        return odds
