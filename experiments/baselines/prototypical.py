"""Prototypical networks (Snell, Swersky and Zemel 2017): a class is the mean of its embedded examples, a query belongs to
the nearest by squared euclidean distance, and the embedding is trained so that it does.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from experiments.baselines.interface import (
    ContextLabels,
    Contexts,
    EmbeddingMap,
    KeepsClassMeans,
    Logits,
    Queries,
    class_means,
    squared_distances,
)


class PrototypicalNetwork(KeepsClassMeans):
    """`embed` is trained; on embeddings that are frozen it is a linear map beginning at the identity."""

    def __init__(self, width: int, embed: nn.Module | None = None) -> None:
        super().__init__()
        self.embed = EmbeddingMap(width) if embed is None else embed
        # Deviation: a learnt unit of distance. It changes no answer, only how sure it is while training.
        self.log_unit = nn.Parameter(torch.tensor(2.0))

    def logits(self, context: Contexts, label: ContextLabels, query: Queries, way: int) -> Logits:
        prototypes = class_means(self.embed(context), label, way)
        return -squared_distances(self.embed(query), prototypes) / self.log_unit.exp()

    def represent(self, x: Float[Tensor, "*batch embed"]) -> Float[Tensor, "*batch embed"]:
        embedded: Tensor = self.embed(x)
        return embedded

    def compared(self, query: Tensor, means: Tensor, known: Tensor) -> Float[Tensor, "query way"]:
        return -squared_distances(self.embed(query), means) / self.log_unit.exp()
