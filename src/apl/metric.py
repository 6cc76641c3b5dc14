"""Keys as a metric sees them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from apl.config import Metric


def measured(keys: Float[np.ndarray, "*any embed"], metric: Metric) -> Float[np.ndarray, "*any embed"]:
    """The cosine metric is the euclidean one between unit vectors."""
    if metric != "cosine":
        return keys
    return keys / np.sqrt(np.einsum("...d,...d->...", keys, keys))[..., None].clip(1e-12)
