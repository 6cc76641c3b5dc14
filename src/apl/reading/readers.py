"""Readers: small functions from a query and a memory to a score of every known class, and the pool that weighs them.

One reader suits compact classes, another classes of several shapes, a third the encoder it was trained with. So several
read the same memory, and share the answer by how well each foresaw the lessons so far:

    log p(class) = Σ_r w_r · score_r(class) + constant

a logarithmic opinion pool whose few weights take one Newton step per lesson, with forgetting, from a prior that was
chosen on validation data. Everything is in numpy and batched over parallel episodes; there is no gradient here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

READERS = ("nearest row", "class mean", "local regression", "class density")
"""What every memory has. A trained decoder is one more."""
DECODER = "decoder"
CLASS_MEAN, LOCAL_REGRESSION = READERS.index("class mean"), READERS.index("local regression")


@dataclass(frozen=True)
class Prior:
    """The weights before any lesson, of scores in their units, and how many lessons they count for."""

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
"""What a score is measured in, so that weights compare. For readers that say cosines, or what follows from them, this is
in units of a cosine (`Pool.units`); the others say logarithms of shares, which need none."""
OF_COSINES = ("nearest row", "class mean", "class density")
COSINE = 0.14
"""How much the cosines of a query with the class means usually vary over the classes."""

FORGETTING = 0.99
"""What a lesson still counts after the next one: a drifting stream changes its readers within a few hundred."""
LARGEST_STEP = 1.0
"""Of a weight, by one step. Many lessons learnt at once may carry the weights so far that every answer is certain; then
there is no curvature left, the next step is larger still, and they never come back."""
NEGLIGIBLE, TRIAL_LESSONS = 0.15, 60
"""A trained decoder, which costs more than all other readers, is not asked when its weight is below this, once it has
been weighed by so many lessons."""
KERNEL_WIDTH = 0.5
"""Of local regression: similarity 1 - s counts as exp(-s / width)."""
NOISE = 0.1
"""Of one example, in local regression; a row that is the mean of n examples has 1/n of it."""
CLEAR_BY = 1e-4
"""Nats. Of two classes whose log probabilities differ by less, rounding could decide: posteriors are in single precision."""
LEAST_SPREAD = 0.5
"""Of positions: the least part of the squared distance at which lessons lay from the mean of everything."""
FLOOR = 0.1
"""Added to a regressed share before its logarithm is taken."""
LOWEST = np.finfo(np.float64).min
LEAST_LOG = -12.0
"""A trained decoder that gives a class next to nothing says no more than this."""


@dataclass(frozen=True)
class ClassStatistics:
    """Sums over the examples behind the rows of a memory, class by class."""

    total: Float[np.ndarray, "episode class embed"]
    examples: Float[np.ndarray, "episode class"]
    everything: Float[np.ndarray, "episode embed"]
    """The sum of all totals."""
    square: Float[np.ndarray, "episode class"]
    """Of each total: the square of its length."""

    @staticmethod
    def of(total: Float[np.ndarray, "episode class embed"], examples: np.ndarray) -> ClassStatistics:
        return ClassStatistics(total, examples, total.sum(1), np.vecdot(total, total))

    def scaled(self, scale: Float[np.ndarray, "episode 1 embed"] | None) -> ClassStatistics:
        """Of columns that are multiplied with this. `square` stays: of positions nobody asks for it."""
        if scale is None:
            return self
        return replace(self, total=self.total * scale, everything=self.everything * scale[:, 0])

    @cached_property
    def centre(self) -> Float[np.ndarray, "episode embed"]:
        """The mean of everything, drawn a little towards zero, so that a single example is not its own centre."""
        return (self.everything / (self.examples.sum(1)[:, None] + 1)).astype(np.float32)


@dataclass(frozen=True)
class Readings:
    """What each reader makes of each query."""

    scores: Float[np.ndarray, "episode query reader class"]
    """As they come; meaningless for classes that are not known. A decoder that was not asked has no part in them."""
    examples: Float[np.ndarray, "episode class"]
    """How many of each class there are."""
    plain: Float[np.ndarray, "episode query class"] | None = None
    """The cosine with the mean of each class, not seen from the centre. Like the next, only the rule for new classes asks."""
    regression: LocalRegression | None = None

    def with_decoder(self, log_probs: Float[np.ndarray, "episode query class"]) -> Readings:
        """What a trained decoder says beside the others."""
        said = np.maximum(log_probs, LEAST_LOG)[:, :, None]
        return replace(self, scores=np.concatenate([self.scores, said], 2, dtype=np.float64))

    @cached_property
    def known(self) -> Bool[np.ndarray, "episode class"]:
        return self.examples > 0

    @cached_property
    def number(self) -> Int[np.ndarray, " episode"]:
        """How many classes are known."""
        return self.known.sum(1)

    @cached_property
    def variance(self) -> Float[np.ndarray, "episode query"]:
        """How much the cosines with the class means vary over the known classes."""
        cosine, number = self.scores[:, :, CLASS_MEAN], np.maximum(self.number, 1)[:, None]
        part = self.known[..., None].astype(cosine.dtype)
        mean, square = (cosine @ part)[..., 0] / number, (np.square(cosine) @ part)[..., 0] / number
        return np.maximum(square - np.square(mean), 0)

    @cached_property
    def nearness(self) -> tuple[Float[np.ndarray, "episode query"], Float[np.ndarray, "episode query"]]:
        """The largest plain cosine with a class mean, and the largest share of the local regression. -1 and 0 where no class
        is known."""
        cosine = np.where(self.known[:, None], self.plain, -1).max(-1, initial=-1)
        return cosine, np.exp(self.scores[:, :, LOCAL_REGRESSION].max(-1, initial=np.log(FLOOR))) - FLOOR

    def nearness_without(
        self, truth: Int[np.ndarray, "episode query"]
    ) -> tuple[Float[np.ndarray, "episode query"], Float[np.ndarray, "episode query"]]:
        """The same as it would be if this class of each query were not there."""
        others = self.known[:, None] & (np.arange(self.known.shape[1]) != truth[..., None])
        cosine = np.where(others, self.plain, -1).max(-1, initial=-1)
        return cosine, self.regression.shares(truth).max(-1, initial=0)


def unit(vectors: Float[np.ndarray, "*any embed"]) -> Float[np.ndarray, "*any embed"]:
    return vectors / np.maximum(np.sqrt(np.vecdot(vectors, vectors)), 1e-12)[..., None]


@dataclass(frozen=True)
class Scene:
    """What the readers look at."""

    query: Float[np.ndarray, "episode query embed"]
    rows: Float[np.ndarray, "episode query neighbours embed"]
    """Those that were recalled."""
    label: Int[np.ndarray, "episode query neighbours"]
    mask: Bool[np.ndarray, "episode query neighbours"]
    examples: Float[np.ndarray, "episode query neighbours"]
    """How many stand behind each row."""
    classes: ClassStatistics
    within: float = FOR_VECTORS.within

    def of_positions(self, usual_away: Float[np.ndarray, " episode"] | float = 0.0) -> Scene:
        """In a space of a few dimensions, where how far out a point lies says as much as in which direction.

        One more coordinate, of the size of the spread of everything, puts them on a sphere around a point beside their
        centre: then the cosine falls with the distance. Where all lie equally far out, cosines become (1 + cosine) / 2. All
        is in units of that spread. `usual_away`: of the lessons so far.
        """
        classes, count = self.classes, self.classes.examples[..., None]
        centre = (classes.everything / np.maximum(count.sum(1), 1))[:, None]
        total = classes.total - count * centre
        # The class means show the spread between classes; all of it is larger by what is within them.
        between = np.einsum("ecd,ec->e", np.square(total), 1 / np.maximum(classes.examples, 1))
        between = between / np.maximum(count.sum((1, 2)), 1) / (1 - self.within)
        # Classes around one another have means that coincide: then what lessons have shown counts.
        # Where all is one point, what rounding makes of it is no spread.
        least = 1e-13 * np.square(centre[:, 0]).sum(-1) + 1e-36
        spread = np.sqrt(np.maximum(np.maximum(between, LEAST_SPREAD * usual_away), least))[:, None, None]

        def lifted(vectors: np.ndarray, height: np.ndarray | float) -> np.ndarray:
            return np.concatenate([vectors, np.broadcast_to(height, (*vectors.shape[:-1], 1))], -1)

        total = lifted(total / spread, count)
        statistics = replace(ClassStatistics.of(total, classes.examples), everything=np.zeros_like(total[:, 0]))
        query, rows = (self.query - centre) / spread, (self.rows - centre[:, None]) / spread[:, None]
        return replace(self, query=lifted(query, 1.0), rows=lifted(rows, 1.0), classes=statistics)


def read(scene: Scene) -> Readings:
    """All readers but a trained decoder, at once: they share the centred directions."""
    query, mask, classes, way = scene.query, scene.mask, scene.classes, scene.classes.examples.shape[1]
    away = query - classes.centre[:, None]
    asked, recalled = unit(away), unit(scene.rows - classes.centre[:, None, None])
    similarity = np.where(mask, (recalled @ asked[..., None])[..., 0], -1)
    # What was not recalled goes to a place of its own behind the classes.
    slot = np.where(mask, scene.label, way)
    scores = np.empty((*query.shape[:2], len(READERS), way))
    scores[..., 0, :] = nearest_row(similarity, slot, mask, way)
    scores[..., 1, :], length, plain = class_mean(query, asked, classes)
    regression = LocalRegression.of(recalled, similarity, slot, mask, scene.examples, way)
    scores[..., 2, :] = np.log(np.maximum(regression.shares(), 0) + FLOOR)
    scores[..., 3, :] = class_density(query, away, scores[..., 1, :], length, classes, scene.within)
    return Readings(scores, classes.examples.copy(), plain, regression)


def nearest_row(
    similarity: Float[np.ndarray, "episode query neighbours"],
    slot: Int[np.ndarray, "episode query neighbours"],
    mask: Bool[np.ndarray, "episode query neighbours"],
    way: int,
) -> Float[np.ndarray, "episode query class"]:
    """A class is as near as its nearest row; one that was not recalled, as the farthest row that was."""
    farthest = np.where(mask, similarity, 1).min(-1, initial=1)
    nearest = np.empty((*slot.shape[:2], way + 1))
    nearest[:] = np.where(mask.any(-1), farthest, 0)[..., None]
    np.maximum.at(nearest.reshape(-1), _places(slot, way), similarity)
    return nearest[..., :way]


def _places(slot: Int[np.ndarray, "episode query neighbours"], way: int) -> Int[np.ndarray, "episode query neighbours"]:
    """Where each neighbour's class is in an array of all queries and `way + 1` classes laid out flat."""
    queries = slot.shape[0] * slot.shape[1]
    return slot + ((way + 1) * np.arange(queries)).reshape(*slot.shape[:2], 1)


