"""The learner of this project behind the interface of the others: embed, recall, decode, measure surprise, write.

A context is given to be kept (paper, section 4.1), so all of it is written; a stream is learnt as in everyday use, where
only what surprised is written.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from apl.baselines.interface import Scores, nothing_known, seen
from apl.learner import Learner


class AdaptivePosterior:
    """A learner for everyday use (`apl.exported.load_for_use`), reading embeddings."""

    most_classes: int | None = None

    def __init__(self, learner: Learner) -> None:
        self.learner = learner.on_embeddings()

    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.way, self.memory = way, self.learner.new_memory()
        self.known = seen(y, way)
        if len(x):
            self.learner.write(self.memory, x[None].numpy(), y[None].numpy(), np.ones((1, len(x)), bool))

    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self.learner.observe(self.memory, x[None, None].numpy(), np.array([[y]]), self.way)
        self.known[y] = True

    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not bool(self.known.any()):
            return nothing_known(len(x), self.way)
        prediction = self.learner.predict(self.memory, x[None].numpy(), self.way)
        log_probs = torch.as_tensor(prediction.log_probs)[0].masked_fill(~self.known, -torch.inf)
        return Scores(log_probs.log_softmax(1), torch.as_tensor(prediction.log_none)[0])

    def kept(self) -> int:
        return int(self.memory.counts[0])
