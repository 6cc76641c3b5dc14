"""How far positions spread, and the unit that each of their columns is taken in.

A table of measurements has columns of different units, and the one with the largest numbers would decide alone who is near. So
each column counts in units of its own spread within classes, which lessons show: an example against the mean of its class
before it was learnt. As long as lessons are few, how far the class means lie from one another counts as well. Spreads that differ no
more than chance would have it are taken for one (empirical Bayes: their logarithms are drawn together by the share of chance in
how they vary). A column that never varied says nothing.

Units are taken anew whenever the memory has grown or shrunk by an eighth, so that searching in them costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.reading.readers import FORGETTING, ClassStatistics

MOST_COLUMNS = 128
"""Longer vectors have one unit for all their numbers."""
LESSONS_OF_MEANS = 3.0
"""For so many lessons counts what the class means show."""
ROUNDING = 1e-13
"""A variance of this part of the mean's square is none."""


@dataclass
class Spread:
    """Of the positions in each of several parallel memories."""

    columns: int
    episodes: int = 1
    away: Float[np.ndarray, "episode column"] = field(init=False)
    """Sum over past lessons of the squared distance from the mean of everything; then from the mean of their class."""
    within: Float[np.ndarray, "episode column"] = field(init=False)
    lessons: Float[np.ndarray, " episode"] = field(init=False)
    scale: Float[np.ndarray, "episode column"] = field(init=False)
    """One over the unit of each column; 0 where it never varied."""
    examples: Float[np.ndarray, " episode"] = field(init=False)
    """How many there were when the units were taken."""

    def __post_init__(self) -> None:
        self.away, self.within = np.zeros((2, self.episodes, self.columns))
        self.scale = np.ones((self.episodes, self.columns))
        self.lessons, self.examples = np.zeros((2, self.episodes))

    def learn(
        self,
        key: Float[np.ndarray, "episode query embed"],
        truth: Int[np.ndarray, "episode query"],
        classes: ClassStatistics,
    ) -> None:
        """Examples of known classes, as they were seen before they were learnt."""
        episode = np.arange(self.episodes)[:, None]
        count = classes.examples[episode, truth][..., None].astype(np.float64)
        taught = count > 0
        kept = np.power(FORGETTING, taught.sum((1, 2)))
        centre = classes.everything / np.maximum(classes.examples.sum(1), 1)[:, None]
        mean = classes.total[episode, truth] / np.maximum(count, 1)
        # The mean of a few examples is off by its own share of the spread.
        within = np.square(key - mean) * taught * (count / (count + 1))
        away = np.square(key - centre[:, None]) * taught
        if self.columns < key.shape[-1]:
            within, away = within.sum(-1, keepdims=True), away.sum(-1, keepdims=True)
        self.within = kept[:, None] * self.within + within.sum(1)
        self.away = kept[:, None] * self.away + away.sum(1)
        self.lessons = kept * self.lessons + taught.sum((1, 2))

    def usual_away(self, scale: Float[np.ndarray, "episode 1 column"] | None) -> Float[np.ndarray, " episode"]:
        """How far from the mean of everything lessons lay, squared; 0 before the first."""
        away = self.away if scale is None else self.away * np.square(scale[:, 0])
        return away.sum(1) / np.maximum(self.lessons, 1e-9)

    def is_due(self, examples: Float[np.ndarray, " episode"]) -> Bool[np.ndarray, " episode"]:
        """Where there are so many more or fewer examples that units should be taken anew."""
        return np.abs(examples - self.examples) > self.examples / 8

    def take_units(self, classes: ClassStatistics) -> None:
        """Where they are due."""
        due = self.is_due(classes.examples.sum(1))
        count, examples = (
            classes.examples[..., None],
            np.maximum(classes.examples.sum(1), 1)[:, None].astype(np.float64),
        )
        centre, lessons = classes.everything / examples, self.lessons[:, None]
        apart = classes.total / np.maximum(count, 1) - centre[:, None]
        between = (np.square(apart) * count).sum(1) / examples
        variance = self.within / np.maximum(lessons, 1e-9) + between * LESSONS_OF_MEANS / (lessons + LESSONS_OF_MEANS)
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
        self.scale = np.where(due[:, None], scale, self.scale)
        self.examples = np.where(due, classes.examples.sum(1), self.examples)

    # --- durable numbers of a single memory ---------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name)[0].tolist() for name in ("away", "within", "lessons", "scale", "examples")}

    @staticmethod
    def from_dict(columns: int, kept: Mapping[str, Any] | None) -> Spread:
        """As it was kept; as it is at first if nothing was."""
        spread = Spread(columns)
        if kept and len(kept["scale"]) == columns:
            for name, numbers in kept.items():
                setattr(spread, name, np.array([numbers]))
        return spread
