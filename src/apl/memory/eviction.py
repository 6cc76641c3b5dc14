"""Which row goes when a memory is full: the one that matters least.

A row matters for what the others would get wrong without it. Leave it out, and a query at its place is answered by
the nearest of the rest: surely right if a row of its own class lies much nearer than any row of another class. So
rows are ranked by

    distance to the nearest other row of the same class / distance to the nearest row of another class

times the number of examples behind them, and the smallest goes; among equals, the oldest. The last row of a class has no other
(ratio infinite), so a class is lost only when every class is down to one row. It is the surprise of the controller looked at
backwards, with a nearest-neighbour decoder: the row that would surprise least.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.metric import distances

PAIRS_COMPARED = 1 << 15
"""Up to 181 rows each is compared with every other; of more rows, a sample of candidates is compared with all."""
FEWEST_CANDIDATES = 32


def least_important(
    keys: Float[np.ndarray, "row embed"],
    labels: Int[np.ndarray, " row"],
    examples: Float[np.ndarray, " row"],
    allowed: Bool[np.ndarray, " row"],
    turn: int,
) -> int:
    """The position of the row to go, of those allowed. Each turn takes other candidates of a large memory, evenly spread."""
    some, most = allowed.nonzero()[0], max(FEWEST_CANDIDATES, PAIRS_COMPARED // len(keys))
    if len(some) > most:
        step = len(some) / most
        some = some[((np.arange(most) + turn % 61 / 61) * step).astype(int)]
    distance = distances(keys[some], keys)
    distance[np.arange(len(some)), some] = np.inf
    same = labels[some][:, None] == labels
    within, between = np.where(same, distance, np.inf).min(1), np.where(same, np.inf, distance).min(1)
    return int(some[(ratios(within, between) * examples[some]).argmin()])


def ratios(same: Float[np.ndarray, " row"], other: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    both = np.isinf(same) & np.isinf(other)
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = np.where(both, np.inf, same / other.clip(np.finfo(np.float32).tiny))
    # With a single class there is no other: then the closest pair goes first.
    return np.where(np.isinf(other) & ~both, same, ratio)
