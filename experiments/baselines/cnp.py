"""Conditional neural process (Garnelo et al. 2018) as it classifies: every example of the context becomes a representation,
those of a class are averaged, and a network reads the query in the light of all classes' representations.

Deviation: the paper lays the classes' representations side by side, so that its weights hold a place for each class and learn
each comparison again. Here one network reads the query with the representation of a class and the mean of all, for each class
with the same weights: it knows any number of classes, and learns in a minute what twenty places do not begin to
(docs/LOG.md).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from experiments.baselines.interface import ContextLabels, Contexts, KeepsClassMeans, Logits, Queries, class_means
from experiments.baselines.relation import RelationModule


class ConditionalNeuralProcess(KeepsClassMeans):
    def __init__(self, width: int, hidden: int = 128, representation: int = 128) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, representation))
        self.read = RelationModule(width, 2 * representation, hidden)

    def logits(self, context: Contexts, label: ContextLabels, query: Queries, way: int) -> Logits:
        classes = class_means(self.encode(context), label, way)
        everything = classes.sum(1, keepdim=True) / way
        answer: Tensor = self.read(query, torch.cat([classes, everything.expand_as(classes)], 2))
        return answer

    def represent(self, x: Float[Tensor, "*batch embed"]) -> Float[Tensor, "*batch representation"]:
        encoded: Tensor = self.encode(x)
        return encoded

    def compared(self, query: Tensor, means: Tensor, known: Bool[Tensor, " way"]) -> Float[Tensor, "query way"]:
        everything = means[known].mean(0).expand_as(means)
        answer: Tensor = self.read(query[None], torch.cat([means, everything], 1)[None])
        return answer[0]
