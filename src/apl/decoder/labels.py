"""Two ways in which a decoder can speak of labels.

*Fixed labels* (the paper): an embedding and a logit for each of N classes, N part of the weights.

*Neighbourhood labels*: labels are numbered inside each neighbourhood by first appearance, the answer is a
share for each neighbour plus one for "none of these". P(class) is the sum of its neighbours' shares; the
"none" mass belongs to the classes not recalled (`apl.posterior`). Nothing depends on N or k, and shuffled labels are
nothing to learn.

Both keep the same contract: `embed` turns the neighbours' labels into vectors, `answer` turns the decoder's
states into a `Posterior`. State 0 belongs to no neighbour: it stands for "none of these" and keeps an empty
memory a case like any other.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from apl.decoder.inputs import Neighbourhood
from apl.posterior import IMPOSSIBLE, Posterior


class FixedLabels(nn.Module):
    """The paper's labels: one embedding and one logit per class."""

    pools = True
    """The answer is read from the states pooled by attention, which decoders need not compute otherwise."""

    def __init__(self, way: int, width: int, hidden: int) -> None:
        super().__init__()
        self.way = way
        self.embedding = nn.Embedding(way, width)
        self.logits = nn.Linear(hidden, way)

    def embed(self, neighbours: Neighbourhood) -> Float[Tensor, "query neighbours width"]:
        return self.embedding(neighbours.label)

    def answer(
        self,
        pooled: Float[Tensor, "query hidden"],
        states: Float[Tensor, "query states hidden"],
        attention: Float[Tensor, "query states"],
        query: Float[Tensor, "query embed"],
        neighbours: Neighbourhood,
    ) -> Posterior:
        log_probs = self.logits(pooled).log_softmax(-1)
        none = torch.full_like(log_probs[:, 0], IMPOSSIBLE)
        return Posterior(none, attention[:, 1:], log_probs=log_probs)


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

    def embed(self, neighbours: Neighbourhood) -> Float[Tensor, "query neighbours width"]:
        return nn.functional.embedding(number_by_first_appearance(neighbours.same) % self.SLOTS, self.codes)

    def answer(
        self,
        pooled: Float[Tensor, "query hidden"] | None,
        states: Float[Tensor, "query states hidden"],
        attention: Float[Tensor, "query states"] | None,
        query: Float[Tensor, "query embed"],
        neighbours: Neighbourhood,
    ) -> Posterior:
        scores = self.score(states).squeeze(-1)
        unit = query.shape[-1] ** 0.5
        nearness = -self.sharpness * neighbours.distance / unit
        none = scores[:, 0] - self.sharpness * self.none_distance
        if self.class_sharpness is not None:
            nearness = nearness - self.class_sharpness * neighbours.class_distance(query) / unit
            none = none - self.class_sharpness * self.none_distance
        return share_out(scores[:, 1:] + nearness, none, neighbours)


def number_by_first_appearance(
    same: Bool[Tensor, "query neighbours neighbours"],
) -> Int[Tensor, "query neighbours"]:
    """The nearest neighbour's label is slot 0, the next different one slot 1, and so on; where there is no row, slot 0."""
    first = same.float().argmax(-1)
    is_first = first == torch.arange(same.shape[-1], device=same.device)
    return is_first.cumsum(-1).gather(1, first) - 1


def share_out(
    neighbour_logits: Float[Tensor, "query neighbours"], none_logit: Float[Tensor, " query"], neighbours: Neighbourhood
) -> Posterior:
    """From logits of neighbours and of "none" to shares that add up to one, and those of the neighbours' classes."""
    logits = neighbour_logits.masked_fill(~neighbours.mask, IMPOSSIBLE)
    log_shares = torch.cat([logits, (none_logit + neighbours.log_elsewhere)[:, None]], 1).log_softmax(1)
    of_rows = log_shares[:, :-1]
    log_class = of_rows[:, None].masked_fill(~neighbours.same, IMPOSSIBLE).logsumexp(-1)
    return Posterior(log_shares[:, -1], of_rows.exp(), log_class)
