"""Two ways in which a decoder can speak of labels.

*Fixed labels* (the paper): an embedding and a logit for each of N classes, N part of the weights.

*Neighbourhood labels*: labels are numbered inside each neighbourhood by first appearance, the answer is a
share for each neighbour plus one for "none of these". P(class) is the sum of its neighbours' shares; the
"none" mass is spread over the classes not recalled: nearly all of it over those that have no row in memory
at all (`spread_none`). Nothing depends on N or k, and shuffled labels are nothing to learn.

Both keep the same contract: `embed` turns the neighbours' labels into vectors, `answer` turns the decoder's
states into a `Posterior`. State 0 belongs to no neighbour: it stands for "none of these" and keeps an empty
memory a case like any other.

Which neighbours share a label carries no gradient and is worked out with numpy: for a single query that takes a
third of the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from apl.memory import Neighbours


@dataclass(frozen=True)
class Posterior:
    """What the learner believes about each query."""

    log_probs: Float[Tensor, "query way"]
    log_none: Float[Tensor, " query"]
    """Log of the mass put on none of the recalled rows; -inf where the answer has no such mass."""
    weight: Float[Tensor, "query neighbours"]
    """How much of the answer each neighbour carries; sums to at most 1."""


class FixedLabels(nn.Module):
    """The paper's labels: one embedding and one logit per class."""

    pools = True
    """The answer is read from the states pooled by attention, which decoders need not compute otherwise."""

    def __init__(self, way: int, width: int, hidden: int) -> None:
        super().__init__()
        self.way = way
        self.embedding = nn.Embedding(way, width)
        self.logits = nn.Linear(hidden, way)

    def embed(self, neighbours: Neighbours) -> Float[Tensor, "query neighbours width"]:
        return self.embedding(neighbours.columns["label"])

    def answer(
        self,
        pooled: Float[Tensor, "query hidden"],
        states: Float[Tensor, "query states hidden"],
        attention: Float[Tensor, "query states"],
        neighbours: Neighbours,
        way: int,
    ) -> Posterior:
        if way != self.way:
            raise ValueError(f"this decoder was made for {self.way} classes and cannot answer for {way}")
        log_probs = self.logits(pooled).log_softmax(-1)
        return Posterior(log_probs, torch.full_like(log_probs[:, 0], -torch.inf), attention[:, 1:])


class NeighbourhoodLabels(nn.Module):
    """Labels that mean something only inside one neighbourhood.

    The code of a slot is a fixed random vector, so slots beyond those seen in training (a larger k) still lie
    in the space the weights have learnt to read.
    """

    SLOTS = 256
    pools = False

    def __init__(self, width: int, hidden: int, class_means: bool = False) -> None:
        super().__init__()
        codes = torch.randn(self.SLOTS, width, generator=torch.Generator().manual_seed(0))
        self.register_buffer("codes", codes, persistent=False)
        # Untrained, it answers as a kernel of the distance would; training moves it from there.
        # No bias: it would shift all shares alike, which changes nothing.
        self.score = nn.Linear(hidden, 1, bias=False)
        nn.init.zeros_(self.score.weight)
        self.sharpness = nn.Parameter(torch.tensor(10.0))
        self.none_distance = nn.Parameter(torch.tensor(1.0))
        self.class_sharpness = nn.Parameter(torch.tensor(10.0)) if class_means else None

    def embed(self, neighbours: Neighbours) -> Float[Tensor, "query neighbours width"]:
        slots = number_by_first_appearance(neighbours.columns["label"].numpy(), neighbours.mask.numpy())
        return self.codes[torch.from_numpy(slots % self.SLOTS)]

    def answer(
        self,
        pooled: Float[Tensor, "query hidden"] | None,
        states: Float[Tensor, "query states hidden"],
        attention: Float[Tensor, "query states"] | None,
        neighbours: Neighbours,
        way: int,
    ) -> Posterior:
        scores = self.score(states).squeeze(-1)
        width = neighbours.columns["embedding"].shape[-1]
        nearness = -self.sharpness * neighbours.distance / width**0.5
        none = scores[:, 0] - self.sharpness * self.none_distance
        if self.class_sharpness is not None:
            nearness = nearness - self.class_sharpness * neighbours.columns["class_distance"] / width**0.5
            none = none - self.class_sharpness * self.none_distance
        return share_out(scores[:, 1:] + nearness, none, neighbours, way)


