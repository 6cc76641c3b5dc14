"""Relation network (Sung et al. 2018): not a distance but a small trained network compares a query with each class, and is
taught by squared error to say 1 for the right one and 0 for the others.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from experiments.baselines.interface import (
    ContextLabels,
    Contexts,
    KeepsClassMeans,
    Logits,
    Queries,
    Tasks,
    class_means,
)

PAIRS_AT_ONCE = 20_000
"""Pairs of a query and a class that are compared together: their hidden layer then stays in a processor's cache."""


class RelationModule(nn.Module):
    """A network that reads query and class side by side, and says one number of the pair."""

    def __init__(self, query: int, of_class: int, hidden: int) -> None:
        super().__init__()
        # The first layer is written as a sum of two, so that it looks at each query and each class once rather than at
        # each pair.
        self.of_query, self.of_class = nn.Linear(query, hidden), nn.Linear(of_class, hidden, bias=False)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, 1))

    def forward(
        self, query: Float[Tensor, "task query embed"], classes: Float[Tensor, "task way representation"]
    ) -> Float[Tensor, "task query way"]:
        at_once = max(1, PAIRS_AT_ONCE // (len(classes) * classes.shape[1]))
        of_class = self.of_class(classes)[:, None]
        parts = [self.rest(part[:, :, None] + of_class)[..., 0] for part in self.of_query(query).split(at_once, 1)]
        return torch.cat(parts, 1)


class RelationNetwork(KeepsClassMeans):
    def __init__(self, width: int, hidden: int = 128) -> None:
        super().__init__()
        self.compare = RelationModule(width, width, hidden)
        """The relation score before its sigmoid."""

    def logits(self, context: Contexts, label: ContextLabels, query: Queries, way: int) -> Logits:
        # Deviation: the mean of a class's examples, not their sum, so that one network serves any number of shots.
        relation: Tensor = self.compare(query, class_means(context, label, way))
        return relation

    def loss(self, tasks: Tasks) -> Float[Tensor, ""]:
        relation = self.logits(tasks.context, tasks.context_label, tasks.query, tasks.way).sigmoid()
        wanted = F.one_hot(tasks.query_label, tasks.way).float()
        return (relation - wanted).square().sum(2).mean()

    def compared(self, query: Tensor, means: Tensor, known: Tensor) -> Float[Tensor, "query way"]:
        relation: Tensor = self.compare(query[None], means[None])
        return relation[0]