def class_mean(
    query: Float[np.ndarray, "episode query embed"],
    asked: Float[np.ndarray, "episode query embed"],
    classes: ClassStatistics,
) -> tuple[np.ndarray, Float[np.ndarray, "episode 1 class"], Float[np.ndarray, "episode query class"]]:
    """The cosine between the query and the mean of everything ever merged into the class, both seen from the centre; how
    far from the centre that mean is; and the cosine as it is without a centre. `asked`: the query's direction from the centre."""
    centre, examples = classes.centre[:, None], np.maximum(classes.examples, 1)[:, None]
    # In double precision: how a product is rounded depends on how many queries are asked together.
    beside = np.concatenate([asked, centre], 1, dtype=np.float64)
    if query.shape[1] == 1:
        # Of a single query BLAS is twice as slow where the sums have to come from RAM.
        product = np.vecdot(classes.total[:, None], beside[:, :, None])
    else:
        product = beside @ classes.total.swapaxes(1, 2)
    inner, off_centre, asked = product[:, :-1], product[:, -1:], beside[:, :-1]
    shift = np.vecdot(asked, centre)[..., None]
    away = np.vecdot(asked, query)[..., None] - shift
    long = np.sqrt(np.vecdot(query, query)[..., None] * np.maximum(classes.square, 1e-12)[:, None])
    plain = away * inner + off_centre
    # What has no direction (a text of unknown words alone, say) is like nothing.
    plain = np.divide(plain, long, out=np.zeros_like(plain), where=long > 1e-12)
    off_centre = off_centre / examples
    square = classes.square[:, None] / np.square(examples) - 2 * off_centre + np.vecdot(centre, centre)[..., None]
    length = np.sqrt(np.maximum(square, 1e-12))
    inner /= examples
    inner -= shift
    inner /= length
    return inner, length, plain