def number_by_first_appearance(
    labels: Int[np.ndarray, "query neighbours"], mask: Bool[np.ndarray, "query neighbours"]
) -> Int[np.ndarray, "query neighbours"]:
    """The nearest neighbour's label is slot 0, the next different one slot 1, and so on."""
    first = first_with_same_label(labels, mask)
    is_first = (first == np.arange(labels.shape[1])) & mask
    number = is_first.cumsum(1) - 1
    return np.where(mask, np.take_along_axis(number, first, 1), 0)


def first_with_same_label(
    labels: Int[np.ndarray, "query neighbours"], mask: Bool[np.ndarray, "query neighbours"]
) -> Int[np.ndarray, "query neighbours"]:
    """For each neighbour, the position of the first one that has its label; for an empty place, anything."""
    return ((labels[:, :, None] == labels[:, None, :]) & mask[:, None, :]).argmax(-1)


def share_out(
    neighbour_logits: Float[Tensor, "query neighbours"],
    none_logit: Float[Tensor, " query"],
    neighbours: Neighbours,
    way: int,
) -> Posterior:
    """From shares of neighbours and of "none" to the probabilities of `way` classes."""
    labels, mask = neighbours.columns["label"].numpy(), neighbours.mask.numpy()
    if (highest := int((labels * mask).max(initial=0))) >= way:
        raise ValueError(f"the memory holds label {highest}, but only {way} classes were announced")
    first = first_with_same_label(labels, mask)
    is_first = (first == np.arange(labels.shape[1])) & mask
    absent = way - is_first.sum(1)
    another = (first[:, :, None] != first[:, None, :]) | ~mask[:, None, :]
    if not absent.all():
        # With every class recalled there is no other class that "none" could mean.
        none_logit = none_logit.masked_fill(torch.from_numpy(absent == 0), -torch.inf)
    if not mask.all():
        neighbour_logits = neighbour_logits.masked_fill(~neighbours.mask, -torch.inf)
    log_shares = torch.cat([neighbour_logits, none_logit[:, None]], 1).log_softmax(1)
    log_none = log_shares[:, -1]
    log_class = log_shares[:, None, :-1].masked_fill(torch.from_numpy(another), -torch.inf).logsumexp(-1)
    elsewhere = log_none - torch.from_numpy(np.log(absent.clip(1), dtype=np.float32))
    # One entry per recalled class; repeats and empty places go to a spare column that is cut off.
    target = torch.from_numpy(np.where(is_first, labels, way))
    log_probs = elsewhere[:, None].expand(-1, way + 1).scatter(1, target, log_class)[:, :way]
    return Posterior(log_probs, log_none, log_shares[:, :-1].exp())


OVERLOOKED = 0.02
"""The part of "none of these" that goes to classes that have rows, none of which was recalled."""


def spread_none(
    log_probs: Float[Tensor, "*query way"],
    log_none: Float[Tensor, "*query"],
    recalled: Bool[np.ndarray, "*query way"],
    stored: Bool[np.ndarray, "*query way"],
) -> Float[Tensor, "*query way"]:
    """Spread "none of these" by what the memory holds: a class with rows would hardly have been overlooked."""

    def each(which: np.ndarray, share: float) -> np.ndarray:
        return math.log(share) - np.log(which.sum(-1, keepdims=True).clip(1), dtype=np.float32)

    new, overlooked = ~stored, stored & ~recalled
    part = torch.from_numpy(np.where(new, each(new, 1 - OVERLOOKED), each(overlooked, OVERLOOKED)))
    return torch.where(torch.from_numpy(recalled), log_probs, log_none[..., None] + part).log_softmax(-1)
