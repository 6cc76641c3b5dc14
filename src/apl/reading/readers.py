"""Readers: functions from a query and a memory to a score of every known class.

One reader suits compact classes, another classes of several shapes, a third the encoder it was trained with. `apl.reading.ensemble_state`
weighs them by how well each predicted the examples so far. Everything is in numpy and batched over parallel episodes; there is
no gradient here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.memory import ClassTotals

READERS = ("nearest row", "class mean", "local regression", "class density")
"""Readers that need no training. A trained decoder is one more."""
NEAREST_ROW, CLASS_MEAN, LOCAL_REGRESSION, CLASS_DENSITY = range(len(READERS))

KERNEL_WIDTH = 0.5
"""Of local regression: similarity 1 - s counts as exp(-s / width)."""
NOISE = 0.1
"""Of one example, in local regression; a row that is the mean of n examples has 1/n of it."""
FLOOR = 0.1
"""Added to a regressed share before its logarithm is taken."""
LEAST_LOG = -12.0
"""Lower bound of what a trained decoder says of a class."""


@dataclass(frozen=True)
class ClassStatistics:
    """Sums over the examples of each class, in the space in which keys are compared, and what follows from them."""

    total: Float[np.ndarray, "episode class embed"]
    examples: Float[np.ndarray, "episode class"]
    at_least_one: Float[np.ndarray, "episode 1 class"]
    """The number of examples of each class, 1 where there are none."""
    known: Bool[np.ndarray, "episode class"]
    number: Int[np.ndarray, " episode"]
    """Number of known classes."""
    square: Float[np.ndarray, "episode class"]
    """The square of the length of each total."""
    centre: Float[np.ndarray, "episode embed"]
    """The mean of everything, drawn a little towards zero, so that a single example is not its own centre."""
    centre_square: Float[np.ndarray, " episode"]
    along_centre: Float[np.ndarray, "episode 1 class"]
    """The product of each total with the centre."""
    length: Float[np.ndarray, "episode 1 class"]
    """The distance of each class mean from the centre."""

    @staticmethod
    def of(totals: ClassTotals, centre: Float[np.ndarray, "episode embed"] | None = None) -> ClassStatistics:
        # Totals change in place when the memory does; a prediction keeps the examples it was made from.
        total, examples = totals.total, totals.examples.copy()
        known, count = examples > 0, np.maximum(examples, 1)[:, None]
        if centre is None:
            centre = (totals.everything / (examples.sum(1)[:, None] + 1)).astype(np.float32)
        centre_square = np.vecdot(centre, centre).astype(np.float64)
        along = (total @ centre[..., None].astype(np.float64))[:, None, :, 0]
        square = totals.square[:, None] / np.square(count) - 2 * along / count + centre_square[:, None, None]
        length, number = np.sqrt(np.maximum(square, 1e-12)), np.count_nonzero(known, axis=1)
        return ClassStatistics(
            total, examples, count, known, number, totals.square, centre, centre_square, along, length
        )


@dataclass(frozen=True)
class ReaderInputs:
    """What the readers look at. All vectors are in the space in which keys are compared."""

    query: Float[np.ndarray, "episode query embed"]
    rows: Float[np.ndarray, "episode query neighbours embed"]
    """The recalled ones."""
    label: Int[np.ndarray, "episode query neighbours"]
    mask: Bool[np.ndarray, "episode query neighbours"]
    examples: Float[np.ndarray, "episode query neighbours"]
    """Number of examples behind each row."""
    classes: ClassStatistics
    within: float = 0.5
    """The share of an example's squared length that sets it apart from others of its class."""


