"""What a decoder makes of a query and its neighbours, in arrays of whatever computes it (numpy's or torch's)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Array = Any
"""An array of the networks' own kind."""

IMPOSSIBLE = -1e9
"""A log share that counts for nothing, yet has a gradient."""


@dataclass(frozen=True)
class Posterior:
    """What is believed of each query."""

    log_none: Array
    """`[query]`: log of the mass on none of the recalled rows (`IMPOSSIBLE` for fixed labels)."""
    weight: Array
    """`[query, neighbours]`: how much of the answer each neighbour carries; sums to at most 1."""
    log_class: Array | None = None
    """`[query, neighbours]`: log of the mass on each neighbour's class; None for fixed labels."""
    log_probs: Array | None = None
    """`[query, way]`: fixed labels answer for their classes themselves."""
