"""What a whole batch allows beyond a stream: a regression on all rows, and examples left out of the memory once.

A stream is read from the rows recalled for each query, because the memory changes after every example. Where a whole batch was
learnt and nothing changed since, one factorisation serves all queries, and every row takes part: kernel ridge regression, as
discriminative as logistic regression, without iterations. Its shares are added to what the pool of readers says:

    log p(class) = SHARPNESS · log p_pool(class) + NATS_PER_SHARE · share(class) + constant

The numbers were chosen on training and validation parts (docs/log/batch.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.memory import COUNT, Neighbours
from apl.reading.readers import KERNEL_WIDTH, NOISE, ClassStatistics, ReaderInputs, Readings, read, unit

LINEAR = 0.3
"""Weight of the linear kernel beside the exponential one: some encoders separate classes by directions that span all rows."""
SHARPNESS, NATS_PER_SHARE = 0.65, 7.8
MOST_ROWS = 2000
"""Beyond this many rows a batch is read like a stream: the factorisation takes 0.3 s and 32 MB at 2,000 rows, and grows with
the cube and the square of their number."""


@dataclass(frozen=True)
class WholeRegression:
    """The regression, factorised, of a single memory."""

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
        """Of keys as they are compared. A row that is the mean of n examples has 1/n of their noise."""
        centre = classes.centre[0].astype(np.float64)
        direction = unit(keys - centre)
        kernel = _kernel(direction @ direction.T)
        np.einsum("ii->i", kernel)[...] += NOISE / np.maximum(examples, 1)
        truth = np.eye(classes.examples.shape[1])[label]
        return WholeRegression(centre, direction, np.linalg.solve(kernel, truth))

    def shares(self, query: Float[np.ndarray, "query embed"]) -> Float[np.ndarray, "query class"]:
        """Of each class; about 1 for the right one, and 0 for the others."""
        shares: np.ndarray = _kernel(unit(query - self.centre) @ self.direction.T) @ self.coefficient
        return shares


def sharpened(
    log_probs: Float[np.ndarray, "*query class"],
    shares: Float[np.ndarray, "*query class"],
    known: Bool[np.ndarray, " class"],
) -> Float[np.ndarray, "*query class"]:
    """Log probabilities among the known classes, of the pool's and the shares."""
    logits = np.where(known, SHARPNESS * np.where(known, log_probs, 0) + NATS_PER_SHARE * shares, -np.inf)
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
    """What readers make of examples that their class holds, the class without each of them."""
    readings, asked = read(given), given.query[0]
    rest = given.classes.total[0, truth] - asked
    long = np.sqrt(np.vecdot(rest, rest) * np.vecdot(asked, asked))
    plain = readings.plain.copy()
    plain[0, np.arange(len(truth)), truth] = np.where(long > 1e-12, np.vecdot(rest, asked) / np.maximum(long, 1e-12), 0)
    return replace(readings, plain=plain)
