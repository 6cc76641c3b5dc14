"""What every method here can do: `adapt` to a context, `predict`, and `observe` one more example of a stream.

    method.adapt(x, y, way)     forget everything, then take in a context (an empty one starts a stream)
    method.predict(x)           log probabilities of the `way` labels, and how new each query looks
    method.observe(x, y)        learn one example

A stream is predict, observe, predict, observe …; an answer may rest on nothing but what was observed before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

Contexts = Float[Tensor, "task context embed"]
ContextLabels = Int[Tensor, "task context"]
Queries = Float[Tensor, "task query embed"]
Logits = Float[Tensor, "task query way"]


@dataclass(frozen=True)
class Tasks:
    """Parallel few-shot tasks of one shape, to train on."""

    context: Contexts
    context_label: ContextLabels
    query: Queries
    query_label: Int[Tensor, "task query"]
    way: int


@dataclass(frozen=True)
class Scores:
    """An answer to each query."""

    log_probs: Float[Tensor, "query way"]
    """Minus infinity for labels of which nothing was seen, wherever the method knows that."""
    novelty: Float[Tensor, " query"]
    """The higher, the rather it is of a class not seen yet. Only the order within a stream means anything."""


@runtime_checkable
class FewShotMethod(Protocol):
    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None: ...

    def predict(self, x: Float[Tensor, "query embed"]) -> Scores: ...

    def observe(self, x: Float[Tensor, " embed"], y: int) -> None: ...

    def kept(self) -> int:
        """Vectors as wide as an embedding that it keeps: examples, means, variances."""
        ...


class EpisodicMethod(nn.Module):
    """A method whose answer is one differentiable function of context and query, trained on tasks.

    The context is kept whole and read again for each answer; methods that keep less override the verbs.
    """

    side_by_side: bool = True
    """Whether `logits` of several tasks answers as `adapt` and `predict` do, and is cheaper."""

    def logits(self, context: Contexts, label: ContextLabels, query: Queries, way: int) -> Logits:
        """The larger, the more probable; what their greatest says about a new class is `novelty`."""
        raise NotImplementedError

    def loss(self, tasks: Tasks) -> Float[Tensor, ""]:
        logits = self.logits(tasks.context, tasks.context_label, tasks.query, tasks.way)
        return F.cross_entropy(logits.flatten(0, 1), tasks.query_label.flatten())

    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.context, self.context_label, self.way = x, y, way

    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self.context = torch.cat([self.context, x[None]])
        self.context_label = torch.cat([self.context_label, torch.tensor([y])])

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not len(self.context):
            return nothing_known(len(x), self.way)
        logits = self.logits(self.context[None], self.context_label[None], x[None], self.way)[0]
        return scores(logits, seen(self.context_label, self.way))

    def kept(self) -> int:
        return len(self.context)


class KeepsClassMeans(EpisodicMethod):
    """A method that keeps of each class the mean of what it makes of its examples, and compares queries with that."""

    def represent(self, x: Float[Tensor, "*batch embed"]) -> Float[Tensor, "*batch representation"]:
        return x

    def compared(
        self,
        query: Float[Tensor, "query embed"],
        means: Float[Tensor, "way representation"],
        known: Bool[Tensor, " way"],
    ) -> Float[Tensor, "query way"]:
        """Logits of single queries; some of the classes may not be known yet."""
        raise NotImplementedError

    @torch.no_grad()
    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        represented = self.represent(x)
        self.classes = ClassSums(way, represented.shape[1])
        self.classes.add(represented, y)

    @torch.no_grad()
    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self.classes.add(self.represent(x[None]), torch.tensor([y]))

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        known = self.classes.known
        if not bool(known.any()):
            return nothing_known(len(x), len(known))
        return scores(self.compared(x, self.classes.means, known), known)

    def kept(self) -> int:
        return int(self.classes.known.sum())


class EmbeddingMap(nn.Module):
    """x + Wx, with W zero at first: what a method that learns its embedding adds to one that is frozen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.change.weight)

    def forward(self, x: Float[Tensor, "*batch embed"]) -> Float[Tensor, "*batch embed"]:
        changed: Tensor = x + self.change(x)
        return changed


def scores(logits: Float[Tensor, "query way"], known: Bool[Tensor, " way"]) -> Scores:
    """Among the classes seen so far; a query looks new if no class speaks for it."""
    masked = logits.masked_fill(~known, -torch.inf)
    return Scores(masked.log_softmax(1), -masked.amax(1))


def nothing_known(queries: int, way: int) -> Scores:
    """What anybody says before the first example."""
    return Scores(torch.full((queries, way), -torch.inf), torch.full((queries,), torch.inf))


def seen(labels: Int[Tensor, " example"], way: int) -> Bool[Tensor, " way"]:
    return torch.zeros(way, dtype=torch.bool).index_fill(0, labels, True)


def class_means(
    x: Float[Tensor, "task context embed"], y: Int[Tensor, "task context"], way: int
) -> Float[Tensor, "task way embed"]:
    """Zero for a class without an example."""
    total = x.new_zeros(len(x), way, x.shape[2]).scatter_add(1, y[..., None].expand_as(x), x)
    count = x.new_zeros(len(x), way).scatter_add(1, y, torch.ones_like(y, dtype=x.dtype))
    return total / count.clamp(min=1)[..., None]


def squared_distances(
    a: Float[Tensor, "*batch n embed"], b: Float[Tensor, "*batch m embed"]
) -> Float[Tensor, "*batch n m"]:
    return a.square().sum(-1)[..., None] - 2 * a @ b.mT + b.square().sum(-1)[..., None, :]


class ClassSums:
    """The running mean of each class: all that some methods keep of a stream."""

    def __init__(self, way: int, width: int) -> None:
        self.total, self.count = torch.zeros(way, width), torch.zeros(way)

    def add(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"]) -> None:
        self.total.index_add_(0, y, x)
        self.count.index_add_(0, y, torch.ones(len(y)))

    @property
    def known(self) -> Bool[Tensor, " way"]:
        return self.count > 0

    @property
    def means(self) -> Float[Tensor, "way embed"]:
        return self.total / self.count.clamp(min=1)[:, None]
