"""From a decoder's shares to probabilities of all classes.

A decoder with neighbourhood labels shares its belief out among the recalled rows and "none of these". What is left to
do outside it, here, is to put those few shares into the list of all classes. Shares may be numpy's or torch's arrays:
nothing here needs to know.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

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
        recalled = neighbours.is_first.sum(-1)
        new = np.broadcast_to((way - stored)[:, None], recalled.shape)
        overlooked = stored[:, None] - recalled
        mass = (1 - OVERLOOKED) * (new > 0) + OVERLOOKED * (overlooked > 0)

        def each(share: float, classes: np.ndarray) -> np.ndarray:
            return np.log(share / (mass.clip(1e-9) * classes.clip(1))).astype(np.float32)

        log_mass = np.where(mass > 0, np.log(mass.clip(1e-9)), IMPOSSIBLE).astype(np.float32)
        return Elsewhere(log_mass, each(1 - OVERLOOKED, new), each(OVERLOOKED, overlooked))


def classes_stored(
    label: Int[np.ndarray, "episode row"], counts: Int[np.ndarray, " episode"], way: int
) -> Bool[np.ndarray, "episode way"]:
    """Which of the classes 0..way-1 have rows in memory."""
    found = np.zeros((len(counts), way), bool)
    for episode, rows in enumerate(counts.tolist()):
        found[episode, label[episode, :rows]] = True
    return found


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
