"""The unit of each column of a table.

A table of measurements has columns of different units, and the one with the largest numbers would decide alone who is near. So
each column counts in units of its own spread within classes, which the examples show: an example against the mean of its class
before it was learnt. While there are few examples, the distance between class means counts as well. Spreads that differ no
more than by chance are taken for one (empirical Bayes: their logarithms are drawn together by the share of chance in their
variance). A column that never varied says nothing.

Units are taken anew whenever the memory has grown or shrunk by an eighth, so that searching in them costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.memory import ClassTotals
from apl.reading.pool import FORGETTING

MOST_COLUMNS = 128
"""Longer vectors have one unit for all their numbers."""
EXAMPLES_OF_MEANS = 3.0
"""The class means count as much as this number of examples."""
ROUNDING = 1e-13
"""A variance below this part of the mean's square is none."""


@dataclass(frozen=True)
class ColumnUnits:
    """The units of the positions in each of several parallel memories, and what they are learnt from."""

    away: Float[np.ndarray, "episode column"]
    """Discounted sum over past examples of the squared distance from the mean of everything."""
    within: Float[np.ndarray, "episode column"]
    """The same of the squared distance from the mean of their class."""
    lessons: Float[np.ndarray, " episode"]
    """Discounted number of past examples."""
    scale: Float[np.ndarray, "episode column"]
    """One over the unit of each column; 0 where it never varied."""
    examples: Float[np.ndarray, " episode"]
    """Number of examples when the units were taken."""

    @staticmethod
    def new(width: int, episodes: int = 1) -> ColumnUnits:
        columns, zeros = width if width <= MOST_COLUMNS else 1, np.zeros(episodes)
        sums = np.zeros((episodes, columns))
        return ColumnUnits(sums, sums, zeros, np.ones((episodes, columns)), zeros)

    def learnt(
        self,
        key: Float[np.ndarray, "episode query embed"],
        truth: Int[np.ndarray, "episode query"],
        classes: ClassTotals,
    ) -> ColumnUnits:
        """After examples, as they were seen before they were learnt."""
        episode = np.arange(len(key))[:, None]
        count = classes.examples[episode, truth][..., None].astype(np.float64)
        taught = count > 0
        number = taught.sum((1, 2))
        kept = np.power(FORGETTING, number)
        centre = classes.everything / np.maximum(classes.examples.sum(1), 1)[:, None]
        mean = classes.total[episode, truth] / np.maximum(count, 1)
        # The mean of a few examples is off by its own share of the spread.
        within = np.square(key - mean) * (taught * (count / (count + 1)))
        away = np.square(key - centre[:, None]) * taught
        if self.away.shape[1] < key.shape[-1]:
            within, away = within.sum(-1, keepdims=True), away.sum(-1, keepdims=True)
        return ColumnUnits(
            kept[:, None] * self.away + away.sum(1),
            kept[:, None] * self.within + within.sum(1),
            kept * self.lessons + number,
            self.scale,
            self.examples,
        )

    def usual_away(self, scale: Float[np.ndarray, "episode 1 column"] | None) -> Float[np.ndarray, " episode"]:
        """The mean squared distance of examples from the mean of everything; 0 before the first."""
        away = self.away if scale is None else self.away * np.square(scale[:, 0])
        usual: np.ndarray = away.sum(1) / np.maximum(self.lessons, 1e-9)
        return usual

    def is_due(self, examples: Float[np.ndarray, " episode"]) -> Bool[np.ndarray, " episode"]:
        """Where the number of examples has changed so much that units should be taken anew."""
        due: np.ndarray = np.abs(examples - self.examples) > self.examples / 8
        return due

    def taken(self, classes: ClassTotals) -> ColumnUnits:
        """With units taken anew where they are due."""
        total_examples = classes.examples.sum(1)
        due = self.is_due(total_examples)
        count, examples = classes.examples[..., None], np.maximum(total_examples, 1)[:, None].astype(np.float64)
        centre, lessons = classes.everything / examples, self.lessons[:, None]
        apart = classes.total / np.maximum(count, 1) - centre[:, None]
        between = (np.square(apart) * count).sum(1) / examples
        by_means = EXAMPLES_OF_MEANS / (lessons + EXAMPLES_OF_MEANS)
        variance = self.within / np.maximum(lessons, 1e-9) + between * by_means
        varied = variance > ROUNDING * np.square(centre)
        log, columns = np.log(np.where(varied, variance, 1)), np.maximum(varied.sum(1, keepdims=True), 1)
        usual = log.sum(1, keepdims=True) / columns
        differ = (np.square(log - usual) * varied).sum(1, keepdims=True) / columns
        shown = np.maximum(lessons + (count > 0).sum(1) - 1, 1)
        chance = 2 / shown + 2 / np.square(shown)
        log = usual + (log - usual) * np.maximum(differ - chance, 0) / np.maximum(differ, chance)
        scale = np.where(varied, np.exp(-log / 2), 0)
        # Before anything varied there is nothing to tell columns by.
        scale[~varied.any(1)] = 1
        return replace(
            self,
            scale=np.where(due[:, None], scale, self.scale),
            examples=np.where(due, total_examples, self.examples),
        )
