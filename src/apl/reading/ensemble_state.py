"""What an ensemble has learnt about one memory (or several parallel ones): a value that can be kept as JSON.

**The pool of readers.** How much each reader counts is learnt from one example after another:

    log p(class) = Σ_r w_r · score_r(class) + constant

a logarithmic opinion pool. Its few weights take one Newton step per example, with forgetting, from a prior that was chosen on
validation data.

**New or known.** Two numbers tell best whether a query belongs to no class in memory: how near the nearest class mean is, and the
largest share that local regression gives to a class. The cosine is not centred, because the centre of a memory moves as it grows.
It counts in units of how near the nearest class comes to an example that belongs to none: encoders differ in that. How the two
are added is fixed; it was found to be the same for drawings, digits, sentences and photographs. A memory learns where to draw
the line. An example of a known class makes a pair of cases: as it was seen before it was learnt ("known"), and as it would have
been seen without its class ("new"). (Not where the class had a single example: it is farther from that than from any class that
was shown more often.) A logistic regression on the sum takes one Newton step per pair, with forgetting. The probability is for
a world in which new and known are equally frequent.
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.reading.positions import ColumnUnits
from apl.reading.readers import LEAST_LOG, READERS, Readings

DECODER = len(READERS)
"""Place of a trained decoder among the readers."""


@dataclass(frozen=True)
class Prior:
    """The weights before any example, of scores in their units, and for how many examples they count."""

    weight: Float[np.ndarray, " reader"]
    precision: float
    within: float
    """The share of an example's squared length that sets it apart from others of its class."""


FOR_VECTORS = Prior(np.array([0.3, 0.6, 0.8, 0.6]), 10.0, within=0.5)
"""Chosen on BANKING77's and ImageNet's training parts."""
FOR_DRAWINGS = Prior(np.array([0.6, 0.7, 0.3, 0.7, 0.3]), 6.0, within=0.24)
"""Beside a trained decoder. Chosen on Omniglot's validation characters."""
UNIT = np.array([1.0, 1.0, 0.35, 0.66, 2.7])
"""The unit of each reader's scores, so that weights compare. For readers whose scores are cosines, or follow from them, this is
in units of a cosine (`Pool.units`); the other scores are logarithms of shares."""
COSINE_POWER = np.array([0.5, 0.5, 0.0, 0.5, 0.0])
COSINE = 0.14
"""The usual standard deviation, over the classes, of the cosines of a query with the class means."""
FORGETTING, FORGETTING_NEW = 0.99, 0.98
"""The weight of an example after the next one, in the pool and in the rule for new classes: a drifting stream changes its readers
within a few hundred."""
LARGEST_STEP = 1.0
"""Of a weight, by one step. A batch of examples may carry the weights so far that every answer is certain; then there is no
curvature left, the next step is larger still, and they never return."""
LEAST_SHARE = 0.5
"""What a step leaves of a weight at least. Certain answers have no curvature: without this one wrong label would turn all
weights around, and every answer with them."""
NEGLIGIBLE, TRIAL_EXAMPLES = 0.15, 60
"""A trained decoder costs more than all other readers. It is not asked while its weight is below this, once it has been weighed
by this many examples, until forgetting brings its weight back towards the prior."""
LOWEST = float(np.finfo(np.float64).min)


