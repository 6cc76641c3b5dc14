"""Decoders without weights: a distance-weighted kernel, the nearest neighbour, and the nearest class mean.

All answer for any number of classes. A fixed share goes to the classes not recalled.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from apl.decoder.inputs import Neighbourhood
from apl.decoder.labels import share_out
from apl.posterior import IMPOSSIBLE, Posterior


class KernelDecoder(nn.Module):
    """Matching by a Gaussian kernel of the distance (Vinyals et al. 2016 with a euclidean kernel)."""

    SHARPNESS = 16.0
    """On squared distances divided by the width of the embedding."""
    NONE_DISTANCE = 1.1
    """A row at this distance (scaled as above) counts as much as "none of these"."""

    def forward(self, query: Float[Tensor, "query embed"], neighbours: Neighbourhood) -> Posterior:
        logits = -self.SHARPNESS * neighbours.distance.square() / query.shape[-1]
        none = query.new_full((len(query),), -self.SHARPNESS * self.NONE_DISTANCE**2)
        return share_out(logits, none, neighbours)


class ClassMeanDecoder(KernelDecoder):
    """The same kernel of the distance from the means of the recalled classes (Snell et al. 2017), whatever the number of
    rows of a class."""

    def forward(self, query: Float[Tensor, "query embed"], neighbours: Neighbourhood) -> Posterior:
        rows = neighbours.same.sum(-1).clamp(min=1)
        logits = -self.SHARPNESS * neighbours.class_distance(query).square() / query.shape[-1] - rows.log()
        none = query.new_full((len(query),), -self.SHARPNESS * self.NONE_DISTANCE**2)
        return share_out(logits, none, neighbours)


class NearestDecoder(nn.Module):
    """The label of the nearest row, with a fixed confidence; the rest goes evenly to the other labels' rows and "none"."""

    CONFIDENCE = 0.95

    def forward(self, query: Float[Tensor, "query embed"], neighbours: Neighbourhood) -> Posterior:
        odds = math.log(self.CONFIDENCE / (1 - self.CONFIDENCE))
        others = neighbours.mask & ~neighbours.same[:, 0]
        share = -(others.sum(1) + 1.0).log()
        logits = torch.where(others, share[:, None], IMPOSSIBLE)
        logits[:, 0] = odds
        return share_out(logits, share, neighbours)
