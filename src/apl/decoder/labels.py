"""Two ways in which a decoder can speak of labels.

*Fixed labels* (the paper): an embedding and a logit for each of N classes, N part of the weights.

*Neighbourhood labels*: labels are numbered inside each neighbourhood by first appearance, the answer is a
share for each neighbour plus one for "none of these". P(class) is the sum of its neighbours' shares; the
"none" mass is spread over the classes not recalled: nearly all of it over those that have no row in memory
at all (`spread_none`). Nothing depends on N or k, and shuffled labels are nothing to learn.

Both keep the same contract: `embed` turns the neighbours' labels into vectors, `answer` turns the decoder's
states into a `Posterior`. State 0 belongs to no neighbour: it stands for "none of these" and keeps an empty
memory a case like any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        codes = torch.randn(self.SLOTS, width, generator=torch.Generator().manual_seed(0))
        self.register_buffer("codes", codes, persistent=False)
        # Untrained, it answers as a kernel of the distance would; training moves it from there.
        self.score = nn.Linear(hidden, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)
        self.sharpness = nn.Parameter(torch.tensor(10.0))
        self.none_distance = nn.Parameter(torch.tensor(1.0))

    def embed(self, neighbours: Neighbours) -> Float[Tensor, "query neighbours width"]:
        slots = number_by_first_appearance(neighbours.columns["label"], neighbours.mask)
        return self.codes[slots % self.SLOTS]

    def answer(
        self,
        pooled: Float[Tensor, "query hidden"],
        states: Float[Tensor, "query states hidden"],
        attention: Float[Tensor, "query states"],
        neighbours: Neighbours,
        way: int,
    ) -> Posterior:
        scores = self.score(states).squeeze(-1)
        width = neighbours.columns["embedding"].shape[-1]
        nearness = -self.sharpness * neighbours.distance / width**0.5
        none = scores[:, 0] - self.sharpness * self.none_distance
        return share_out(scores[:, 1:] + nearness, none, neighbours, way)


def number_by_first_appearance(
    labels: Int[Tensor, "query neighbours"], mask: Bool[Tensor, "query neighbours"]
) -> Int[Tensor, "query neighbours"]:
    """The nearest neighbour's label is slot 0, the next different one slot 1, and so on."""
    first = first_with_same_label(labels, mask)
    is_first = (first == torch.arange(labels.shape[1])) & mask
    number = is_first.cumsum(1) - 1
    return torch.where(mask, number.gather(1, first), 0)


def first_with_same_label(
    labels: Int[Tensor, "query neighbours"], mask: Bool[Tensor, "query neighbours"]
) -> Int[Tensor, "query neighbours"]:
    """For each neighbour, the position of the first one that has its label."""
    same = (labels[:, :, None] == labels[:, None, :]) & mask[:, None, :] & mask[:, :, None]
    return same.to(torch.int8).argmax(-1)


def share_out(
    neighbour_logits: Float[Tensor, "query neighbours"],
    none_logit: Float[Tensor, " query"],
    neighbours: Neighbours,
    way: int,
) -> Posterior:
    """From shares of neighbours and of "none" to the probabilities of `way` classes."""
    labels, mask = neighbours.columns["label"], neighbours.mask
    if labels.numel() and int((labels * mask).max()) >= way:
        raise ValueError(f"the memory holds label {int((labels * mask).max())}, but only {way} classes were announced")
    first = first_with_same_label(labels, mask)
    is_first = (first == torch.arange(labels.shape[1])) & mask
    absent = way - is_first.sum(1)
    # With every class recalled there is no other class that "none" could mean.
    none_logit = none_logit.masked_fill(absent == 0, -torch.inf)
    logits = neighbour_logits.masked_fill(~mask, -torch.inf)
    log_shares = torch.cat([logits, none_logit[:, None]], 1).log_softmax(1)
    log_none = log_shares[:, -1]
    same = (first[:, :, None] == first[:, None, :]) & mask[:, None, :]
    log_class = log_shares[:, None, :-1].masked_fill(~same, -torch.inf).logsumexp(-1)
    elsewhere = (log_none - absent.clamp(min=1).log())[:, None]
    log_probs = elsewhere.expand(-1, way + 1)
    # One entry per recalled class; repeats and empty places go to a spare column that is cut off.
    target = torch.where(is_first, labels, way)
    log_probs = log_probs.scatter(1, target, torch.where(is_first, log_class, 0.0))[:, :way]
    return Posterior(log_probs, log_none, log_shares[:, :-1].exp())


OVERLOOKED = 0.02
"""The part of "none of these" that goes to classes that have rows, none of which was recalled."""


def spread_none(
    log_probs: Float[Tensor, "*query way"],
    log_none: Float[Tensor, "*query"],
    recalled: Bool[Tensor, "*query way"],
    stored: Bool[Tensor, "*query way"],
) -> Float[Tensor, "*query way"]:
    """Spread "none of these" by what the memory holds: a class with rows would hardly have been overlooked."""
    new, overlooked = ~stored, stored & ~recalled

    def each(which: Tensor, share: float) -> Tensor:
        return log_none[..., None] + math.log(share) - which.sum(-1, keepdim=True).clamp(min=1).log()

    log_probs = torch.where(new, each(new, 1 - OVERLOOKED), log_probs)
    log_probs = torch.where(overlooked, each(overlooked, OVERLOOKED), log_probs)
    return log_probs.log_softmax(-1)
