"""Keys whose magnitude counts: the unit of each column of a table, and a sphere on which positions have directions.

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

FORGETTING = 0.99
"""The weight of an example after the next one."""
MOST_COLUMNS = 128
"""Longer vectors have one unit for all their numbers."""
EXAMPLES_OF_MEANS = 3.0
"""The class means count as much as this number of examples."""
LEAST_SPREAD = 0.5
"""The least part of the squared distance at which examples lay from the mean of everything."""
ROUNDING = 1e-13
"""A variance below this part of the mean's square is none."""


@dataclass(frozen=True)
class ColumnUnits:
    """The units of the positions in each of several parallel memories, and what they are learnt from."""

    away: Float[np.ndarray, "episode column"]
    """Discounted sum over past examples of the squared distance from the mean of everything."""
    within: Float[np.ndarray, "episode column"]
    """The same of the squared distance from the mean of their class."""
    seen: Float[np.ndarray, " episode"]
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
            kept * self.seen + number,
            self.scale,
            self.examples,
        )

    def usual_away(self, scale: Float[np.ndarray, "episode 1 column"] | None) -> Float[np.ndarray, " episode"]:
        """The mean squared distance of examples from the mean of everything; 0 before the first."""
        away = self.away if scale is None else self.away * np.square(scale[:, 0])
        usual: np.ndarray = away.sum(1) / np.maximum(self.seen, 1e-9)
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
        centre, seen = classes.everything / examples, self.seen[:, None]
        apart = classes.total / np.maximum(count, 1) - centre[:, None]
        between = (np.square(apart) * count).sum(1) / examples
        by_means = EXAMPLES_OF_MEANS / (seen + EXAMPLES_OF_MEANS)
        variance = self.within / np.maximum(seen, 1e-9) + between * by_means
        varied = variance > ROUNDING * np.square(centre)
        log, columns = np.log(np.where(varied, variance, 1)), np.maximum(varied.sum(1, keepdims=True), 1)
        usual = log.sum(1, keepdims=True) / columns
        differ = (np.square(log - usual) * varied).sum(1, keepdims=True) / columns
        shown = np.maximum(seen + (count > 0).sum(1) - 1, 1)
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


@dataclass(frozen=True)
class Sphere:
    """Positions placed on a sphere, where the cosine falls with the distance.

    In a space of a few dimensions how far out a point lies says as much as in which direction. One more coordinate, of the size
    of the spread of everything, puts points on a sphere around a point beside their centre. Where all lie equally far out,
    cosines become (1 + cosine) / 2. The unit of length is that spread.
    """

    centre: Float[np.ndarray, "episode embed"]
    spread: Float[np.ndarray, " episode"]

    @staticmethod
    def around(classes: ClassTotals, within: float, usual_away: Float[np.ndarray, " episode"]) -> Sphere:
        """`usual_away`: the squared distance at which examples usually lay from the mean of everything."""
        examples = np.maximum(classes.examples.sum(1), 1)
        centre = classes.everything / examples[:, None]
        # The class means show the spread between classes; all of it is larger by what is within them.
        apart = classes.total - classes.examples[..., None] * centre[:, None]
        squares = np.vecdot(apart, apart) / np.maximum(classes.examples, 1)
        between = squares.sum(1) / examples / (1 - within)
        # Classes around one another have means that coincide: then the distance of examples counts.
        # Where all is one point, rounding is no spread.
        least = 1e-13 * np.vecdot(centre, centre) + 1e-36
        return Sphere(centre, np.sqrt(np.maximum(np.maximum(between, LEAST_SPREAD * usual_away), least)))

    def place(self, keys: Float[np.ndarray, "episode *any embed"]) -> Float[np.ndarray, "episode *any lifted"]:
        between = (len(keys), *[1] * (keys.ndim - 2))
        placed = np.ones((*keys.shape[:-1], keys.shape[-1] + 1))
        np.subtract(keys, self.centre.reshape(*between, -1), out=placed[..., :-1])
        placed[..., :-1] /= self.spread.reshape(*between, 1)
        return placed

    def place_classes(self, classes: ClassTotals) -> ClassTotals:
        """Their centre is the origin."""
        total = np.empty((*classes.total.shape[:2], classes.total.shape[2] + 1))
        total[..., :-1] = classes.total - classes.examples[..., None] * self.centre[:, None]
        total[..., :-1] /= self.spread[:, None, None]
        total[..., -1] = classes.examples
        return ClassTotals(total, classes.examples, np.zeros_like(total[:, 0]), np.vecdot(total, total))
