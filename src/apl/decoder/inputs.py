"""What every trained decoder reads: one vector per recalled row, and one that belongs to no row."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from apl.memory import Neighbours


class NeighbourInputs(nn.Module):
    """[e_t, e_m, l_m, d_m] of each neighbour, projected to the hidden width; in front, a state for "none".

    Deviation: the "none" state is not in the paper. It gives attention something to look at when the memory
    is empty, and a place to say that no recalled row fits. With several key columns (`key_widths`) each row also
    tells its distance by every one of them: which key recalled it cannot be seen otherwise.
    """

    def __init__(
        self, width: int, label_width: int, hidden: int, compare: bool, key_widths: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.width = width
        self.compare = compare
        self.key_widths = key_widths
        self.project = nn.Linear((3 if compare else 2) * width + label_width + 1 + len(key_widths), hidden)
        self.none = nn.Linear(width, hidden)
        self.none_distance = nn.Parameter(torch.tensor(1.0))

    def forward(
        self,
        query: Float[Tensor, "query embed"],
        neighbours: Neighbours,
        labels: Float[Tensor, "query neighbours label"],
    ) -> Float[Tensor, "query states hidden"]:
        recalled = neighbours.columns["embedding"]
        asked = query[:, None].expand_as(recalled)
        distance = self.scaled_distance(neighbours)
        parts = [asked, recalled, labels, distance[..., None]]
        if self.compare:
            parts.append((asked - recalled).abs())
        if self.key_widths:
            apart = (asked - recalled).split(self.key_widths, -1)
            parts += [difference.square().mean(-1, keepdim=True) for difference in apart]
        return torch.cat([self.none(query)[:, None], self.project(torch.cat(parts, -1))], 1)

    def scaled_distance(self, neighbours: Neighbours) -> Float[Tensor, "query neighbours"]:
        """Distances of order one, whatever the width of the embedding."""
        return neighbours.distance / self.width**0.5

    def mask(self, neighbours: Neighbours) -> Bool[Tensor, "query states"]:
        return nn.functional.pad(neighbours.mask, (1, 0), value=True)

    def attention(self, neighbours: Neighbours, sharpness: Tensor) -> Float[Tensor, "query states"]:
        """Softmax of the negative distance; "none" has a learnt distance."""
        distance = self.scaled_distance(neighbours)
        distance = torch.cat([self.none_distance.expand(len(distance), 1), distance], 1)
        return (-sharpness * distance).masked_fill(~self.mask(neighbours), -torch.inf).softmax(-1)
