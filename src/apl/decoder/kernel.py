"""Decoders without weights, shown beside every result: a distance-weighted kernel, the nearest neighbour, and
the nearest class mean.

All answer for any number of classes. An example of no recalled class is allowed for by a fixed share.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from apl.decoder.labels import Posterior, share_out
from apl.memory import Neighbours


class KernelDecoder(nn.Module):
    """Matching by a Gaussian kernel of the distance (Vinyals et al. 2016 with a euclidean kernel)."""

    SHARPNESS = 16.0
    """On squared distances divided by the width of the embedding."""
    NONE_DISTANCE = 1.1
    """A row at this distance (scaled as above) counts as much as "none of these"."""

    def forward(self, query: Float[Tensor, "query embed"], neighbours: Neighbours, way: int) -> Posterior:
        scaled = neighbours.distance.square() / query.shape[-1]
        none = torch.full((len(query),), -self.SHARPNESS * self.NONE_DISTANCE**2)
        return share_out(-self.SHARPNESS * scaled, none, neighbours, way)


class ClassMeanDecoder(KernelDecoder):
    """The same kernel of the distance from the means of the recalled classes (Snell et al. 2017), however many
    rows a class has."""

    def forward(self, query: Float[Tensor, "query embed"], neighbours: Neighbours, way: int) -> Posterior:
        scaled = neighbours.columns["class_distance"].square() / query.shape[-1]
        none = torch.full((len(query),), -self.SHARPNESS * self.NONE_DISTANCE**2)
        label = neighbours.columns["label"]
        rows = ((label[:, :, None] == label[:, None]) & neighbours.mask[:, None]).sum(-1).clamp(min=1)
        return share_out(-self.SHARPNESS * scaled - rows.log(), none, neighbours, way)


class NearestDecoder(nn.Module):
    """The label of the nearest row, with a fixed confidence."""

    CONFIDENCE = 0.95

    def forward(self, query: Float[Tensor, "query embed"], neighbours: Neighbours, way: int) -> Posterior:
        nearest = Neighbours(
            {name: column[:, :1] for name, column in neighbours.columns.items()},
            neighbours.distance[:, :1],
            neighbours.mask[:, :1],
            neighbours.row[:, :1],
        )
        odds = math.log(self.CONFIDENCE / (1 - self.CONFIDENCE))
        posterior = share_out(torch.full_like(nearest.distance, odds), torch.zeros(len(query)), nearest, way)
        weight = torch.cat([posterior.weight, torch.zeros_like(neighbours.distance[:, 1:])], 1)
        return Posterior(posterior.log_probs, posterior.log_none, weight)
