"""Vectors computed elsewhere as inputs: a learner whose encoder is the identity and whose kernel finds its own scale.

The numbers of a stranger's embedding may be of any size, so the kernel measures distance in a unit taken from the
memory itself: the usual distance of a row to its nearest row of the same class. The decision does not change when
all features are multiplied by a constant. (It does when a single one is: put a scaler in front if they differ.)
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from apl.controller import SurpriseController
from apl.decoder import DecoderConfig, Posterior
from apl.decoder.labels import share_out
from apl.encoder import IdentityConfig, build_encoder
from apl.learner import Learner, LearnerConfig
from apl.memory import Neighbours

FEATURE_NEIGHBOURS = 16
ROWS_MEASURED = 512
"""The unit is the median over at most so many rows."""


class UnitKernel(nn.Module):
    """A Gaussian kernel of the distance in units; "none of these" weighs as much as a row `NONE_UNITS` away."""

    SHARPNESS = 2.0
    NONE_UNITS = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.unit: float | None = None
        """None as long as there are no two rows to measure it on: then every distance is as good as zero."""

    def forward(self, query: Float[Tensor, "query embed"], neighbours: Neighbours, way: int) -> Posterior:
        units = neighbours.distance / self.unit if self.unit else torch.zeros_like(neighbours.distance)
        none = torch.full((len(query),), -self.SHARPNESS * self.NONE_UNITS**2)
        return share_out(-self.SHARPNESS * units.square(), none, neighbours, way)


def feature_learner(width: int) -> Learner:
    """A learner for vectors of this width, without trained weights."""
    config = LearnerConfig(IdentityConfig(width), DecoderConfig(kind="kernel"), k=FEATURE_NEIGHBOURS)
    # A kernel's doubts are milder than a trained decoder's: what it does not hold more likely than not is written, and
    # among a few classes more than that.
    learner = Learner(config, SurpriseController(ratio=0.3, most_nats=math.log(2))).eval()
    learner.decoder = UnitKernel()
    return learner


def trained_feature_learner(model: Learner, width: int) -> Learner:
    """A trained decoder behind vectors of the width it knows, layer-normalised as its own encoder's are."""
    if width != model.encoder.width:
        raise ValueError(f"the model's decoder reads embeddings of {model.encoder.width} numbers, not of {width}")
    learner = model.on_embeddings()
    learner.config = replace(learner.config, encoder=IdentityConfig(width, normalise=True))
    learner.encoder = build_encoder(learner.config.encoder)
    return learner


def measure_unit(keys: Float[Tensor, "row embed"], labels: Int[Tensor, " row"]) -> float | None:
    """The median distance to the nearest row of the same class; half of that to another class where there is none."""
    if len(keys) < 2:
        return None
    rows = torch.linspace(0, len(keys) - 1, min(len(keys), ROWS_MEASURED)).round().long()
    distance = torch.cdist(keys[rows], keys, compute_mode="donot_use_mm_for_euclid_dist")
    distance[distance == 0] = torch.inf
    same = labels[rows][:, None] == labels
    within = distance.masked_fill(~same, torch.inf).amin(1)
    between = distance.masked_fill(same, torch.inf).amin(1)
    reach = torch.where(torch.isfinite(within), within, between / 2)
    reach = reach[torch.isfinite(reach)]
    return float(reach.median()) if len(reach) else None
