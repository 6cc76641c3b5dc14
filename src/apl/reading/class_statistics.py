"""What the readers know of classes: derived from the class totals of a memory, once for all queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.memory import ClassTotals

LEAST_SPREAD = 0.5
"""Of positions: the least part of the squared distance at which examples lay from the mean of everything."""


@dataclass(frozen=True)
class ClassStatistics:
    """Sums over the examples of each class, in the space in which keys are compared, and what follows from them."""

    total: Float[np.ndarray, "episode class embed"]
    examples: Float[np.ndarray, "episode class"]
    at_least_one: Float[np.ndarray, "episode 1 class"]
    """The number of examples of each class, 1 where there are none."""
    known: Bool[np.ndarray, "episode class"]
    number: Int[np.ndarray, " episode"]
    """Number of known classes."""
    square: Float[np.ndarray, "episode class"]
    """The square of the length of each total."""
    centre: Float[np.ndarray, "episode embed"]
    """The mean of everything, drawn a little towards zero, so that a single example is not its own centre."""
    centre_square: Float[np.ndarray, " episode"]
    along_centre: Float[np.ndarray, "episode 1 class"]
    """The product of each total with the centre."""
    length: Float[np.ndarray, "episode 1 class"]
    """The distance of each class mean from the centre."""

    @staticmethod
    def of(totals: ClassTotals) -> ClassStatistics:
        # Totals change in place when the memory does; a prediction keeps the examples it was made from.
        examples = totals.examples.copy()
        known, at_least_one = examples > 0, np.maximum(examples, 1)[:, None]
        centre = (totals.everything / (examples.sum(1)[:, None] + 1)).astype(np.float32)
        centre_square = np.vecdot(centre, centre).astype(np.float64)
        along_centre = (totals.total @ centre[..., None].astype(np.float64))[:, None, :, 0]
        square = totals.square[:, None] / np.square(at_least_one) - 2 * along_centre / at_least_one
        length = np.sqrt(np.maximum(square + centre_square[:, None, None], 1e-12))
        number = np.count_nonzero(known, axis=1)
        return ClassStatistics(
            totals.total,
            examples,
            at_least_one,
            known,
            number,
            totals.square,
            centre,
            centre_square,
            along_centre,
            length,
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
