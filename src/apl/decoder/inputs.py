"""What every decoder reads: the recalled rows as tensors; and how a trained one reads them: one vector per row, and one
that belongs to no row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Neighbourhood:
    """The rows recalled for each query, nearest first, on the network's side of the border."""

    embedding: Float[Tensor, "query neighbours embed"]
    distance: Float[Tensor, "query neighbours"]
    """From the query, which may carry gradient; everything else here is constant."""
    mask: Bool[Tensor, "query neighbours"]
    """Where there is a row at all."""
    same: Bool[Tensor, "query neighbours neighbours"]
    """Which rows share a label; False where masked."""
    log_elsewhere: Float[Tensor, " query"]
    """Log of the part of "none of these" that has any class to go to."""
    label: Int[Tensor, "query neighbours"] | None = None
    """Needed by fixed labels alone."""
    count: Float[Tensor, "query neighbours"] | None = None
    """How many examples stand behind each row, for decoders that ask."""

    def class_distance(self, query: Float[Tensor, "query embed"]) -> Float[Tensor, "query neighbours"]:
        """The query's distance from the mean of the recalled rows that share the row's label.

        A mean is shorter than what it is the mean of; it is drawn out to their length, so that classes with few
        rows and with many are compared fairly. Rows are constant: gradient flows into the query alone.
        """
        alike = self.same.to(self.embedding.dtype)
        if self.count is not None:
            alike = alike * self.count[:, None]
        alike = alike / alike.sum(-1, keepdim=True).clamp(min=1)
        mean = alike @ self.embedding
        length = alike @ torch.linalg.vector_norm(self.embedding, dim=-1, keepdim=True)
        mean = mean * (length / torch.linalg.vector_norm(mean, dim=-1, keepdim=True).clamp(min=1e-6))
        return torch.linalg.vector_norm(query[:, None] - mean, dim=-1).masked_fill(~self.mask, 0)


class NeighbourInputs(nn.Module):
    """[e_t, e_m, l_m, d_m] of each neighbour, projected to the hidden width; in front, a state for "none".

    Deviation: the "none" state is not in the paper. It gives attention something to look at when the memory
    is empty, and a place to say that no recalled row fits. With several key columns (`key_widths`) each row also
    tells its distance by every one of them: which key recalled it cannot be seen otherwise. With `class_means` it
    tells the query's distance from the mean of its class too, and with `counts` how many examples it stands for.
    """

    def __init__(
        self,
        width: int,
        label_width: int,
        hidden: int,
        compare: bool,
        key_widths: tuple[int, ...] = (),
        class_means: bool = False,
        counts: bool = False,
    ) -> None:
        super().__init__()
        self.width = width
        self.compare = compare
        self.key_widths = key_widths
        self.class_means = class_means
        self.counts = counts
        numbers = 1 + len(key_widths) + class_means + counts
        self.project = nn.Linear((3 if compare else 2) * width + label_width + numbers, hidden)
        self.none = nn.Linear(width, hidden)
        self.none_distance = nn.Parameter(torch.tensor(1.0))

    def forward(
        self,
        query: Float[Tensor, "query embed"],
        neighbours: Neighbourhood,
        labels: Float[Tensor, "query neighbours label"],
    ) -> Float[Tensor, "query states hidden"]:
        recalled = neighbours.embedding
        asked = query[:, None].expand_as(recalled)
        parts = [asked, recalled, labels, self.scaled_distance(neighbours)[..., None]]
        if self.compare:
            parts.append((asked - recalled).abs())
        if self.key_widths:
            apart = (asked - recalled).split(self.key_widths, -1)
            parts += [difference.square().mean(-1, keepdim=True) for difference in apart]
        if self.class_means:
            parts.append(neighbours.class_distance(query)[..., None] / self.width**0.5)
        if self.counts:
            # Last, so that a decoder trained without can start one with.
            parts.append(neighbours.count.clamp(min=1).log()[..., None])
        return torch.cat([self.none(query)[:, None], self.project(torch.cat(parts, -1))], 1)

    def scaled_distance(self, neighbours: Neighbourhood) -> Float[Tensor, "query neighbours"]:
        """Distances of order one, whatever the width of the embedding."""
        return neighbours.distance / self.width**0.5

    def mask(self, neighbours: Neighbourhood) -> Bool[Tensor, "query states"]:
        return nn.functional.pad(neighbours.mask, (1, 0), value=True)

    def attention(self, neighbours: Neighbourhood, sharpness: Tensor) -> Float[Tensor, "query states"]:
        """Softmax of the negative distance; "none" has a learnt distance."""
        distance = self.scaled_distance(neighbours)
        distance = torch.cat([self.none_distance.expand(len(distance), 1), distance], 1)
        return (-sharpness * distance).masked_fill(~self.mask(neighbours), -torch.inf).softmax(-1)