@dataclass(frozen=True)
class Readings:
    """What each reader makes of each query."""

    scores: Float[np.ndarray, "episode query reader class"]
    """Undefined for classes that are not known. The decoder, if it was asked, is last."""
    classes: ClassStatistics
    plain: Float[np.ndarray, "episode query class"]
    """The cosine with the mean of each class, not seen from the centre."""
    regression: LocalRegression
    shares: Float[np.ndarray, "episode query class"]
    """Of the regression."""

    def with_decoder(self, log_probs: Float[np.ndarray, "episode query class"]) -> Readings:
        """The same with what a trained decoder says."""
        said = np.maximum(log_probs, LEAST_LOG)[:, :, None]
        return replace(self, scores=np.concatenate([self.scores, said], 2, dtype=np.float64))

    def variance(self) -> Float[np.ndarray, "episode query"]:
        """The variance, over the known classes, of the cosines with the class means."""
        cosine, number = self.scores[:, :, CLASS_MEAN], np.maximum(self.classes.number, 1)[:, None]
        part = self.classes.known[..., None].astype(np.float64)
        mean, square = (cosine @ part)[..., 0] / number, (np.square(cosine) @ part)[..., 0] / number
        variance: np.ndarray = np.maximum(square - np.square(mean), 0)
        return variance

    @cached_property
    def nearness(self) -> tuple[Float[np.ndarray, "episode query"], Float[np.ndarray, "episode query"]]:
        """The largest plain cosine with a class mean, and the largest share of the local regression. -1 and 0 where no class
        is known."""
        cosine = self.plain.max(-1, initial=-1, where=self.classes.known[:, None])
        return cosine, self.shares.max(-1, initial=0)

    def nearness_without(
        self, truth: Int[np.ndarray, "episode query"]
    ) -> tuple[Float[np.ndarray, "episode query"], Float[np.ndarray, "episode query"]]:
        """The same as it would be without this class of each query."""
        others = self.classes.known[:, None] & (np.arange(self.plain.shape[-1]) != truth[..., None])
        regression = self.regression.only(self.regression.label != truth[..., None])
        return self.plain.max(-1, initial=-1, where=others), regression.shares().max(-1, initial=0)


def unit(vectors: Float[np.ndarray, "*any embed"]) -> Float[np.ndarray, "*any embed"]:
    scaled: np.ndarray = vectors / np.maximum(np.sqrt(np.vecdot(vectors, vectors)), 1e-12)[..., None]
    return scaled


def read(given: ReaderInputs) -> Readings:
    """All readers but a trained decoder. They share the directions seen from the centre."""
    classes, label, (episodes, queries, _) = given.classes, given.label, given.label.shape
    way = classes.examples.shape[1]
    away = given.query - classes.centre[:, None]
    asked, recalled = unit(away), unit(given.rows - classes.centre[:, None, None])
    similarity = (recalled @ asked[..., None])[..., 0]
    complete = given.mask.all()
    if not complete:
        # What was not recalled goes to a place of its own behind the classes.
        similarity, label = np.where(given.mask, similarity, 1), np.where(given.mask, label, way)
    place = label + ((way + 1) * np.arange(episodes * queries)).reshape(episodes, queries, 1)
    kernel = np.exp((recalled @ recalled.swapaxes(-1, -2) - 1) / KERNEL_WIDTH)
    np.einsum("...ii->...i", kernel)[...] += NOISE / np.maximum(given.examples, 1)
    regression = LocalRegression(kernel, np.exp((similarity - 1) / KERNEL_WIDTH), label, place, way)
    if not complete:
        regression = regression.only(given.mask)
    shares = regression.shares()
    # A class is as near as its nearest row; one that was not recalled, as the farthest row that was.
    nearest = np.empty((episodes, queries, way + 1))
    nearest[:] = similarity.min(-1, keepdims=True)
    np.maximum.at(nearest.reshape(-1), place, similarity)
    scores = np.empty((episodes, queries, len(READERS), way))
    scores[:, :, NEAREST_ROW] = nearest[..., :way]
    scores[:, :, CLASS_MEAN], plain = class_mean(given.query, asked, classes)
    scores[:, :, LOCAL_REGRESSION] = np.log(np.maximum(shares, 0) + FLOOR)
    scores[:, :, CLASS_DENSITY] = class_density(given.query, away, scores[:, :, CLASS_MEAN], classes, given.within)
    return Readings(scores, classes, plain, regression, shares)


