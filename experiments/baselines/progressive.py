"""Progressive network (Rusu et al. 2016) as the paper uses it (appendix, "Relation to continual learning"):
a new logits layer for each task on a pretrained, frozen encoder, one gradient step per example.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class ProgressiveHead:
    """The logits layer of one task; older tasks keep theirs, so nothing is forgotten."""

    def __init__(self, width: int, way: int, learning_rate: float, generator: torch.Generator) -> None:
        self.layer = nn.Linear(width, way)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(way, width, generator=generator) * width**-0.5)
            self.layer.bias.zero_()
        self.optimiser = torch.optim.Adam(self.layer.parameters(), lr=learning_rate)

    def predict_then_learn(self, embedding: Float[Tensor, " embed"], label: Int[Tensor, ""]) -> bool:
        """Whether the answer was right before the one gradient step on it."""
        logits = self.layer(embedding)
        loss = F.cross_entropy(logits[None], label[None])
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return bool(logits.argmax() == label)
