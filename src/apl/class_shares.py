"""From a decoder's shares to probabilities of all classes.

A decoder with neighbourhood labels shares its belief out among the recalled rows and "none of these". What is left to
do outside it, here, is to put those few shares into the list of all classes. Shares may be numpy's or torch's arrays:
nothing here needs to know.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from apl.memory import Neighbours
from apl.posterior import IMPOSSIBLE, Array

OVERLOOKED = 0.02
"""The part of "none of these" that goes to classes that have rows, none of which was recalled: a class with rows would
hardly have been overlooked."""


@dataclass(frozen=True)
class Elsewhere:
    """What "none of these" may mean for each query: classes without any row, and classes that have rows, none of
    which was recalled."""

    log_mass: Float[np.ndarray, "*query"]
    """Log of the part of "none of these" that has any class to go to."""
    log_new: Float[np.ndarray, "*query"]
    """Log of the share of that part which one class without rows gets; likewise `log_overlooked`."""
    log_overlooked: Float[np.ndarray, "*query"]

    @staticmethod
    def of(neighbours: Neighbours, stored: Int[np.ndarray, " episode"], way: int) -> Elsewhere:
        """`stored`: how many of the `way` classes have rows."""
        new, overlooked = (way - stored)[:, None], stored[:, None] - neighbours.is_first.sum(-1)
        mass = (1 - OVERLOOKED) * (new > 0) + OVERLOOKED * (overlooked > 0)
        shared = np.maximum(mass, 1e-9)

        def each(share: float, classes: np.ndarray) -> np.ndarray:
            return np.log(share / (shared * np.maximum(classes, 1))).astype(np.float32)

        log_mass = np.where(mass > 0, np.log(shared), IMPOSSIBLE).astype(np.float32)
        return Elsewhere(log_mass, each(1 - OVERLOOKED, new), each(OVERLOOKED, overlooked))


def place(log_class: Array, log_none: Array, part: Array, neighbours: Neighbours) -> Array:
    """Log-probabilities of all classes: `part` of "none of these" everywhere but at the recalled classes.

    `log_class` is `[episode, query, neighbours]`, `log_none` `[episode, query]`, `part` `[episode, query, way]`.
    """
    log_probs = log_none[..., None] + part
    episode, query, neighbour = neighbours.is_first.nonzero()
    log_probs[episode, query, neighbours.columns["label"][episode, query, neighbour]] = log_class[
        episode, query, neighbour
    ]
    return log_probs
