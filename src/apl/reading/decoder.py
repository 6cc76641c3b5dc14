"""The paper's reading: the decoder alone answers (section 2.1).

A decoder with neighbourhood labels shares its belief out among the recalled rows and "none of these". Here those few shares are
put into the list of all classes. Shares may be numpy's or torch's arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from apl.config import LearnerConfig
from apl.memory import LABEL, Memory, Neighbours
from apl.posterior import IMPOSSIBLE, Array, Posterior
from apl.reading.protocol import Networks, Prediction, Reading

OVERLOOKED = 0.02
"""The part of "none of these" that goes to classes that have rows, none of which was recalled: a class with rows would
hardly have been overlooked."""
LOG_MASS = np.array([IMPOSSIBLE, math.log(OVERLOOKED), math.log(1 - OVERLOOKED), 0.0], np.float32)
"""Log of the part of "none of these" that has a class to go to: if there is no class without recalled rows, if there are overlooked
ones, if there are such without any row, and if there are both."""
LOG_NEW, LOG_OVERLOOKED = (LOG_MASS[n] - np.maximum(LOG_MASS, np.float32(math.log(1e-9))) for n in (2, 1))
"""Log of the share of that part that goes to classes without any row, and to overlooked ones."""


@dataclass(frozen=True)
class DecoderPrediction(Prediction):
    """A posterior that one decoder has computed."""

    log_probs: Array
    log_none: Array
    weight: Array
    neighbours: Neighbours
    embedding: Array
    way: int
    networks: Networks = field(repr=False)

    def among(self, classes: Int[np.ndarray, " class"] | slice) -> Float[np.ndarray, "episode query class"]:
        log_probs: np.ndarray = self.networks.array(self.log_probs)[..., classes]
        return log_probs

    def foreseen(self, query: int, truth: int) -> tuple[float, None]:
        return -float(self.networks.array(self.log_probs)[0, query, truth]), None


def unrecalled_mass(
    neighbours: Neighbours, stored: Int[np.ndarray, " episode"], way: int
) -> tuple[Float[np.ndarray, "*query"], Float[np.ndarray, "*query"], Float[np.ndarray, "*query"]]:
    """How "none of these" is divided: the log of the part that has any class to go to, and the logs of the shares of that part for
    one class without rows and for one with rows, none of which was recalled. `stored`: the number of classes that have rows.
    """
    new, overlooked = (way - stored)[:, None], stored[:, None] - neighbours.is_first.sum(-1)
    case = 2 * (new > 0) + (overlooked > 0)
    log_new = LOG_NEW.take(case) - np.log(np.maximum(new, 1), dtype=np.float32)
    log_overlooked = LOG_OVERLOOKED.take(case) - np.log(np.maximum(overlooked, 1), dtype=np.float32)
    return LOG_MASS.take(case), log_new, log_overlooked


def place(log_class: Array, log_none: Array, part: Array, neighbours: Neighbours) -> Array:
    """Log-probabilities of all classes: `part` of "none of these" everywhere but at the recalled classes.

    `log_class` is `[episode, query, neighbours]`, `log_none` `[episode, query]`, `part` `[episode, query, way]`.
    """
    log_probs = log_none[..., None] + part
    episode, query, neighbour = neighbours.is_first.nonzero()
    log_probs[episode, query, neighbours.columns[LABEL][episode, query, neighbour]] = log_class[
        episode, query, neighbour
    ]
    return log_probs


class DecoderReading(Reading):
    """The networks' decoder answers. It learns nothing within an episode."""

    def __init__(self, config: LearnerConfig, networks: Networks) -> None:
        self.networks = networks
        self.fixed_way = config.decoder.way if config.decoder.labels == "fixed" else None

    def read(self, memory: Memory, embedding: Array, neighbours: Neighbours, way: int) -> DecoderPrediction:
        highest = int(neighbours.columns[LABEL].max(initial=0))
        if highest >= way:
            raise ValueError(f"the memory holds label {highest}, but only {way} classes were announced")
        if self.fixed_way is not None and self.fixed_way != way:
            raise ValueError(f"this decoder was made for {self.fixed_way} classes and cannot answer for {way}")
        stored = memory.classes_stored(way)
        log_mass, log_new, log_overlooked = unrecalled_mass(neighbours, stored.sum(1), way)
        said = self.decode(memory, embedding.reshape(-1, embedding.shape[-1]), neighbours, log_mass)

        def apart(array: Array) -> Array:
            return array.reshape(*embedding.shape[:2], *array.shape[1:])

        log_none, weight = apart(said.log_none), apart(said.weight)
        if said.log_probs is not None:
            log_probs = apart(said.log_probs)
        else:
            part = np.where(stored[:, None], log_overlooked[..., None], log_new[..., None])
            log_probs = place(apart(said.log_class), log_none, self.networks.tensor(part), neighbours)
        return DecoderPrediction(log_probs, log_none, weight, neighbours, embedding, way, self.networks)

    def decode(self, memory: Memory, query: Array, neighbours: Neighbours, log_elsewhere: np.ndarray) -> Posterior:
        """What the neighbours say; queries of all episodes in a row."""
        return self.networks.decode(self.networks.tensor(query), neighbours, log_elsewhere)