def class_density(
    query: Float[np.ndarray, "episode query embed"],
    away: Float[np.ndarray, "episode query embed"],
    cosine: Float[np.ndarray, "episode query class"],
    length: Float[np.ndarray, "episode 1 class"],
    classes: ClassStatistics,
    within: float,
) -> Float[np.ndarray, "episode query class"]:
    """How densely the class lies at the query, if classes are round and spread alike: of one that was seen a few times the
    mean is drawn towards the centre, and it may lie in a wider region. Per dimension, in units of the spread of everything.
    `away`: the query seen from the centre.

    This is probabilistic LDA (Ioffe 2006) with a single variance within and between classes: log N(q; t·m, W + B/(nB/W + 1)).
    """
    centre, reach = classes.centre[:, None], np.vecdot(away, away)[..., None]
    length_squared, off_origin = np.vecdot(query, query), np.vecdot(centre, centre)
    spread = np.where(length_squared > 1e-12, length_squared - off_origin, off_origin)
    everything = np.maximum(spread, 1e-12)[..., None]
    ratio = (1 - within) / within
    weighed = classes.examples[:, None] * ratio
    more = weighed + 1
    drawn, width = weighed / more * length, 1 + ratio / more
    square = reach - 2 * cosine * drawn * np.sqrt(reach) + np.square(drawn)
    return -(square / everything / width + within * np.log(width)) / 2


