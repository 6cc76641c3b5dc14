"""Which row goes when a memory is full: the one that matters least.

A row matters for what the others would get wrong without it. Leave it out, and a query at its place is answered by
the nearest of the rest: surely right if a row of its own class lies much nearer than any row of another class. So
rows are ranked by

    distance to the nearest other row of the same class / distance to the nearest row of another class

and the smallest ratio goes; among equals, the oldest. The last row of a class has no other (ratio infinite), so a
class is lost only when every class is down to one row. It is the surprise of the controller looked at backwards,
with a nearest-neighbour decoder: the row that would surprise least.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Redundancy:
    """For each row of a memory, how well the others stand in for it. Kept up to date row by row."""

    def __init__(self, keys: Float[Tensor, "row embed"], labels: Int[Tensor, " row"]) -> None:
        self._same = torch.full((len(keys),), torch.inf)
        self._other = torch.full((len(keys),), torch.inf)
        self._measure(keys, labels, torch.arange(len(keys)))

    def __len__(self) -> int:
        return len(self._same)

    def added(self, keys: Float[Tensor, "row embed"], labels: Int[Tensor, " row"]) -> None:
        """The last of these rows is new."""
        distance = torch.linalg.vector_norm(keys - keys[-1], dim=1)[:-1]
        same = labels[:-1] == labels[-1]
        self._same = torch.where(same, torch.minimum(self._same, distance), self._same)
        self._other = torch.where(same, self._other, torch.minimum(self._other, distance))

        def nearest(mask: Tensor) -> Tensor:
            return distance[mask].min()[None] if bool(mask.any()) else torch.tensor([torch.inf])

        self._same, self._other = torch.cat([self._same, nearest(same)]), torch.cat([self._other, nearest(~same)])

    def removed(
        self,
        gone: Bool[Tensor, " before"],
        keys: Float[Tensor, "row embed"],
        labels: Int[Tensor, " row"],
        gone_keys: Float[Tensor, "gone embed"],
    ) -> None:
        """These rows went; `keys` and `labels` are what is left."""
        self._same, self._other = self._same[~gone], self._other[~gone]
        if not len(keys):
            return
        reach = torch.cdist(keys, gone_keys, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
        # Only those whose nearest row may be among the gone ones have to look around again.
        slack = 1 + 1e-5
        self._measure(keys, labels, ((reach <= self._same * slack) | (reach <= self._other * slack)).nonzero()[:, 0])

    def least_important(self, among: Bool[Tensor, " row"]) -> int:
        """The position of the row to go, of those allowed."""
        both = torch.isinf(self._same) & torch.isinf(self._other)
        ratio = (self._same / self._other.clamp(min=torch.finfo(torch.float32).tiny)).masked_fill(both, torch.inf)
        # With a single class there is no other: then the closest pair goes first.
        alone = torch.isinf(self._other) & ~both
        ratio = torch.where(alone, self._same, ratio)
        allowed = among.nonzero()[:, 0]
        return int(allowed[ratio[allowed].argmin()])

    def _measure(self, keys: Tensor, labels: Tensor, rows: Tensor) -> None:
        for part in rows.split(256):
            distance = torch.cdist(keys[part], keys, compute_mode="donot_use_mm_for_euclid_dist")
            distance[torch.arange(len(part)), part] = torch.inf
            same = labels[part][:, None] == labels
            self._same[part] = distance.masked_fill(~same, torch.inf).amin(1)
            self._other[part] = distance.masked_fill(same, torch.inf).amin(1)
