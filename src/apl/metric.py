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
    """The cosine metric is the euclidean one between unit vectors. `scale`: of each column of positions (`apl.reading.column_units`)."""
    if scale is not None:
        return np.clip(keys * scale, -FARTHEST, FARTHEST).astype(np.float32)
    if metric != "cosine":
        return keys
    return keys / np.sqrt(np.einsum("...d,...d->...", keys, keys))[..., None].clip(1e-12)