@dataclass(frozen=True)
class LocalRegression:
    """Kernel ridge regression of the labels on the recalled rows alone: discriminative, as logistic regression is."""

    kernel: Float[np.ndarray, "episode query neighbours neighbours"]
    near: Float[np.ndarray, "episode query neighbours"]
    """The kernel between the query and each row; 0 for what was not recalled."""
    slot: Int[np.ndarray, "episode query neighbours"]
    way: int

    @staticmethod
    def of(
        recalled: Float[np.ndarray, "episode query neighbours embed"],
        similarity: Float[np.ndarray, "episode query neighbours"],
        slot: Int[np.ndarray, "episode query neighbours"],
        mask: Bool[np.ndarray, "episode query neighbours"],
        examples: Float[np.ndarray, "episode query neighbours"],
        way: int,
    ) -> LocalRegression:
        kernel = np.exp((recalled @ recalled.swapaxes(-1, -2) - 1) / KERNEL_WIDTH)
        near = np.exp((similarity - 1) / KERNEL_WIDTH)
        place = np.arange(kernel.shape[-1])
        kernel[..., place, place] += NOISE / np.maximum(examples, 1)
        regression = LocalRegression(kernel, near, slot, way)
        return regression if mask.all() else regression._of_rows(mask)

    def _of_rows(self, some: Bool[np.ndarray, "episode query neighbours"]) -> LocalRegression:
        """As if the others were not there."""
        both = some[..., None] & some[..., None, :] | np.eye(some.shape[-1], dtype=bool)
        return replace(self, kernel=np.where(both, self.kernel, 0), near=np.where(some, self.near, 0))

    def weight(self) -> Float[np.ndarray, "episode query neighbours"]:
        """Of each row, in the share of its class."""
        return np.linalg.solve(self.kernel, self.near[..., None])[..., 0]

    def shares(
        self, without: Int[np.ndarray, "episode query"] | None = None
    ) -> Float[np.ndarray, "episode query class"]:
        """Of each class; `without`: as if the rows of one class had not been recalled."""
        weight = (self if without is None else self._of_rows(self.slot != without[..., None])).weight()
        shape = (*self.slot.shape[:2], self.way + 1)
        place = _places(self.slot, self.way).ravel()
        return np.bincount(place, weight.ravel(), minlength=math.prod(shape)).reshape(shape)[..., : self.way]


