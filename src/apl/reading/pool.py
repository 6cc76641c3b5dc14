"""The pool of readers: how much each counts, learnt from one example after another.

    log p(class) = Σ_r w_r · score_r(class) + constant

a logarithmic opinion pool. Its few weights take one Newton step per example, with forgetting, from a prior that was chosen on
validation data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.reading.readers import DECODER, LEAST_LOG, Readings


@dataclass(frozen=True)
class Prior:
    """The weights before any example, of scores in their units, and for how many examples they count."""

    weight: Mapping[str, float]
    precision: float
    within: float
    """The share of an example's squared length that sets it apart from others of its class."""


FOR_VECTORS = Prior(
    {"nearest row": 0.3, "class mean": 0.6, "local regression": 0.8, "class density": 0.6}, 10.0, within=0.5
)
"""Chosen on BANKING77's and ImageNet's training parts."""
FOR_DRAWINGS = Prior(
    {"nearest row": 0.6, "class mean": 0.7, "local regression": 0.3, "class density": 0.7, DECODER: 0.3},
    6.0,
    within=0.24,
)
"""Beside a trained decoder. Chosen on Omniglot's validation characters."""

UNIT = {"nearest row": 1.0, "class mean": 1.0, "local regression": 0.35, "class density": 0.66, DECODER: 2.7}
"""The unit of a score, so that weights compare. For readers whose scores are cosines, or follow from them, this is in units of
a cosine (`Pool.units`); the other scores are logarithms of shares."""
OF_COSINES = ("nearest row", "class mean", "class density")
COSINE = 0.14
"""The usual standard deviation, over the classes, of the cosines of a query with the class means."""
FORGETTING = 0.99
"""The weight of an example after the next one: a drifting stream changes its readers within a few hundred."""
LARGEST_STEP = 1.0
"""Of a weight, by one step. A batch of examples may carry the weights so far that every answer is certain; then there is no
curvature left, the next step is larger still, and they never return."""
NEGLIGIBLE, TRIAL_EXAMPLES = 0.15, 60
"""A trained decoder costs more than all other readers. It is not asked while its weight is below this, once it has been weighed
by this many examples."""
CLEAR_BY = 1e-4
"""Nats. Rounding may decide between classes whose log probabilities differ by less: posteriors are in single precision."""
LOWEST = float(np.finfo(np.float64).min)


@cache
def prior_of(readers: tuple[str, ...]) -> Prior:
    return FOR_DRAWINGS if DECODER in readers else FOR_VECTORS


