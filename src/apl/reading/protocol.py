"""A reading turns recalled rows into a posterior (step 3 of the learner), and may learn from the truth (step 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from apl.config import LearnerConfig
from apl.memory import Memory, Neighbours, ReadingState
from apl.posterior import Array, Posterior


@runtime_checkable
class Networks(Protocol):
    """An encoder and a decoder, in torch or in ONNX Runtime. `Array` is an array of their own kind."""

    @property
    def width(self) -> int: ...

    @property
    def key_widths(self) -> Mapping[str, int]:
        """The key columns of the memory: named slices of the embedding, usually the whole of it."""

    def tensor(self, array: Any) -> Array: ...
    def array(self, tensor: Array) -> np.ndarray: ...
    def embed(self, x: Array) -> Array: ...
    def decode(self, query: Array, neighbours: Neighbours, log_elsewhere: np.ndarray) -> Posterior: ...
    def fingerprint(self) -> str: ...


class Prediction:
    """What the learner believes, and on what grounds. Arrays are the networks' own. Parts may be computed when first asked for."""

    neighbours: Neighbours
    embedding: Array
    """`[episode, query, embed]`"""
    way: int
    """The number of classes."""
    log_probs: Array
    """`[episode, query, way]`"""
    log_none: Array
    """`[episode, query]`: log of the mass on none of the recalled rows, or of the probability of a new class."""
    weight: Array
    """`[episode, query, neighbours]`: the share of each neighbour in the answer."""

    @property
    def label(self) -> Array:
        """`[episode, query]`: the most probable class."""
        return self.log_probs.argmax(-1)

    def among(self, classes: Int[np.ndarray, " class"] | slice) -> Float[np.ndarray, "episode query class"]:
        """Log probabilities of these classes, up to a constant of each query, as they are compared with one another."""
        raise NotImplementedError

    def best(self, among: Int[np.ndarray, " class"]) -> Int[np.ndarray, "episode query"]:
        """The most probable of these classes; of several that are equally probable, the first listed."""
        best: np.ndarray = among[self.among(among).argmax(-1)]
        return best

    def foreseen(self, query: int, truth: int) -> tuple[float, tuple[float, float] | None]:
        """-ln p(truth) of a query of a single memory, and how near the classes came to it, in two numbers (`Readings.nearness`):
        None if its class was shown too seldom for that to count, or if the reading does not measure it."""
        raise NotImplementedError


class Reading:
    """How a memory is read. A reading that learns nothing within an episode only has to `read`."""

    def new_state(self, episodes: int, width: int, kept: Any = None) -> ReadingState | None:
        """What there is to know about a memory before any example; or as it was kept (`ReadingState.to_dict`)."""
        return None

    def prepare(self, memory: Memory) -> None:
        """Called before rows are recalled."""

    def read(self, memory: Memory, embedding: Array, neighbours: Neighbours, way: int) -> Prediction:
        """The posterior over `way` classes. The memory is only read."""
        raise NotImplementedError

    def learn(self, memory: Memory, prediction: Any, truth: Int[np.ndarray, "episode query"]) -> None:
        """Learn from the truth of a prediction of this reading; what is learnt becomes the memory's state."""

    def begin_batch(self, memory: Memory) -> None:
        """Called before a whole batch is learnt into a single memory."""
        return None

    def finish_batch(
        self,
        memory: Memory,
        embedding: Float[np.ndarray, "query embed"],
        truth: Int[np.ndarray, " query"],
        row: Int[np.ndarray, " query"],
        k: int,
    ) -> tuple[Float[np.ndarray, " judged"], Float[np.ndarray, "familiar 2"]] | None:
        """Called when a whole batch was learnt into a single memory; `row`: the row that each example is part of.

        Returns how a sample of them is foreseen, each left out of the memory once: -ln p(truth), and how near the classes came to
        those of classes that were shown often enough. None if this reading cannot leave one out.
        """
        return None

    def line_of_new(self, memory: Memory, near: Float[np.ndarray, "example 2"], false_alarms: float) -> float:
        """The probability of "new" that this share of known examples exceeds, by how near the classes came to
        each; 1 if there is none."""
        raise ValueError(
            "false_alarms= needs consolidate=True: the paper's rule does not measure how familiar examples are"
        )

    def opinions(self, prediction: Any, classes: int) -> list[tuple[str, float, int]]:
        """The name of each reader, its weight, and its answer to a single query among the first classes. Empty if there is one
        reader alone."""
        return []


MakeReading = Callable[[LearnerConfig, Networks], Reading]
"""A reading's class."""