def newton_step(
    weight: Float[np.ndarray, "episode number"],
    precision: Float[np.ndarray, "episode number number"],
    kept: Float[np.ndarray, " episode"],
    prior_weight: Float[np.ndarray, " number"],
    prior_precision: Float[np.ndarray, "number number"],
    curvature: Float[np.ndarray, "episode number number"],
    slope: Float[np.ndarray, "episode number"],
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and their precision after a lesson whose log likelihood has this slope and (negative) curvature at the
    present weights; of what was known before so much is `kept`, the rest fades towards the prior."""
    kept, faded = kept[:, None], (1 - kept)[:, None]
    known = kept[..., None] * precision + curvature
    told = (known @ weight[..., None])[..., 0] + slope + faded * (prior_precision @ prior_weight)
    precision = known + faded[..., None] * prior_precision
    return np.linalg.solve(precision, told[..., None])[..., 0], precision


def _shared(
    weight: Float[np.ndarray, "episode #query reader"],
    scores: Float[np.ndarray, "episode query reader class"],
    known: Bool[np.ndarray, "episode class"],
) -> Float[np.ndarray, "episode query class"]:
    logits = (weight[:, :, None] @ scores)[:, :, 0]
    np.copyto(logits, -np.inf, where=~known[:, None])
    logits -= logits.max(-1, keepdims=True, initial=LOWEST)
    return logits - np.log(np.maximum(np.exp(logits).sum(-1, keepdims=True), 1e-30))


@dataclass
class Pool:
    """The readers' weights in each of several parallel memories, and what they are learnt from."""

    readers: tuple[str, ...]
    weight: Float[np.ndarray, "episode reader"] = field(init=False)
    precision: Float[np.ndarray, "episode reader reader"] = field(init=False)
    variance: Float[np.ndarray, " episode"] = field(init=False)
    """Sum over past lessons of how much the cosines with the class means vary over the classes."""
    lessons: Float[np.ndarray, " episode"] = field(init=False)
    episodes: int = 1

    def __post_init__(self) -> None:
        self.weight = np.tile(self._prior, (self.episodes, 1))
        self.precision = np.tile(self._prior_precision, (self.episodes, 1, 1))
        self.variance, self.lessons = np.zeros((2, self.episodes))
        self._latest: tuple[Any, ...] | None = None
        """The readings asked about last and what came of them: a lesson usually follows its question."""

    @cached_property
    def prior(self) -> Prior:
        return FOR_DRAWINGS if DECODER in self.readers else FOR_VECTORS

    @cached_property
    def _prior(self) -> Float[np.ndarray, " reader"]:
        return np.array([self.prior.weight[name] for name in self.readers])

    @cached_property
    def _prior_precision(self) -> Float[np.ndarray, "reader reader"]:
        return self.prior.precision * np.eye(len(self.readers))

    @cached_property
    def _unit(self) -> Float[np.ndarray, "2 reader"]:
        """Of each reader; and half, the power of a cosine in it, for those that say cosines."""
        return np.array([[UNIT[name], 0.5 * (name in OF_COSINES)] for name in self.readers]).T

    def units(self, readings: Readings) -> Float[np.ndarray, "episode _ reader"]:
        """What each reader's scores are measured in.

        Some encoders spread their vectors wider than others. How sure to be follows neither from a cosine as it is
        nor from one in units of how much cosines vary here, but lies between: the unit is the geometric mean of both.
        """
        taught = self.units_when_taught[:, None]
        if not self.lessons.all():
            taught = np.where(self.lessons[:, None, None] > 0, taught, self._units(readings.variance))
        return taught[..., : readings.scores.shape[2]]

    @property
    def units_when_taught(self) -> Float[np.ndarray, "episode reader"]:
        """The same for every query; meaningless before the first lesson."""
        return self._units(self.variance / np.maximum(self.lessons, 1e-9))

    def _units(self, variance: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any reader"]:
        unit, power = self._unit
        return unit * (COSINE * np.sqrt(np.maximum(variance, 1e-12))[..., None]) ** power

    def log_probs(self, readings: Readings) -> Float[np.ndarray, "episode query class"]:
        """Among the known classes; -inf elsewhere."""
        if self._latest is not None and self._latest[0] is readings:
            return self._latest[2]
        # The units go into the weights, and a mean over classes would cancel out: one pass over the scores.
        units = self.units(readings)
        log_probs = _shared(self.weight[:, None, : units.shape[2]] / units, readings.scores, readings.known)
        self._latest = (readings, units, log_probs)
        return log_probs

    def needs(self, reader: str) -> bool:
        """Whether a reader that is dear to ask is worth it. One that was found to say nothing is left alone until
        forgetting brings its weight back towards the prior; then it gets another chance."""
        if reader not in self.readers:
            return False
        weights, lessons = self.weight[:, self.readers.index(reader)].tolist(), self.lessons.tolist()
        return any(abs(w) >= NEGLIGIBLE or n < TRIAL_LESSONS for w, n in zip(weights, lessons, strict=True))

    def is_settled(self, readings: Readings) -> bool:
        """Whether the best class of every query leads by more than a trained decoder, not asked yet, could add."""
        lead = np.full(self.episodes, CLEAR_BY)
        if self.needs(DECODER):
            lead += np.abs(self.weight[:, self.readers.index(DECODER)]) * -LEAST_LOG / UNIT[DECODER]
        log_probs = self.log_probs(readings)
        near = log_probs >= log_probs.max(-1, keepdims=True) - lead[:, None, None]
        return int(np.count_nonzero(near)) == math.prod(near.shape[:2])

    def learn(
        self, readings: Readings, truth: Int[np.ndarray, "episode query"], taught: Bool[np.ndarray, "episode query"]
    ) -> None:
        """One Newton step towards the weights under which the truth was most likely. `taught`: which queries count."""
        episode, query = np.arange(truth.shape[0])[:, None], np.arange(truth.shape[1])
        taught = taught & readings.known[episode, truth] & (readings.number > 1)[:, None]
        if not taught.any():
            return
        log_probs, units = self.log_probs(readings), self._latest[1]
        self._latest = None
        scores = readings.scores / units[..., None]
        share = np.exp(log_probs) * taught[..., None]
        mean = (scores @ share[..., None])[..., 0]
        missed = (scores[episode, query, :, truth] * taught[..., None] - mean).sum(1)
        curvature = ((scores * share[:, :, None]) @ scores.swapaxes(-1, -2)).sum(1) - mean.swapaxes(1, 2) @ mean
        lessons, asked = taught.sum(1), scores.shape[2]
        kept = np.power(FORGETTING, lessons)
        if more := len(self.readers) - asked:
            # A reader that was not asked is last: it neither gains nor loses by this lesson.
            curvature = np.pad(curvature, ((0, 0), (0, more), (0, more)))
            missed = np.pad(missed, ((0, 0), (0, more)))
        weight, self.precision = newton_step(
            self.weight, self.precision, kept, self._prior, self._prior_precision, curvature, missed
        )
        step = weight - self.weight
        self.weight = self.weight + step * np.minimum(
            1, LARGEST_STEP / np.abs(step).max(1, keepdims=True, initial=1e-12)
        )
        self.variance = kept * self.variance + (readings.variance * taught).sum(1)
        self.lessons = kept * self.lessons + lessons

    # --- durable numbers of a single memory ---------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {
            "readers": list(self.readers),
            "weight": self.weight[0].tolist(),
            "precision": self.precision[0].tolist(),
            "variance": float(self.variance[0]),
            "lessons": float(self.lessons[0]),
        }

    @staticmethod
    def from_dict(readers: tuple[str, ...], kept: Mapping[str, Any] | None) -> Pool:
        """As it was kept; from the prior if nothing was, or if other readers were in use then."""
        pool = Pool(readers)
        if kept and tuple(kept["readers"]) == readers:
            pool.weight = np.array([kept["weight"]])
            pool.precision = np.array([kept["precision"]])
            pool.variance, pool.lessons = np.array([kept["variance"]]), np.array([kept["lessons"]])
        return pool
