"""What a whole batch allows beyond a stream: a regression on all rows, and examples left out of the memory once.

A stream is read from the rows recalled for each query, because the memory changes after every example. Where a whole batch was
learnt and nothing changed since, one logistic regression serves all queries, and every row takes part. Its logits are added to
what the pool of readers says:

    log p(class) = POOLED · log p_pool(class) + REGRESSED · logit(class) + constant

The numbers were chosen on training and validation parts (docs/log/batch.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.memory import COUNT, ClassTotals, Neighbours
from apl.reading.readers import (
    CLASS_DENSITY,
    CLASS_MEAN,
    KERNEL_WIDTH,
    ClassStatistics,
    ReaderInputs,
    Readings,
    class_density,
    class_mean,
    read,
    unit,
)

LINEAR = 1.0
"""Weight of the linear kernel beside the exponential one: some encoders separate classes by directions that span all rows."""
EVIDENCE = 10.0
"""Weight of an example against the penalty, C of scikit-learn."""
STEPS = 30
POOLED, REGRESSED = 0.5, 1.5
MOST_ROWS, MOST_WORK = 2000, 1e9
"""Beyond this many rows, or rows squared times classes, a batch is read like a stream: at the limits the regression takes about
two seconds."""


@dataclass(frozen=True)
class WholeRegression:
    """Kernel logistic regression of the labels on all rows of a single memory."""

    centre: Float[np.ndarray, " embed"]
    direction: Float[np.ndarray, "row embed"]
    """Of each row, seen from the centre."""
    coefficient: Float[np.ndarray, "row class"]

    @staticmethod
    def of(
        keys: Float[np.ndarray, "row embed"],
        label: Int[np.ndarray, " row"],
        examples: Float[np.ndarray, " row"],
        classes: ClassStatistics,
    ) -> WholeRegression:
        """Of keys as they are compared. A row that is the mean of n examples counts as n.

        The curvature is bounded by a constant (Böhning, 1992), so that one factorisation serves all steps, which are accelerated
        (Nesterov).
        """
        centre = classes.centre[0].astype(np.float64)
        direction = unit(keys - centre)
        noise = 2 / (EVIDENCE * np.maximum(examples, 1).astype(np.float64))
        kernel = _kernel(direction @ direction.T)
        np.einsum("ii->i", kernel)[...] += noise
        inverse = np.linalg.inv(kernel)
        smoother = np.eye(len(label)) - noise[:, None] * inverse
        truth = np.eye(classes.examples.shape[1])[label]
        present, fitted, ahead, step = truth.any(0), np.zeros_like(truth), np.zeros_like(truth), 1.0
        for _ in range(STEPS):
            share = np.exp(ahead - ahead.max(1, keepdims=True)) * present
            target = ahead - 2 * (share / share.sum(1, keepdims=True) - truth)
            latest, following = smoother @ target, (1 + np.sqrt(1 + 4 * step**2)) / 2
            ahead = latest + (step - 1) / following * (latest - fitted)
            fitted, step = latest, following
        return WholeRegression(centre, direction, inverse @ target)

    @staticmethod
    def is_affordable(rows: int, classes: int) -> bool:
        return 0 < rows <= MOST_ROWS and rows * rows * classes <= MOST_WORK

    def logits(self, query: Float[np.ndarray, "query embed"]) -> Float[np.ndarray, "query class"]:
        """Of each class; 0 for classes without rows."""
        logits: np.ndarray = _kernel(unit(query - self.centre) @ self.direction.T) @ self.coefficient
        return logits


def with_regression(
    log_probs: Float[np.ndarray, "*query class"],
    regressed: Float[np.ndarray, "*query class"],
    known: Bool[np.ndarray, " class"],
) -> Float[np.ndarray, "*query class"]:
    """Log probabilities among the known classes, of the pool's and the logits of the regression."""
    logits = np.where(known, POOLED * np.where(known, log_probs, 0) + REGRESSED * regressed, -np.inf)
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits


def _kernel(cosine: np.ndarray) -> np.ndarray:
    kernel: np.ndarray = np.exp((cosine - 1) / KERNEL_WIDTH) + LINEAR * cosine
    return kernel


def without_itself(
    neighbours: Neighbours, embedding: Float[np.ndarray, "1 query embed"], row: Int[np.ndarray, " query"]
) -> Neighbours:
    """Neighbours of examples that are part of these rows: each row without the example that asks."""
    key, count = neighbours.columns["embedding"], neighbours.examples
    own = neighbours.mask & (neighbours.row == row[None, :, None])
    left = np.maximum(count - 1, 1)[..., None]
    rest = (key * count[..., None] - embedding[:, :, None]) / left
    columns = {**neighbours.columns, "embedding": np.where(own[..., None], rest, key).astype(np.float32)}
    columns[COUNT] = np.where(own, np.maximum(count - 1, 0), count)
    return replace(neighbours, columns=columns, mask=neighbours.mask & ~(own & (count <= 1)))


def readings_without_itself(given: ReaderInputs, truth: Int[np.ndarray, " query"]) -> Readings:
    """What readers make of examples that their class holds, the class without each of them. Of a class that holds nothing else
    this is undefined."""
    readings, classes, query = read(given), given.classes, given.query
    # As if the class of each query, without it, were a class of its own.
    rest = classes.total[:, truth] - query
    totals = ClassTotals(rest, classes.examples[:, truth] - 1, rest.sum(1), np.vecdot(rest, rest))
    without, away = ClassStatistics.of(totals, classes.centre), query - classes.centre[:, None]
    cosine, plain = class_mean(query, unit(away), without)
    density = class_density(query, away, cosine, without, given.within)
    own = np.arange(len(truth))
    readings.scores[0, own, CLASS_MEAN, truth] = cosine[0, own, own]
    readings.scores[0, own, CLASS_DENSITY, truth] = density[0, own, own]
    readings.plain[0, own, truth] = plain[0, own, own]
    return readings
