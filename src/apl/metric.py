"""Keys as a metric sees them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from apl.config import Metric

FARTHEST = 1e16
"""In units of a column. Squares of more could not be summed."""


def measured(
    keys: Float[np.ndarray, "*any embed"], metric: Metric, scale: np.ndarray | None = None
) -> Float[np.ndarray, "*any embed"]:
    """The cosine metric is the euclidean one between unit vectors. `scale`: a factor for each column."""
    if scale is not None:
        scaled: np.ndarray = np.minimum(np.maximum(keys * scale, -FARTHEST), FARTHEST).astype(np.float32)
        return scaled
    if metric != "cosine":
        return keys
    directions: np.ndarray = keys / np.maximum(np.sqrt(np.vecdot(keys, keys)), 1e-12)[..., None]
    return directions


def distances(
    some: Float[np.ndarray, "row embed"], others: Float[np.ndarray, "other embed"]
) -> Float[np.ndarray, "row other"]:
    """Euclidean distances of all pairs; what rounding cannot tell from zero is zero."""
    square_lengths = np.vecdot(some, some)[:, None] + np.vecdot(others, others)
    square: np.ndarray = square_lengths - 2 * some @ others.T
    square[square < 1e-5 * square_lengths] = 0
    distance: np.ndarray = np.sqrt(square)
    return distance
