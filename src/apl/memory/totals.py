"""Class totals kept in step with the rows of a memory."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from apl.memory.protocol import ClassTotals


class RunningTotals:
    """Examples of each class and the sum of their keys, for several parallel episodes. Classes appear as they come.

    Sums are in double precision, so that the order of merges does not matter.
    """

    def __init__(self, episodes: int, width: int) -> None:
        self.total = np.zeros((episodes, 0, width))
        self.everything = np.zeros((episodes, width))
        self.examples = np.zeros((episodes, 0), np.float32)
        self.square = np.zeros((episodes, 0))

    def of(self, way: int | None = None) -> ClassTotals:
        """Of the classes 0..way-1, by default of all."""
        way = self.total.shape[1] if way is None else way
        self._make_room(way)
        return ClassTotals(self.total[:, :way], self.examples[:, :way], self.everything, self.square[:, :way])

    def add(
        self,
        episode: Int[np.ndarray, " row"],
        label: Int[np.ndarray, " row"],
        key: Float[np.ndarray, "row embed"],
        count: Float[np.ndarray, " row"],
    ) -> None:
        """Rows come, or go if their count is negative. Keys are as the metric sees them."""
        if len(label) == 1:
            return self.add_one(int(episode[0]), int(label[0]), key[0], float(count[0]))
        if not len(label):
            return None
        self._make_room(int(label.max()) + 1)
        weighed = key * count[:, None].astype(np.float64)
        np.add.at(self.total, (episode, label), weighed)
        np.add.at(self.everything, episode, weighed)
        np.add.at(self.examples, (episode, label), count)
        # A class without examples has no total, not even by rounding.
        empty = self.examples[episode, label] == 0
        self.total[episode[empty], label[empty]] = 0
        total = self.total[episode, label]
        self.square[episode, label] = np.vecdot(total, total)
        return None

    def add_one(self, episode: int, label: int, key: Float[np.ndarray, " embed"], count: float) -> None:
        """`add` of a single row."""
        self._make_room(label + 1)
        weighed = key * np.float64(count)
        total = self.total[episode, label]
        total += weighed
        self.everything[episode] += weighed
        self.examples[episode, label] += count
        if self.examples[episode, label] == 0:
            total[:] = 0
        self.square[episode, label] = total @ total

    def set(self, label: int, total: Float[np.ndarray, " embed"], examples: float | int) -> None:
        """The total of a class of a single memory, as a store keeps it."""
        self._make_room(label + 1)
        self.everything[0] += total - self.total[0, label]
        self.total[0, label] = total
        self.square[0, label] = total @ total
        self.examples[0, label] = examples

    def _make_room(self, classes: int) -> None:
        room = self.total.shape[1]
        if classes > room:
            more = ((0, 0), (0, max(classes, 2 * room) - room))
            self.total = np.pad(self.total, (*more, (0, 0)))
            self.examples, self.square = np.pad(self.examples, more), np.pad(self.square, more)
