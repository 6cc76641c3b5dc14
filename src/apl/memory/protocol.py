"""What a learner needs of a memory, wherever its rows live: arrays in, arrays out.

A memory is the paper's database (section 2.1): rows with named columns, recalled by nearest key. Rows have handles: a position
in RAM, an id in a store. `write` returns them, `Neighbours.row` names the recalled rows by them, and `merge` and `remove`
take them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.config import Metric

LABEL = "label"
COUNT = "count"
"""The column with the number of examples that a row is the mean of. Every memory has it."""

Rows = Mapping[str, np.ndarray]
"""Cells by column, each `[episode, query, *cell]`."""


@dataclass(frozen=True)
class Column:
    """The type of one column: the shape of a cell and its dtype."""

    shape: tuple[int, ...] = ()
    dtype: type = np.float32


@dataclass(frozen=True)
class Neighbours:
    """The rows recalled for each query, nearest first. `mask` is False where there was no row to recall."""

    columns: Mapping[str, np.ndarray]
    """Every column of the recalled rows, each `[episode, query, neighbours, *cell]`; zeros where masked."""
    distance: Float[np.ndarray, "episode query neighbours"]
    mask: Bool[np.ndarray, "episode query neighbours"]
    row: Int[np.ndarray, "episode query neighbours"]
    """Handle of the row in its memory; -1 where masked."""
    compared: Bool[np.ndarray, "neighbours embed"] | None = None
    """Which numbers of the embedding the distance is over, where it is not over all of them."""

    @property
    def k(self) -> int:
        return int(self.distance.shape[-1])

    @cached_property
    def examples(self) -> Float[np.ndarray, "episode query neighbours"]:
        """Number of examples behind each row."""
        return self.columns[COUNT] if COUNT in self.columns else self.mask.astype(np.float32)

    @cached_property
    def same(self) -> Bool[np.ndarray, "episode query neighbours neighbours"]:
        """Which rows share a label: all that a decoder with neighbourhood labels needs to know of labels."""
        label = np.where(self.mask, self.columns[LABEL], -1)
        same: np.ndarray = (label[..., :, None] == label[..., None, :]) & self.mask[..., None]
        return same

    @cached_property
    def is_first(self) -> Bool[np.ndarray, "episode query neighbours"]:
        """Which neighbours are the nearest of their label."""
        first: np.ndarray = (self.same.argmax(-1) == np.arange(self.k)) & self.mask
        return first

    def nearest_of(self, label: Int[np.ndarray, "episode query"]) -> Int[np.ndarray, "episode query"]:
        """The nearest recalled row of this class, for each query; -1 if none was recalled."""
        same = (self.mask & (self.columns[LABEL] == label[..., None])).reshape(-1, self.k)
        first, query = same.argmax(-1), np.arange(len(same))
        return np.where(same[query, first], self.row.reshape(-1, self.k)[query, first], -1).reshape(label.shape)

    @staticmethod
    def join(parts: list[Neighbours], widths: list[int]) -> Neighbours:
        """Neighbours recalled through different key columns, side by side. The embedding is those columns in a row."""
        if len(parts) == 1:
            return parts[0]

        def beside(arrays: list[np.ndarray]) -> np.ndarray:
            return np.concatenate(arrays, 2)

        columns = {name: beside([part.columns[name] for part in parts]) for name in parts[0].columns}
        starts = np.cumsum([0, *widths])
        place = np.arange(starts[-1])
        compared = [
            np.tile((starts[i] <= place) & (place < starts[i + 1]), (part.k, 1)) for i, part in enumerate(parts)
        ]
        return Neighbours(
            columns,
            beside([part.distance for part in parts]),
            beside([part.mask for part in parts]),
            beside([part.row for part in parts]),
            np.concatenate(compared),
        )


@dataclass(frozen=True)
class ClassTotals:
    """Sums over the examples behind the rows of a memory, class by class, in 64 bits."""

    total: Float[np.ndarray, "episode class embed"]
    """The sum of the keys as the metric sees them, each times its count."""
    examples: Float[np.ndarray, "episode class"]
    everything: Float[np.ndarray, "episode embed"]
    """The sum of all totals."""
    square: Float[np.ndarray, "episode class"]
    """The square of the length of each total."""


@runtime_checkable
class ReadingState(Protocol):
    """What a reading has learnt about one memory (`apl.reading`). A value: what is learnt becomes another state. The
    memory keeps it beside its rows."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""


@runtime_checkable
class Memory(Protocol):
    """What the learner needs of a memory."""

    episodes: int
    keys: tuple[str, ...]
    metric: Metric
    state: ReadingState | None

    @property
    def scale(self) -> Float[np.ndarray, "episode 1 embed"] | None:
        """Factors by which the columns of the key are multiplied before they are compared; None: 1."""

    @property
    def version(self) -> int:
        """Grows whenever rows change."""

    @property
    def local(self) -> bool:
        """True if all rows are in this process: then `rescale` is possible, and `version` counts every change."""

    def __len__(self) -> int:
        """Rows of the fullest episode."""

    def nearest(self, key: str, query: Float[np.ndarray, "episode query embed"], k: int) -> Neighbours:
        """The k nearest rows by one key column, with true distances. Fewer rows than k are no error."""

    def write(
        self,
        rows: Rows,
        chosen: Bool[np.ndarray, "episode query"],
        details: Sequence[Any] | None = None,
        surprise_nats: Float[np.ndarray, "episode query"] | None = None,
    ) -> Int[np.ndarray, "episode query"]:
        """Append the chosen rows; returns their handles, -1 for those not chosen.

        `details` (one value per query) and the surprise at the moment of writing are recorded by memories that last.
        """

    def merge(self, rows: Rows, at: Int[np.ndarray, "episode query"], details: Sequence[Any] | None = None) -> None:
        """Merge examples, given by their key columns, into rows (-1: none): the running mean of all examples."""

    def remove(self, at: Int[np.ndarray, "episode row"]) -> None:
        """Forget rows (-1: none). The others keep their age order."""

    def column(self, name: str) -> np.ndarray:
        """One column, `[episode, rows, *cell]`; rows beyond an episode's count are undefined. A memory on a server returns a
        sample of its rows, the same for every column."""

    def classes_stored(self, way: int) -> Bool[np.ndarray, "episode way"]:
        """Which of the classes 0..way-1 have rows."""

    def class_totals(self, way: int | None = None) -> ClassTotals:
        """Of the classes 0..way-1, by default of all. Needs a single key column."""

    def rescale(self, scale: Float[np.ndarray, "episode 1 embed"] | None) -> None:
        """Compare keys with their columns multiplied by this from now on."""
