"""Infinite mixture prototypes (Allen et al. 2019): a class is as many clusters as its examples ask for. An example farther
than λ from every cluster of its class founds another; λ follows from a Dirichlet process with the spread σ of a cluster,
the spread ρ of the clusters' means and the concentration α. A query belongs to the class of the nearest cluster.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from experiments.baselines.interface import (
    ContextLabels,
    Contexts,
    EmbeddingMap,
    EpisodicMethod,
    Logits,
    Queries,
    Scores,
    nothing_known,
    seen,
    squared_distances,
)


class InfiniteMixturePrototypes(EpisodicMethod):
    """`concentration` is α; `between` is ρ, the variance of cluster means (of one number of an embedding)."""

    side_by_side = False  # while training, examples are shared out softly

    def __init__(self, width: int, concentration: float = 0.1, between: float = 0.8, within: float = 0.2) -> None:
        super().__init__()
        self.embed = EmbeddingMap(width)
        self.width, self.concentration, self.between = width, concentration, between
        # Deviation: ρ is measured once on the training classes, not in every episode.
        self.log_within = nn.Parameter(torch.tensor(within).log())
        # Deviation: a learnt unit of the distances that are compared, apart from σ, which decides about clusters: 256
        # dependent numbers are not 256 independent witnesses.
        self.log_unit = nn.Parameter(torch.tensor(2.0))

    def threshold(self) -> Float[Tensor, ""]:
        """λ = −2σ ln(α / (1 + ρ/σ)^(d/2)): the squared distance from which on a new cluster is the better guess."""
        within = self.log_within.exp()
        return 2 * within * (self.width / 2 * torch.log1p(self.between / within) - math.log(self.concentration))

    @torch.no_grad()
    def found_clusters(
        self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"]
    ) -> tuple[Float[Tensor, "cluster embed"], Int[Tensor, " cluster"]]:
        """One pass over the examples; each joins the nearest cluster of its class or founds one."""
        clusters = Clusters(self.width)
        threshold = float(self.threshold())
        for example, label in zip(x, y.tolist(), strict=True):
            clusters.add(example, label, threshold)
        return clusters.means(), clusters.labels()

    def logits(self, context: Contexts, label: ContextLabels, query: Queries, way: int) -> Logits:
        answers = []
        for x, y, q in zip(self.embed(context), label, self.embed(query), strict=True):
            means, of_class = self.found_clusters(x, y)
            # Examples are shared out softly among the clusters of their class, and the means follow: this is what
            # the embedding learns through.
            closeness = -squared_distances(x, means) / (2 * self.log_within.exp())
            share = closeness.masked_fill(y[:, None] != of_class, -torch.inf).softmax(1)
            means = share.T @ x / share.sum(0)[:, None].clamp(min=1e-6)
            answers.append(nearest_of_class(squared_distances(q, means), of_class, way) / self.log_unit.exp())
        return -torch.stack(answers)

    @torch.no_grad()
    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.way, self.clusters, self.limit = way, Clusters(self.width), float(self.threshold())
        for example, label in zip(self.embed(x), y.tolist(), strict=True):
            self.clusters.add(example, label, self.limit)

    @torch.no_grad()
    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self.clusters.add(self.embed(x), y, self.limit)

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not len(self.clusters):
            return nothing_known(len(x), self.way)
        of_class = self.clusters.labels()
        distance = nearest_of_class(squared_distances(self.embed(x), self.clusters.means()), of_class, self.way)
        distance = distance.masked_fill(~seen(of_class, self.way), torch.inf)
        return Scores((-distance / self.log_unit.exp()).log_softmax(1), distance.amin(1))

    def kept(self) -> int:
        return len(self.clusters)


class Clusters:
    """Running means with the class of each."""

    def __init__(self, width: int) -> None:
        self._mean, self._count, self._label = (
            torch.zeros(64, width),
            torch.zeros(64),
            torch.zeros(64, dtype=torch.int64),
        )
        self._of_class: dict[int, list[int]] = {}
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def means(self) -> Float[Tensor, "cluster embed"]:
        return self._mean[: self._used]

    def labels(self) -> Int[Tensor, " cluster"]:
        return self._label[: self._used]

    def add(self, x: Float[Tensor, " embed"], label: int, threshold: float) -> None:
        own = self._of_class.setdefault(label, [])
        if own:
            distance, nearest = (self._mean[own] - x).square().sum(1).min(0)
            if float(distance) <= threshold:
                place = own[int(nearest)]
                self._count[place] += 1
                self._mean[place] += (x - self._mean[place]) / self._count[place]
                return
        if self._used == len(self._mean):
            parts = (self._mean, self._count, self._label)
            self._mean, self._count, self._label = (torch.cat([part, torch.zeros_like(part)]) for part in parts)
        own.append(self._used)
        self._mean[self._used], self._count[self._used], self._label[self._used] = x, 1, label
        self._used += 1


def nearest_of_class(
    distance: Float[Tensor, "query cluster"], of_class: Int[Tensor, " cluster"], way: int
) -> Float[Tensor, "query way"]:
    """The distance to the nearest cluster of each class; very far where there is none."""
    far = distance.new_full((len(distance), way), 1e9)
    return far.scatter_reduce(1, of_class.expand_as(distance), distance, "amin")
