"""The most probable of very many classes, without the probabilities of all the others.

Of a class none of whose rows was recalled, two readers (`apl.reading.readers`) say what they say of every such class, and the other
two are linear in the product of the query with the sum of the class. So its log probability is, up to a number that is the
same for all classes,

    (product - shift · examples) · (slope of query and class) + level of query and class

which takes one matrix product and a few passes over a block of classes that stays in the processor's cache, where the whole
posterior takes some forty passes. The few classes that were recalled get the other two readers' opinions on top.

Where a second class comes so near that rounding could decide, nothing is said: then the whole posterior has to be asked.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from apl.reading.readers import CLEAR_BY, FLOOR, READERS, ClassStatistics, LocalRegression, Pool, Scene, unit

NOT_CLEAR = -1
PRODUCTS_AT_ONCE = 1 << 17
IMPOSSIBLE = -1e30


def clear_best_class(scene: Scene, pool: Pool) -> Int[np.ndarray, " query"]:
    """The class that `Pool.log_probs` puts first, of a single memory that was taught; `NOT_CLEAR` where that is close."""
    query, label, mask, classes = scene.query[0], scene.label[0], scene.mask[0], scene.classes
    centre, count = classes.centre[0], classes.examples[0].astype(np.float64)
    asked, recalled = unit(query - centre), unit(scene.rows[0] - centre)
    similarity = np.where(mask, (recalled @ asked[..., None])[..., 0], -1)
    weight = dict(zip(READERS, pool.weight[0] / pool.units_when_taught[0], strict=False))
    slope_of_query, level_of_query = _of_queries(query, centre)
    slope_of_class, level_of_class = _of_classes(classes, weight, pool.prior.within)
    asked = asked.astype(np.float64)
    shift = asked @ centre

    each, (number, way) = np.arange(len(query)), (len(query), len(count))
    own = np.full(label.shape, -np.inf)
    best, first, second = np.zeros(number, int), np.full(number, -np.inf), np.full(number, -np.inf)
    at_once = max(1, PRODUCTS_AT_ONCE // max(1, number))
    for start in range(0, way, at_once):
        part = slice(start, min(start + at_once, way))
        logit = asked @ classes.total[0, part].T
        logit -= np.outer(shift, count[part])
        logit *= slope_of_query @ slope_of_class[:, part]
        logit += level_of_query @ level_of_class[:, part]
        here = mask & (label >= part.start) & (label < part.stop)
        place = (here.nonzero()[0], label[here] - start)
        own[here] = logit[place]
        logit[place] = -np.inf
        found = logit.argmax(1)
        largest = logit[each, found]
        logit[each, found] = -np.inf
        second = np.maximum(np.maximum(second, logit.max(1)), np.minimum(first, largest))
        best, first = np.where(largest > first, found + start, best), np.maximum(first, largest)

    own = np.where(mask, own + _of_recalled(recalled, similarity, label, mask, scene.examples[0], weight), -np.inf)
    nearest = label[each, own.argmax(1)]
    others = np.where(label == nearest[:, None], -np.inf, own).max(1)
    own = own.max(1)
    lead = np.where(own >= first, own - np.maximum(first, others), first - np.maximum(second, own))
    return np.where(lead > CLEAR_BY, np.where(own >= first, nearest, best), NOT_CLEAR)


def _of_queries(query: np.ndarray, centre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    reach = np.square(query - centre).sum(-1)
    everything = np.maximum(np.square(query).sum(-1) - np.square(centre).sum(-1), 1e-12)
    one = np.ones(len(query))
    slope = np.stack([one, np.sqrt(reach) / everything], 1)
    return slope, np.stack([one, reach / everything, 1 / everything], 1).astype(np.float64)


def _of_classes(classes: ClassStatistics, weight: dict[str, float], within: float) -> tuple[np.ndarray, np.ndarray]:
    """`class_mean` and `class_density` of `apl.reading.readers`, sorted by what they depend on."""
    mean, density = weight["class mean"], weight["class density"]
    count, ratio = np.maximum(classes.examples[0], 1).astype(np.float64), (1 - within) / within
    centre = classes.centre[0].astype(np.float64)
    square = classes.square[0] / np.square(count) - 2 * (classes.total[0] @ centre) / count + centre @ centre
    length = np.sqrt(np.maximum(square, 1e-12))
    trust, width = count * ratio / (count * ratio + 1), 1 + ratio / (count * ratio + 1)
    unknown = np.where(classes.examples[0] > 0, 0, IMPOSSIBLE)
    slope = np.stack([mean / length, density * trust / width]) / count
    return slope, np.stack(
        [
            unknown - density * within * np.log(width) / 2,
            -density / width / 2,
            -density * np.square(trust * length) / width / 2,
        ]
    )


def _of_recalled(
    recalled: np.ndarray,
    similarity: np.ndarray,
    label: np.ndarray,
    mask: np.ndarray,
    examples: np.ndarray,
    weight: dict[str, float],
) -> Float[np.ndarray, "query neighbours"]:
    """What a class gains by having rows among the recalled ones."""
    same = (label[:, :, None] == label[:, None]) & mask[:, None]
    nearer = np.where(same, similarity[:, None], -1).max(-1) - np.where(mask, similarity, 1).min(-1, keepdims=True)
    regression = LocalRegression.of(recalled[None], similarity[None], label[None], mask[None], examples[None], 0)
    share = (same @ regression.weight()[0, ..., None])[..., 0]
    regressed = np.log(np.maximum(share, 0) / FLOOR + 1)
    return weight["nearest row"] * nearer + weight["local regression"] * regressed
