"""Which row goes when a memory is full: the one that matters least.

A row matters for what the others would get wrong without it. Leave it out, and a query at its place is answered by
the nearest of the rest: surely right if a row of its own class lies much nearer than any row of another class. So
rows are ranked by

    distance to the nearest other row of the same class / distance to the nearest row of another class

times the number of examples behind them, and the smallest goes; among equals, the oldest. The last row of a class has no other
(ratio infinite), so a class is lost only when every class is down to one row. It is the surprise of the controller looked at
backwards, with a nearest-neighbour decoder: the row that would surprise least.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from apl.memory.protocol import COUNT, LABEL
from apl.memory.ram import RamMemory
from apl.metric import distances, measured

ROWS_AT_ONCE = 256
MOST_COMPARED = 2048
"""Up to this number of rows each is compared with every other; in larger memories a sample of `SAMPLED` stands for all."""
SAMPLED = 32


class Eviction:
    """Chooses the row to go of a single memory in RAM. Small memories keep their comparisons from one choice to the next."""

    def __init__(self, ram: RamMemory) -> None:
        self.ram = ram
        self.redundancy: Redundancy | None = None
        self._gone: tuple[np.ndarray, np.ndarray] | None = None
        self._turn = 0

    def victim(self, among: Bool[np.ndarray, " row"]) -> int:
        """The position of the row to go, of those allowed."""
        labels, examples = self.ram.column(LABEL)[0], self.ram.column(COUNT)[0].astype(np.int64)
        if len(labels) > MOST_COMPARED:
            self.redundancy = None
            self._turn += 1
            return least_important_of_some(self._keys(), labels, examples, among, self._turn)
        if self.redundancy is None:
            self.redundancy = Redundancy(self._keys(), labels)
        return self.redundancy.least_important(among, examples)

    def added(self) -> None:
        """A row was appended."""
        if self.redundancy is not None:
            self.redundancy.added(self._keys(), self.ram.column(LABEL)[0])

    def before_removing(self, places: list[int]) -> None:
        """Rows are about to go."""
        if self.redundancy is not None:
            gone = np.zeros(len(self.ram), bool)
            gone[places] = True
            self._gone = gone, self._keys()[gone]

    def removed(self) -> None:
        """They went."""
        if self.redundancy is not None and self._gone is not None:
            gone, keys = self._gone
            self.redundancy.removed(gone, self._keys(), self.ram.column(LABEL)[0], keys)
        self._gone = None

    def forget(self) -> None:
        """Compare anew: keys or their scale have changed."""
        self.redundancy = None

    def _keys(self) -> Float[np.ndarray, "row embed"]:
        """Keys as they are compared."""
        keys = self.ram.column(self.ram.keys[0])[0]
        return keys if self.ram.scale is None else measured(keys, self.ram.metric, self.ram.scale[0])


class Redundancy:
    """For each row, how well the others stand in for it. Kept up to date row by row."""

    def __init__(self, keys: Float[np.ndarray, "row embed"], labels: Int[np.ndarray, " row"]) -> None:
        self._same = np.full(len(keys), np.inf, np.float32)
        self._other = np.full(len(keys), np.inf, np.float32)
        self._measure(keys, labels, np.arange(len(keys)))

    def __len__(self) -> int:
        return len(self._same)

    def added(self, keys: Float[np.ndarray, "row embed"], labels: Int[np.ndarray, " row"]) -> None:
        """The last of these rows is new."""
        distance = distances(keys[-1:], keys[:-1])[0]
        same = labels[:-1] == labels[-1]
        self._same = np.append(np.where(same, np.minimum(self._same, distance), self._same), np.float32(np.inf))
        self._other = np.append(np.where(same, self._other, np.minimum(self._other, distance)), np.float32(np.inf))
        self._same[-1], self._other[-1] = distance[same].min(initial=np.inf), distance[~same].min(initial=np.inf)

    def removed(
        self,
        gone: Bool[np.ndarray, " before"],
        keys: Float[np.ndarray, "row embed"],
        labels: Int[np.ndarray, " row"],
        gone_keys: Float[np.ndarray, "gone embed"],
    ) -> None:
        """These rows went; `keys` and `labels` are what is left."""
        self._same, self._other = self._same[~gone], self._other[~gone]
        if not len(keys) or not len(gone_keys):
            return
        reach = np.min([distances(key[None], keys)[0] for key in gone_keys], axis=0)
        # Only those whose nearest row may be among the gone ones have to look around again.
        slack = 1 + 1e-4
        self._measure(keys, labels, ((reach <= self._same * slack) | (reach <= self._other * slack)).nonzero()[0])

    def least_important(self, among: Bool[np.ndarray, " row"], examples: Int[np.ndarray, " row"]) -> int:
        """The position of the row to go, of those allowed."""
        allowed = among.nonzero()[0]
        return int(allowed[(ratios(self._same, self._other) * examples)[allowed].argmin()])

    def _measure(self, keys: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> None:
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE]
            self._same[part], self._other[part] = _nearest(keys, labels, part)


def least_important_of_some(
    keys: Float[np.ndarray, "row embed"],
    labels: Int[np.ndarray, " row"],
    examples: Int[np.ndarray, " row"],
    among: Bool[np.ndarray, " row"],
    turn: int,
) -> int:
    """The row to go of a large memory, of some of those allowed: each turn looks at others, evenly spread."""
    allowed = among.nonzero()[0]
    if len(allowed) > SAMPLED:
        step = len(allowed) / SAMPLED
        allowed = allowed[((np.arange(SAMPLED) + turn % 61 / 61) * step).astype(int)]
    within, between = _nearest(keys, labels, allowed)
    return int(allowed[(ratios(within, between) * examples[allowed]).argmin()])


def _nearest(
    keys: Float[np.ndarray, "row embed"], labels: Int[np.ndarray, " row"], some: Int[np.ndarray, " some"]
) -> tuple[Float[np.ndarray, " some"], Float[np.ndarray, " some"]]:
    """How far the nearest other row of the same class is from some of the rows, and the nearest row of another class."""
    distance = distances(keys[some], keys)
    distance[np.arange(len(some)), some] = np.inf
    same = labels[some][:, None] == labels
    return np.where(same, distance, np.inf).min(1), np.where(same, np.inf, distance).min(1)


def ratios(same: Float[np.ndarray, " row"], other: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    both = np.isinf(same) & np.isinf(other)
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = np.where(both, np.inf, same / other.clip(np.finfo(np.float32).tiny))
    # With a single class there is no other: then the closest pair goes first.
    return np.where(np.isinf(other) & ~both, same, ratio)