@dataclass(frozen=True)
class Pool:
    """The readers' weights in each of several parallel memories."""

    weight: Float[np.ndarray, "episode reader"]
    precision: Float[np.ndarray, "episode reader reader"]
    variance: Float[np.ndarray, " episode"]
    """Discounted sum over past examples of the variance of the cosines with the class means over the classes."""
    examples: Float[np.ndarray, " episode"]
    """Discounted number of past examples."""

    @staticmethod
    def new(readers: int = len(READERS), episodes: int = 1) -> Pool:
        prior, zeros = FOR_DRAWINGS if readers > DECODER else FOR_VECTORS, np.zeros(episodes)
        precision = np.tile(prior.precision * np.eye(readers), (episodes, 1, 1))
        return Pool(np.tile(prior.weight[:readers], (episodes, 1)), precision, zeros, zeros)

    def units(self, readings: Readings) -> Float[np.ndarray, "episode _ reader"]:
        """The unit of each reader's scores.

        Some encoders spread their vectors wider than others. How sure to be follows neither from a cosine itself nor from one
        in units of how much cosines vary here, but lies between: the unit is the geometric mean of both.
        """
        variance = (self.variance / np.maximum(self.examples, 1e-9))[:, None]
        if not self.examples.all():
            variance = np.where(self.examples[:, None] > 0, variance, readings.variance())
        asked = readings.scores.shape[2]
        usual = COSINE * np.sqrt(np.maximum(variance, 1e-12))[..., None]
        units: np.ndarray = UNIT[:asked] * usual ** COSINE_POWER[:asked]
        return units

    def log_probs(self, readings: Readings) -> Float[np.ndarray, "episode query class"]:
        """Among the known classes; -inf elsewhere."""
        # The units go into the weights, and a mean over classes would cancel out: one pass over the scores.
        units = self.units(readings)
        logits: np.ndarray = ((self.weight[:, None, : units.shape[2]] / units)[:, :, None] @ readings.scores)[:, :, 0]
        np.copyto(logits, -np.inf, where=~readings.classes.known[:, None])
        logits -= logits.max(-1, keepdims=True, initial=LOWEST)
        logits -= np.log(np.maximum(np.exp(logits).sum(-1, keepdims=True), 1e-30))
        return logits

    def asks_decoder(self) -> bool:
        """True if a trained decoder is worth asking."""
        if self.weight.shape[1] <= DECODER:
            return False
        weights, examples = self.weight[:, DECODER].tolist(), self.examples.tolist()
        return any(abs(w) >= NEGLIGIBLE or n < TRIAL_EXAMPLES for w, n in zip(weights, examples, strict=True))

    def is_settled(self, log_probs: Float[np.ndarray, "episode query class"]) -> bool:
        """True if the best class of every query leads by more than a trained decoder, not asked yet, could add."""
        lead = np.abs(self.weight[:, DECODER]) * -LEAST_LOG / UNIT[DECODER]
        near = log_probs >= log_probs.max(-1, keepdims=True) - lead[:, None, None]
        return bool(np.count_nonzero(near) == math.prod(near.shape[:2]))

    def learnt(
        self,
        readings: Readings,
        log_probs: Float[np.ndarray, "episode query class"],
        truth: Int[np.ndarray, "episode query"],
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
        number = taught.sum(1)
        kept = np.power(FORGETTING, number)
        # The share `kept` of what was known before stays, the rest fades towards the prior. A reader that was not asked is last:
        # it neither gains nor loses by this example.
        readers, asked = self.weight.shape[1], scores.shape[2]
        prior = FOR_DRAWINGS if readers > DECODER else FOR_VECTORS
        faded = (1 - kept)[:, None] * prior.precision
        precision = kept[:, None, None] * self.precision
        precision[:, :asked, :asked] += curvature
        target = (precision @ self.weight[..., None])[..., 0] + faded * prior.weight[:readers]
        target[:, :asked] += missed
        np.einsum("...ii->...i", precision)[...] += faded
        step = np.linalg.solve(precision, target[..., None])[..., 0] - self.weight
        weight = self.weight + step * np.minimum(1, LARGEST_STEP / np.abs(step).max(1, keepdims=True, initial=1e-12))
        weight = np.maximum(weight, LEAST_SHARE * self.weight)
        variance = kept * self.variance + (readings.variance() * taught).sum(1)
        return Pool(weight, precision, variance, kept * self.examples + number)


CONSTANT, PER_UNIT, PER_SHARE = 3.0, -0.6, -6.0
"""The sum of both numbers. Fitted on BANKING77's and ImageNet's training parts, Omniglot's validation characters and MNIST's
training digits together."""
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

    def log_odds(
        self, cosine: Float[np.ndarray, "episode case"], share: Float[np.ndarray, "episode case"]
    ) -> Float[np.ndarray, "episode case"]:
        """Of "new" against "known", by the two numbers that tell (`Readings.nearness`)."""
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
        for known, cases, rule in zip(readings.classes.number.tolist(), numbers, zip(*rules, strict=True), strict=True):
            # A few numbers of one memory, so no arrays.
            weight, precision, total, square, count = rule
            for examples, cosine, share, other_cosine, other_share in cases:
                if known < 1 + (examples > 0):
                    continue
                if examples > 1:
                    usual = _usual(total, square, count)
                    apart = _sum(cosine, share, *usual), _sum(other_cosine, other_share, *usual)
                    weight, precision = _step(weight, precision, *apart)
                nearest = other_cosine if examples else cosine
                total, square = FORGETTING_NEW * total + nearest, FORGETTING_NEW * square + nearest**2
                count = FORGETTING_NEW * count + 1
            learnt.append((weight, precision, total, square, count))
        return Novelty(*map(np.array, zip(*learnt, strict=True)))


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

    What was known before counts `FORGETTING_NEW`, and the rest fades towards the prior.
    """
    offset, slope = weight
    (a, b), (_, d) = precision
    faded = 1 - FORGETTING_NEW
    a, b, d = FORGETTING_NEW * a, FORGETTING_NEW * b, FORGETTING_NEW * d
    first, second = faded * PRIOR_PRECISION[0] * PRIOR[0], faded * PRIOR_PRECISION[1] * PRIOR[1]
    for x, is_new in ((seen, 0.0), (left_out, 1.0)):
        expected = 1 / (1 + math.exp(-min(max(offset + slope * x, -30.0), 30.0)))
        curvature = max(expected * (1 - expected), LEAST_CURVATURE)
        a, b, d = a + curvature, b + curvature * x, d + curvature * x * x
        first, second = first + is_new - expected, second + (is_new - expected) * x
    first, second = first + a * offset + b * slope, second + b * offset + d * slope
    a, d = a + faded * PRIOR_PRECISION[0], d + faded * PRIOR_PRECISION[1]
    determinant = a * d - b * b
    return [(d * first - b * second) / determinant, (a * second - b * first) / determinant], [[a, b], [b, d]]


READER_NAMES = (*READERS, "decoder")
LARGEST, SMALLER = 1e150, 1e12
"""Of a number that is read back, and of those that are `SMALL`. Whatever is learnt stays far below."""
SIGNED, SMALL = ("weight", "precision", "total"), ("weight", "examples", "seen", "cases")
DAMAGED = "what the readers have learnt about the memory is damaged: "


@dataclass(frozen=True)
class EnsembleState:
    """The readers' weights, the rule for new classes, and for positions the units of the columns."""

    pool: Pool
    novelty: Novelty
    units: ColumnUnits | None = None
    batch: bool = False
    """True if the last examples were learnt as a whole batch (`apl.reading.batch`)."""

    @staticmethod
    def new(readers: int, columns: int | None, episodes: int = 1) -> EnsembleState:
        units = None if columns is None else ColumnUnits.new(columns, episodes)
        return EnsembleState(Pool.new(readers, episodes), Novelty.new(episodes), units)

    def to_dict(self) -> dict[str, Any]:
        """Of a single memory. Numbers are text, because it is written with every example."""
        _, values = zip(*self._numbers(), strict=True)
        numbers = np.concatenate(list(map(np.ravel, values)), dtype="<f8")
        return {
            "readers": list(READER_NAMES[: self.pool.weight.shape[1]]),
            "numbers": base64.b64encode(numbers.tobytes()).decode(),
            "batch": self.batch,
        }

    @staticmethod
    def from_dict(readers: int, columns: int | None, kept: Any) -> EnsembleState:
        """As it was kept. What other readers have learnt is of no use to these: then as before any example."""
        state = EnsembleState.new(readers, columns)
        if not isinstance(kept, dict):
            raise ValueError(DAMAGED + "it is not a table")
        if kept.get("readers") != list(READER_NAMES[:readers]):
            return state
        numbers, expected = _array(kept.get("numbers")), state._numbers()
        ends = np.cumsum([values.size for _, values in expected])
        if len(numbers) != ends[-1]:
            raise ValueError(DAMAGED + "numbers are missing")
        found = []
        for (name, values), part in zip(expected, np.split(numbers, ends[:-1]), strict=True):
            if (name not in SIGNED and (part < 0).any()) or (name in SMALL and np.abs(part).max() > SMALLER):
                raise ValueError(DAMAGED + f"bad numbers in {name!r}")
            if name == "precision" and not (np.linalg.eigvalsh(part.reshape(values.shape)) > 0).all():
                raise ValueError(DAMAGED + "a precision is not positive")
            found.append(part.reshape(values.shape))
        if not isinstance(kept.get("batch"), bool):
            raise ValueError(DAMAGED + "'batch' is true or false")
        units = ColumnUnits(*found[9:]) if columns is not None else None
        return EnsembleState(Pool(*found[:4]), Novelty(*found[4:9]), units, kept["batch"])

    def _numbers(self) -> list[tuple[str, np.ndarray]]:
        """All arrays by name, in the order of their classes."""
        units = {} if self.units is None else vars(self.units)
        return [*vars(self.pool).items(), *vars(self.novelty).items(), *units.items()]


def _array(text: Any) -> np.ndarray:
    try:
        numbers = np.frombuffer(base64.b64decode(text, validate=True), "<f8").astype(np.float64)
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    if not (np.abs(numbers) < LARGEST).all():
        raise ValueError(DAMAGED + "bad numbers in 'numbers'")
    return numbers


def require_readable(kept: Any, width: int) -> None:
    """Refuse what no ensemble could go on from, whether or not it gives the `width` columns units."""
    names = kept.get("readers") if isinstance(kept, dict) else None
    readers = min(len(names), len(READER_NAMES)) if isinstance(names, list) else 0
    try:
        EnsembleState.from_dict(readers, None, kept)
    except ValueError:
        EnsembleState.from_dict(readers, width, kept)
