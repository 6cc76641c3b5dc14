"""Two representations of labels.

*Fixed labels* (the paper): an embedding and a logit for each of N classes. N is part of the weights.

*Neighbourhood labels*: labels are numbered inside each neighbourhood by first appearance. The answer is a
share for each neighbour plus one for "none of these". P(class) is the sum of its neighbours' shares; the
"none" mass belongs to the classes not recalled (`apl.posterior`). Nothing depends on N or k, and a shuffling of labels
need not be learnt.

Both have two methods: `embed` turns the neighbours' labels into vectors, `answer` turns the decoder's
states into a `Posterior`. State 0 belongs to no neighbour: it stands for "none of these".
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from apl.config import DecoderConfig
from apl.decoder.inputs import Neighbourhood
from apl.posterior import IMPOSSIBLE, Posterior


class FixedLabels(nn.Module):
    """The paper's labels: one embedding and one logit per class."""

    pools = True
    """The answer is read from the pooled states. Decoders skip the pooling otherwise."""

    def __init__(self, way: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(way, width)
        self.logits = nn.Linear(hidden, way)

    def embed(self, neighbours: Neighbourhood) -> Float[Tensor, "query neighbours width"]:
        embedded: Tensor = self.embedding(neighbours.label)
        return embedded

    def answer(
        self,
        pooled: Float[Tensor, "query hidden"] | None,
        states: Float[Tensor, "query states hidden"],
        attention: Float[Tensor, "query states"] | None,
        query: Float[Tensor, "query embed"],
        neighbours: Neighbourhood,
    ) -> Posterior:
        if pooled is None or attention is None:
            raise ValueError("fixed labels are read from pooled states")
        log_probs: Tensor = self.logits(pooled).log_softmax(-1)
        none = torch.full_like(log_probs[:, 0], IMPOSSIBLE)
        return Posterior(none, attention[:, 1:], log_probs=log_probs)


class NeighbourhoodLabels(nn.Module):
    """Labels that are valid inside one neighbourhood only.

    The code of a slot is a fixed random vector, so slots beyond those seen in training (a larger k) still lie
    in the space the weights have learnt to read.
    """

    SLOTS = 256
    pools = False
    codes: Tensor

    def __init__(self, width: int, hidden: int, class_means: bool = False) -> None:
        super().__init__()
        codes = torch.randn(self.SLOTS, width, generator=torch.Generator().manual_seed(0))
        self.register_buffer("codes", codes, persistent=False)
        # Zero: untrained, the answer is a kernel of the distance. No bias: it would shift all shares alike.
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


def build_labels(config: DecoderConfig) -> FixedLabels | NeighbourhoodLabels:
    if config.labels == "fixed":
        return FixedLabels(config.way or 0, config.label_width, config.hidden)
    return NeighbourhoodLabels(config.label_width, config.hidden, config.class_means)


def number_by_first_appearance(
    same: Bool[Tensor, "query neighbours neighbours"],
) -> Int[Tensor, "query neighbours"]:
    """The nearest neighbour's label is slot 0, the next different one slot 1, and so on; slot 0 where there is no row."""
    first = same.float().argmax(-1)
    is_first = first == torch.arange(same.shape[-1], device=same.device)
    return is_first.cumsum(-1).gather(1, first) - 1


def share_out(
    neighbour_logits: Float[Tensor, "query neighbours"], none_logit: Float[Tensor, " query"], neighbours: Neighbourhood
) -> Posterior:
    """Logits of neighbours and of "none" become shares that sum to one, and the shares of the neighbours' classes."""
    logits = neighbour_logits.masked_fill(~neighbours.mask, IMPOSSIBLE)
    log_shares = torch.cat([logits, (none_logit + neighbours.log_elsewhere)[:, None]], 1).log_softmax(1)
    of_rows = log_shares[:, :-1]
    log_class = of_rows[:, None].masked_fill(~neighbours.same, IMPOSSIBLE).logsumexp(-1)
    return Posterior(log_shares[:, -1], of_rows.exp(), log_class)