@cache
def _prior_numbers(readers: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Weight and precision."""
    prior = prior_of(readers)
    return np.array([prior.weight[name] for name in readers]), prior.precision * np.eye(len(readers))


@cache
def _unit_numbers(readers: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The unit of each reader, and the power of a cosine in it: a half for readers of cosines."""
    return np.array([UNIT[name] for name in readers]), np.array([0.5 * (name in OF_COSINES) for name in readers])


@dataclass(frozen=True)
class Pool:
    """The readers' weights in each of several parallel memories."""

    readers: tuple[str, ...]
    weight: Float[np.ndarray, "episode reader"]
    precision: Float[np.ndarray, "episode reader reader"]
    variance: Float[np.ndarray, " episode"]
    """Discounted sum over past examples of the variance of the cosines with the class means over the classes."""
    lessons: Float[np.ndarray, " episode"]
    """Discounted number of past examples."""

    @staticmethod
    def new(readers: tuple[str, ...], episodes: int = 1) -> Pool:
        weight, precision = _prior_numbers(readers)
        zeros = np.zeros(episodes)
        return Pool(readers, np.tile(weight, (episodes, 1)), np.tile(precision, (episodes, 1, 1)), zeros, zeros)

    def units(self, readings: Readings) -> Float[np.ndarray, "episode _ reader"]:
        """The unit of each reader's scores.

        Some encoders spread their vectors wider than others. How sure to be follows neither from a cosine itself nor from one
        in units of how much cosines vary here, but lies between: the unit is the geometric mean of both.
        """
        variance = (self.variance / np.maximum(self.lessons, 1e-9))[:, None]
        if not self.lessons.all():
            variance = np.where(self.lessons[:, None] > 0, variance, readings.variance())
        unit, power = _unit_numbers(self.readers)
        units: np.ndarray = unit * (COSINE * np.sqrt(np.maximum(variance, 1e-12))[..., None]) ** power
        return units[..., : readings.scores.shape[2]]

    def log_probs(self, readings: Readings) -> Float[np.ndarray, "episode query class"]:
        """Among the known classes; -inf elsewhere."""
        # The units go into the weights, and a mean over classes would cancel out: one pass over the scores.
        units = self.units(readings)
        logits: np.ndarray = ((self.weight[:, None, : units.shape[2]] / units)[:, :, None] @ readings.scores)[:, :, 0]
        np.copyto(logits, -np.inf, where=~readings.classes.known[:, None])
        logits -= logits.max(-1, keepdims=True, initial=LOWEST)
        logits -= np.log(np.maximum(np.exp(logits).sum(-1, keepdims=True), 1e-30))
        return logits

    def needs(self, reader: str) -> bool:
        """True if an expensive reader is worth asking. One that was found to say nothing is not asked until forgetting brings
        its weight back towards the prior."""
        if reader not in self.readers:
            return False
        weights, lessons = self.weight[:, self.readers.index(reader)].tolist(), self.lessons.tolist()
        return any(abs(w) >= NEGLIGIBLE or n < TRIAL_EXAMPLES for w, n in zip(weights, lessons, strict=True))

    def is_settled(self, log_probs: Float[np.ndarray, "episode query class"]) -> bool:
        """True if the best class of every query leads by more than a trained decoder, not asked yet, could add."""
        lead = np.full(len(self.weight), CLEAR_BY)
        if DECODER in self.readers and self.needs(DECODER):
            lead += np.abs(self.weight[:, self.readers.index(DECODER)]) * -LEAST_LOG / UNIT[DECODER]
        near = log_probs >= log_probs.max(-1, keepdims=True) - lead[:, None, None]
        return bool(np.count_nonzero(near) == math.prod(near.shape[:2]))

    def learnt(
        self,
        readings: Readings,
        log_probs: Float[np.ndarray, "episode query class"],
        truth: Int[np.ndarray, "episode query"],
        nonnegative: bool = False,
    ) -> Pool:
        """After one Newton step towards the weights under which the truth is most likely. `log_probs`: of these readings."""
        episode, query = np.arange(truth.shape[0])[:, None], np.arange(truth.shape[1])
        taught: Bool[np.ndarray, "episode query"] = readings.classes.known[episode, truth]
        taught &= (readings.classes.number > 1)[:, None]
        if not taught.any():
            return self
        scores = readings.scores / self.units(readings)[..., None]
        share = np.exp(log_probs) * taught[..., None]
        mean = (scores @ share[..., None])[..., 0]
        missed = (scores[episode, query, :, truth] * taught[..., None] - mean).sum(1)
        curvature = ((scores * share[:, :, None]) @ scores.swapaxes(-1, -2)).sum(1) - mean.swapaxes(1, 2) @ mean
        lessons = taught.sum(1)
        kept = np.power(FORGETTING, lessons)
        prior_weight, prior_precision = _prior_numbers(self.readers)
        # The share `kept` of what was known before stays, the rest fades towards the prior. A reader that was not asked is last:
        # it neither gains nor loses by this example.
        faded, asked = 1 - kept, scores.shape[2]
        precision = kept[:, None, None] * self.precision
        precision[:, :asked, :asked] += curvature
        target = (precision @ self.weight[..., None])[..., 0] + faded[:, None] * (prior_precision @ prior_weight)
        target[:, :asked] += missed
        precision += faded[:, None, None] * prior_precision
        weight = np.linalg.solve(precision, target[..., None])[..., 0]
        step = weight - self.weight
        weight = self.weight + step * np.minimum(1, LARGEST_STEP / np.abs(step).max(1, keepdims=True, initial=1e-12))
        return Pool(
            self.readers,
            np.maximum(weight, 0) if nonnegative else weight,
            precision,
            kept * self.variance + (readings.variance() * taught).sum(1),
            kept * self.lessons + lessons,
        )
