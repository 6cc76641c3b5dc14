"""The recalled rows as tensors, and how trained decoders read them: one vector per row, and one that belongs to no row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from apl.config import DecoderConfig


@dataclass(frozen=True)
class Neighbourhood:
    """The rows recalled for each query, nearest first, as tensors."""

    embedding: Float[Tensor, "query neighbours embed"]
    distance: Float[Tensor, "query neighbours"]
    """From the query. May carry gradient; everything else here is constant."""
    mask: Bool[Tensor, "query neighbours"]
    """True where there is a row."""
    same: Bool[Tensor, "query neighbours neighbours"]
    """Which rows share a label; False where masked."""
    log_elsewhere: Float[Tensor, " query"]
    """Log of the part of "none of these" that has a class to go to."""
    label: Int[Tensor, "query neighbours"] | None = None
    """Required by fixed labels."""

    def class_distance(self, query: Float[Tensor, "query embed"]) -> Float[Tensor, "query neighbours"]:
        """The query's distance from the mean of the recalled rows that share the row's label.

        A mean is shorter than its terms, so it is scaled to their length; otherwise classes with many rows would seem
        nearer. Rows are constant: gradient flows into the query alone.
        """
        alike = self.same.to(self.embedding.dtype)
        alike = alike / alike.sum(-1, keepdim=True).clamp(min=1)
        mean = alike @ self.embedding
        length = alike @ torch.linalg.vector_norm(self.embedding, dim=-1, keepdim=True)
        mean = mean * (length / torch.linalg.vector_norm(mean, dim=-1, keepdim=True).clamp(min=1e-6))
        distance: Tensor = torch.linalg.vector_norm(query[:, None] - mean, dim=-1)
        return distance.masked_fill(~self.mask, 0)


class NeighbourInputs(nn.Module):
    """The concatenated inputs of each neighbour, projected to the hidden width; in front of them, a state for "none".

    As in the appendix, relational blocks read {e_t, e_m, l_m, d_m}, slots of the working memory {e_m, l_m, d_m} and steps
    of the LSTM [e_m, l_m].

    Deviation: the projection, which gives the paper's hidden width. Deviation: the "none" state, a projection of the query.
    Attention can look at it when the memory is empty, and it can say that no recalled row fits. Release: missing
    neighbours have a label of their own instead. Deviation: distances are divided by the square root of the
    embedding's width, so that they are of order one.
    """

    def __init__(self, width: int, config: DecoderConfig) -> None:
        super().__init__()
        self.width = width
        self.query, self.distance = config.kind == "relational", config.kind != "lstm"
        self.compare, self.class_means = config.compare, config.class_means
        vectors, numbers = 1 + self.query + self.compare, self.distance + self.class_means
        self.project = nn.Linear(vectors * width + config.label_width + numbers, config.hidden)
        self.none = nn.Linear(width, config.hidden)
        self.none_distance = nn.Parameter(torch.tensor(1.0))

    def forward(
        self,
        query: Float[Tensor, "query embed"],
        neighbours: Neighbourhood,
        labels: Float[Tensor, "query neighbours label"],
    ) -> Float[Tensor, "query states hidden"]:
        recalled = neighbours.embedding
        asked = query[:, None].expand_as(recalled)
        parts = [asked] if self.query else []
        parts += [recalled, labels]
        if self.distance:
            parts.append(self.scaled_distance(neighbours)[..., None])
        if self.compare:
            parts.append((asked - recalled).abs())
        if self.class_means:
            parts.append(neighbours.class_distance(query)[..., None] / math.sqrt(self.width))
        return torch.cat([self.none(query)[:, None], self.project(torch.cat(parts, -1))], 1)

    def scaled_distance(self, neighbours: Neighbourhood) -> Float[Tensor, "query neighbours"]:
        return neighbours.distance / math.sqrt(self.width)

    def mask(self, neighbours: Neighbourhood) -> Bool[Tensor, "query states"]:
        return nn.functional.pad(neighbours.mask, (1, 0), value=True)

    def attention(self, neighbours: Neighbourhood, sharpness: Tensor) -> Float[Tensor, "query states"]:
        """Softmax of the negative distance; "none" has a learnt distance.

        Deviation: `sharpness` is learnt; the paper has a plain softmax.
        """
        distance = self.scaled_distance(neighbours)
        distance = torch.cat([self.none_distance.expand(len(distance), 1), distance], 1)
        return (-sharpness * distance).masked_fill(~self.mask(neighbours), -torch.inf).softmax(-1)
