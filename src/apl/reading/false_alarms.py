"""Where to draw the line between new and known, so that a wanted share of known examples is called new.

A memory keeps how near its classes came to recent examples of known classes before these were learnt (the two numbers of
`apl.reading.novelty`). After a whole batch it keeps those of the batch, each example left out of the memory once. The line is a
quantile of their log odds under the rule as it is now.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from apl.memory import COUNT, Neighbours
from apl.reading.readers import ReaderInputs, Readings, read

MOST_KEPT = 256
LEAST_EXAMPLES = 2
"""Examples of a class beside the one that counts: a class that was shown once is far from most of its examples."""


def line(log_odds: Float[np.ndarray, " example"], share: float) -> float:
    """Log odds exceeded by this share of known examples; infinite if none is kept."""
    return float(np.quantile(log_odds, 1 - share, method="weibull")) if len(log_odds) else np.inf


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
    readings, query = read(given), np.arange(len(truth))
    rest = given.classes.total[0, truth] - given.query[0]
    asked = given.query[0]
    long = np.sqrt(np.vecdot(rest, rest) * np.vecdot(asked, asked))
    plain = readings.plain.copy()
    plain[0, query, truth] = np.where(long > 1e-12, np.vecdot(rest, asked) / np.maximum(long, 1e-12), 0)
    return replace(readings, plain=plain)
