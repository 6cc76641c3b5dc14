"""What every trained decoder reads: one vector per recalled row, and one that belongs to no row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from apl.memory import Neighbours


def with_class_distance(query: Float[Tensor, "query embed"], neighbours: Neighbours) -> Neighbours:
    """Another column: the query's distance from the mean of the recalled rows that share the row's label.

    A mean is shorter than what it is the mean of; it is drawn out to their length, so that classes with few
    rows and with many are compared fairly. Rows are constant: gradient flows into the query alone.
    """
    rows, mask = neighbours.columns["embedding"].numpy(), neighbours.mask.numpy()
    label = np.where(mask, neighbours.columns["label"].numpy(), -1)
    alike = (label[:, :, None] == label[:, None]).astype(np.float32)
    alike /= alike.sum(-1, keepdims=True)
    mean = alike @ rows
    mean *= alike @ lengths(rows) / lengths(mean).clip(1e-6)
    distance = (query[:, None] - torch.from_numpy(mean)).norm(dim=-1)
    if not mask.all():
        distance = distance.masked_fill(~neighbours.mask, 0)
    return replace(neighbours, columns={**neighbours.columns, "class_distance": distance})


def lengths(vectors: Float[np.ndarray, "query row embed"]) -> Float[np.ndarray, "query row 1"]:
    return np.sqrt(np.einsum("qrd,qrd->qr", vectors, vectors))[..., None]


class NeighbourInputs(nn.Module):
    """[e_t, e_m, l_m, d_m] of each neighbour, projected to the hidden width; in front, a state for "none".

    Deviation: the "none" state is not in the paper. It gives attention something to look at when the memory
    is empty, and a place to say that no recalled row fits. With several key columns (`key_widths`) each row also
    tells its distance by every one of them: which key recalled it cannot be seen otherwise. With `class_means` it
    tells the query's distance from the mean of its class too (see `with_class_distance`).
    """

    def __init__(
        self,
        width: int,
        label_width: int,
        hidden: int,
        compare: bool,
        key_widths: tuple[int, ...] = (),
        class_means: bool = False,
    ) -> None:
        super().__init__()
        self.width = width
        self.compare = compare
        self.key_widths = key_widths
        self.class_means = class_means
        numbers = 1 + len(key_widths) + class_means
        self.project = nn.Linear((3 if compare else 2) * width + label_width + numbers, hidden)
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
        if self.class_means:
            parts.append(neighbours.columns["class_distance"][..., None] / self.width**0.5)
        return torch.cat([self.none(query)[:, None], self.project(torch.cat(parts, -1))], 1)

    def scaled_distance(self, neighbours: Neighbours) -> Float[Tensor, "query neighbours"]:
        """Distances of order one, whatever the width of the embedding."""
        return neighbours.distance / self.width**0.5

    def mask(self, neighbours: Neighbours) -> Bool[Tensor, "query states"]:
        return nn.functional.pad(neighbours.mask, (1, 0), value=True)

    def attention_bias(self, neighbours: Neighbours) -> Float[Tensor, "query 1 1 states"] | None:
        """What to add to attention scores so that empty places are not looked at; None if there are none."""
        if neighbours.mask.numpy().all():
            return None
        mask = self.mask(neighbours)
        return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)[:, None, None]

    def attention(self, neighbours: Neighbours, sharpness: Tensor) -> Float[Tensor, "query states"]:
        """Softmax of the negative distance; "none" has a learnt distance."""
        distance = self.scaled_distance(neighbours)
        distance = torch.cat([self.none_distance.expand(len(distance), 1), distance], 1)
        return (-sharpness * distance).masked_fill(~self.mask(neighbours), -torch.inf).softmax(-1)
