"""The learner of this project behind the interface of the others: embed, recall, decode, measure surprise, write.

Contexts and streams go the same way, example by example: nothing is written that was not surprising.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from apl.baselines.interface import Scores, nothing_known, seen
from apl.learner import Learner


class AdaptivePosterior:
    """A trained learner that reads embeddings."""

    most_classes: int | None = None

    def __init__(self, learner: Learner) -> None:
        self.learner = learner.on_embeddings()

    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.way, self.memory = way, self.learner.new_memory()
        self.known = seen(y, way)
        # A context is given to be kept (paper, section 4.1): all of it is written.
        if len(x):
            self.learner.write(self.memory, x[None], y[None], np.ones((1, len(x)), bool))

    @torch.no_grad()
    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self.learner.observe(self.memory, x[None, None], torch.tensor([[y]]), self.way)
        self.known[y] = True

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not bool(self.known.any()):
            return nothing_known(len(x), self.way)
        prediction = self.learner.predict(self.memory, x[None], self.way)
        log_probs = torch.as_tensor(prediction.log_probs)[0].masked_fill(~self.known, -torch.inf)
        return Scores(log_probs.log_softmax(1), torch.as_tensor(prediction.log_none)[0])

    def kept(self) -> int:
        return int(self.memory.counts[0])
