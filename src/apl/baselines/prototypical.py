"""Prototypical networks (Snell, Swersky and Zemel 2017): a class is the mean of its embedded examples, a query belongs to
the nearest by squared euclidean distance, and the embedding is trained so that it does.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from apl.baselines.interface import (
    ClassSums,
    EmbeddingMap,
    EpisodicMethod,
    Scores,
    class_means,
    nothing_known,
    scores,
    squared_distances,
)


class PrototypicalNetwork(EpisodicMethod):
    """`embed` is trained; on embeddings that are frozen it is a linear map beginning at the identity."""

    def __init__(self, width: int, embed: nn.Module | None = None) -> None:
        super().__init__()
        self.embed = EmbeddingMap(width) if embed is None else embed
        # Deviation: a learnt unit of distance. It changes no answer, only how sure it is while training.
        self.log_unit = nn.Parameter(torch.tensor(2.0))

    def logits(
        self,
        context: Float[Tensor, "task context embed"],
        label: Int[Tensor, "task context"],
        query: Float[Tensor, "task query embed"],
        way: int,
    ) -> Float[Tensor, "task query way"]:
        prototypes = class_means(self.embed(context), label, way)
        return -squared_distances(self.embed(query), prototypes) / self.log_unit.exp()

    @torch.no_grad()
    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        embedded = self.embed(x)
        self.classes = ClassSums(way, embedded.shape[1])
        self.classes.add(embedded, y)

    @torch.no_grad()
    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self.classes.add(self.embed(x[None]), torch.tensor([y]))

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not bool(self.classes.known.any()):
            return nothing_known(len(x), len(self.classes.count))
        distance = squared_distances(self.embed(x), self.classes.means)
        return scores(-distance / self.log_unit.exp(), self.classes.known)

    def kept(self) -> int:
        return int(self.classes.known.sum())
