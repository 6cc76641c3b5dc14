"""The learner of this project behind the interface of the others: embed, recall, decode, measure surprise, write.

A context is given to be kept (paper, section 4.1), so all of it is written; a stream is learnt as in everyday use, where
only what surprised is written.

Where an encoder is trained with it, that is done through the one reader that is differentiable and needs no weights: the cosine to a
class's mean. Afterwards all readers answer.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from apl.learner import Learner, Prediction
from apl.reading.readers import unit
from experiments.baselines.interface import (
    ContextLabels,
    Contexts,
    EpisodicMethod,
    Logits,
    Queries,
    Scores,
    class_means,
    nothing_known,
    seen,
)

AHEAD, WELL_KNOWN = 0.35, 0.04
"""How much it counts, beside the cosine to a class's mean, by how much it is ahead of the next class's, and how many examples
stand behind it."""


class AdaptivePosterior:
    """A learner for everyday use (`apl.exported.load_for_use`), reading embeddings."""

    most_classes: int | None = None
    side_by_side = True

    def __init__(self, learner: Learner) -> None:
        self.learner = learner.on_embeddings()

    def logits(self, context: Contexts, label: ContextLabels, query: Queries, way: int) -> Logits:
        """Of parallel tasks, each with a memory of its own."""
        memory = self.learner.new_memory(len(context))
        self.learner.write(memory, context.numpy(), label.numpy(), np.ones(label.shape, bool))
        return torch.as_tensor(self.learner.predict(memory, query.numpy(), way).log_probs)

    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.way, self.memory = way, self.learner.new_memory()
        self.known = seen(y, way)
        self.asked: tuple[Tensor, Prediction] | None = None
        if len(x):
            self.learner.write(self.memory, x[None].numpy(), y[None].numpy(), np.ones((1, len(x)), bool))

    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        # In a stream the example was asked about just before: the prediction is the one to learn from.
        if self.asked is not None and torch.equal(self.asked[0], x):
            prediction = self.asked[1]
        else:
            prediction = self.learner.predict(self.memory, x[None, None].numpy(), self.way)
        self.learner.learn(self.memory, prediction, np.array([[y]]))
        self.known[y], self.asked = True, None

    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not bool(self.known.any()):
            return nothing_known(len(x), self.way)
        prediction = self.learner.predict(self.memory, x[None].numpy(), self.way)
        self.asked = (x[0], prediction) if len(x) == 1 else None
        log_probs = torch.as_tensor(prediction.log_probs)[0].masked_fill(~self.known, -torch.inf)
        return Scores(log_probs.log_softmax(1), torch.from_numpy(self._newness(x.numpy())))

    def _newness(self, x: Float[np.ndarray, "query embed"]) -> Float[np.ndarray, " query"]:
        classes = self.memory.statistics(self.way)
        return newness(x, classes.total[0], classes.examples[0])

    def kept(self) -> int:
        return int(self.memory.counts[0])


class EncoderThroughMemory(EpisodicMethod):
    """What an encoder is trained with: the rows of a class are read by their mean."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed
        self.log_sharpness = nn.Parameter(torch.tensor(2.5))

    def logits(self, context: Contexts, label: ContextLabels, query: Queries, way: int) -> Logits:
        means = class_means(F.normalize(self.embed(context), dim=2), label, way)
        cosine = F.normalize(self.embed(query), dim=2) @ F.normalize(means, dim=2).mT
        return self.log_sharpness.exp() * cosine


def newness(
    query: Float[np.ndarray, "query embed"],
    total: Float[np.ndarray, "class embed"],
    examples: Float[np.ndarray, " class"],
) -> Float[np.ndarray, " query"]:
    """How far the nearest class mean is, how little it is ahead of the next, and how well that class is known.

    The probability of a new class (`log_none`) is what everyday use shows; its rule is learnt within the stream and seen from a
    centre that moves, so early and late answers are not on one scale, and over a stream of 150 it puts them into a
    worse order (docs/LOG.md). The weights were chosen on validation streams.
    """
    known = examples > 0
    cosine = unit(query) @ unit(total[known]).T
    nearest = cosine.argmax(1)
    first = np.take_along_axis(cosine, nearest[:, None], 1)[:, 0]
    np.put_along_axis(cosine, nearest[:, None], -1, 1)
    ahead = first - cosine.max(1) if cosine.shape[1] > 1 else 0
    return -(first + AHEAD * ahead) + WELL_KNOWN * np.log(examples[known][nearest])