def class_mean(
    query: Float[np.ndarray, "episode query embed"],
    asked: Float[np.ndarray, "episode query embed"],
    classes: ClassStatistics,
) -> tuple[Float[np.ndarray, "episode query class"], Float[np.ndarray, "episode query class"]]:
    """The cosine between the query and the mean of all examples of the class, both seen from the centre; and the cosine
    without a centre. `asked`: the query's direction from the centre."""
    # In double precision: the rounding of a product depends on how many queries are asked together.
    direction = asked.astype(np.float64)
    if query.shape[1] == 1:
        # Of a single query BLAS is twice as slow where the sums have to come from RAM.
        inner = np.vecdot(classes.total, direction)[:, None]
    else:
        inner = direction @ classes.total.swapaxes(1, 2)
    shift = np.vecdot(direction, classes.centre[:, None])[..., None]
    away = np.vecdot(direction, query)[..., None] - shift
    long = np.sqrt(np.vecdot(query, query)[..., None] * np.maximum(classes.square, 1e-12)[:, None])
    plain = away * inner + classes.along_centre
    # What has no direction (a text of unknown words alone, say) is like nothing.
    plain = np.divide(plain, long, out=np.zeros_like(plain), where=long > 1e-12)
    inner /= classes.at_least_one
    inner -= shift
    inner /= classes.length
    return inner, plain


def class_density(
    query: Float[np.ndarray, "episode query embed"],
    away: Float[np.ndarray, "episode query embed"],
    cosine: Float[np.ndarray, "episode query class"],
    classes: ClassStatistics,
    within: float,
) -> Float[np.ndarray, "episode query class"]:
    """The log density of the class at the query, if classes are round and spread alike. The mean of a class that was seen a few
    times is drawn towards the centre, and the class may lie in a wider region. Per dimension, in units of the spread of
    everything. `away`: the query seen from the centre.

    This is probabilistic LDA (Ioffe 2006) with a single variance within and between classes: log N(q; t·m, W + B/(nB/W + 1)).
    """
    reach = np.vecdot(away, away)[..., None].astype(np.float64)
    length_squared, off_origin = np.vecdot(query, query), classes.centre_square[:, None]
    spread = np.where(length_squared > 1e-12, length_squared - off_origin, off_origin)
    everything = np.maximum(spread, 1e-12)[..., None]
    ratio = (1 - within) / within
    weighed = classes.examples[:, None] * ratio
    more = weighed + 1
    drawn, width = weighed / more * classes.length, 1 + ratio / more
    square = reach - 2 * np.sqrt(reach) * cosine * drawn + np.square(drawn)
    density: np.ndarray = -(square / everything / width + within * np.log(width)) / 2
    return density


@dataclass(frozen=True)
class LocalRegression:
    """Kernel ridge regression of the labels on the recalled rows alone: discriminative, as logistic regression is."""

    kernel: Float[np.ndarray, "episode query neighbours neighbours"]
    near: Float[np.ndarray, "episode query neighbours"]
    """The kernel between the query and each row; 0 for what was not recalled."""
    label: Int[np.ndarray, "episode query neighbours"]
    """`way` for what was not recalled."""
    place: Int[np.ndarray, "episode query neighbours"]
    """Of each neighbour's class in a flat array of all queries and `way + 1` classes."""
    way: int

    def weights(self) -> Float[np.ndarray, "episode query neighbours"]:
        """Of each row, in the share of its class."""
        weights: np.ndarray = np.linalg.solve(self.kernel, self.near[..., None])[..., 0]
        return weights

    def shares(self) -> Float[np.ndarray, "episode query class"]:
        """Of each class."""
        shape = (*self.label.shape[:2], self.way + 1)
        weights = np.linalg.solve(self.kernel, self.near[..., None])
        shares = np.bincount(self.place.ravel(), weights.ravel(), minlength=math.prod(shape))
        return shares.reshape(shape)[..., : self.way]

    def only(self, some: Bool[np.ndarray, "episode query neighbours"]) -> LocalRegression:
        """As if the other rows had not been recalled."""
        kernel = self.kernel * (some[..., None] & some[..., None, :])
        np.einsum("...ii->...i", kernel)[...] += ~some
        return LocalRegression(kernel, self.near * some, self.label, self.place, self.way)
