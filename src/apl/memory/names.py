"""Names and numbers of classes: stores know classes by name, learners by number."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from apl.store import Label


def sort_key(label: Label) -> tuple[bool, Label]:
    """Integers before text, each sorted."""
    return isinstance(label, str), label


class ClassNames:
    """The classes of one memory, numbered in the order of their first appearance.

    With `numbered`, labels are the numbers themselves, as in an episode of announced classes.
    """

    def __init__(self, labels: Iterable[Label] = (), numbered: bool = False) -> None:
        self.numbered = numbered
        self.names: list[Label] = []
        self._number: dict[Label, int] = {}
        self._sorted: list[tuple[bool, Label, int]] = []
        self._order: Int[np.ndarray, " class"] | None = None
        for label in labels:
            self.add(label)

    def __len__(self) -> int:
        return len(self.names)

    def number(self, label: Label) -> int | None:
        """None if there is no such class."""
        return self._number.get(label)

    def add(self, label: Label) -> int:
        """The number of a class, which is new if it has none."""
        found = self._number.get(label)
        if found is not None:
            return found
        for name in range(len(self.names), int(label) + 1) if self.numbered else (label,):
            number = self._number[name] = len(self.names)
            self.names.append(name)
            insort(self._sorted, (*sort_key(name), number))
        self._order = None
        return self._number[label]

    @property
    def order(self) -> Int[np.ndarray, " class"]:
        """The numbers of all classes, sorted by name."""
        if self._order is None:
            self._order = np.array([number for _, _, number in self._sorted], np.int64)
        return self._order

    def keep(self, present: Bool[np.ndarray, " class"]) -> Int[np.ndarray, " class"] | None:
        """Forget the other classes; the numbers close up. Returns the new number of each class; None if nothing changes."""
        if self.numbered or present.all():
            return None
        kept = [name for name, here in zip(self.names, present.tolist(), strict=True) if here]
        numbers: np.ndarray = present.cumsum() - 1
        self.names, self._sorted, self._number, self._order = [], [], {}, None
        for name in kept:
            self.add(name)
        return numbers


@dataclass(frozen=True)
class Budget:
    """How many rows a memory may hold; None: any number."""

    rows: int | None = None
    rows_per_class: int | None = None


def position(ids: Int[np.ndarray, " row"], id: int) -> int | None:
    """Where an id is in a sorted array."""
    place = bisect_left(ids, id)
    return place if place < len(ids) and int(ids[place]) == id else None
