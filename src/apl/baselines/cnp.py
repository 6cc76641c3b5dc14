"""Conditional neural process (Garnelo et al. 2018) as it classifies: every example of the context becomes a representation,
those of a class are averaged, and a network reads the query in the light of all classes' representations.

Deviation: the paper lays the classes' representations side by side, so that its weights hold a place for each class and learn
each comparison anew. Here one network reads the query with the representation of a class and the mean of all, for each class
with the same weights: it knows any number of classes, and learns in a minute what twenty places do not begin to
(docs/LOG.md).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from apl.baselines.interface import ClassSums, EpisodicMethod, Scores, class_means, nothing_known, scores
from apl.baselines.relation import RelationModule


class ConditionalNeuralProcess(EpisodicMethod):
    def __init__(self, width: int, hidden: int = 128, representation: int = 128) -> None:
        super().__init__()
        self.represent = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, representation))
        self.read = RelationModule(width, 2 * representation, hidden)

    def logits(
        self,
        context: Float[Tensor, "task context embed"],
        label: Int[Tensor, "task context"],
        query: Float[Tensor, "task query embed"],
        way: int,
    ) -> Float[Tensor, "task query way"]:
        classes = class_means(self.represent(context), label, way)
        everything = classes.sum(1, keepdim=True) / way
        return self.read(query, torch.cat([classes, everything.expand_as(classes)], 2))

    @torch.no_grad()
    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        representation = self.represent(x)
        self.classes = ClassSums(way, representation.shape[1])
        self.classes.add(representation, y)

    @torch.no_grad()
    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self.classes.add(self.represent(x[None]), torch.tensor([y]))

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        known = self.classes.known
        if not bool(known.any()):
            return nothing_known(len(x), len(known))
        means = self.classes.means
        everything = means[known].mean(0).expand_as(means)
        return scores(self.read(x[None], torch.cat([means, everything], 1)[None])[0], known)

    def kept(self) -> int:
        return int(self.classes.known.sum())
