"""Conditional neural process (Garnelo et al. 2018) as it classifies: every example of the context becomes a representation,
those of a class are averaged, the classes' are laid side by side, and a network reads them with the query.

Laid side by side: the weights hold a place for each class. One set of weights knows `most_classes` places; a task with
fewer classes leaves some empty.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from apl.baselines.interface import ClassSums, EpisodicMethod, Scores, class_means, nothing_known, scores


class ConditionalNeuralProcess(EpisodicMethod):
    def __init__(self, width: int, most_classes: int = 20, hidden: int = 256, representation: int = 64) -> None:
        super().__init__()
        self.most_classes = most_classes
        self.represent = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, representation))
        self.read = nn.Sequential(
            nn.Linear(width + most_classes * (representation + 1), hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, most_classes),
        )

    def logits(
        self,
        context: Float[Tensor, "task context embed"],
        label: Int[Tensor, "task context"],
        query: Float[Tensor, "task query embed"],
        way: int,
    ) -> Float[Tensor, "task query way"]:
        places = class_means(self._represent(context), label, self.most_classes)
        return self._answer(places, query)[..., :way]

    def _represent(self, x: Tensor) -> Tensor:
        """With a 1 that says: this place is taken."""
        return torch.cat([self.represent(x), x.new_ones(*x.shape[:-1], 1)], -1)

    def _answer(self, places: Tensor, query: Tensor) -> Tensor:
        flat = places.flatten(1)[:, None].expand(-1, query.shape[1], -1)
        return self.read(torch.cat([query, flat], 2))

    @torch.no_grad()
    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.way = way
        representation = self._represent(x)
        self.classes = ClassSums(self.most_classes, representation.shape[1])
        self.classes.add(representation, y)

    @torch.no_grad()
    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self.classes.add(self._represent(x[None]), torch.tensor([y]))

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not bool(self.classes.known.any()):
            return nothing_known(len(x), self.way)
        logits = self._answer(self.classes.means[None], x[None])[0, :, : self.way].log_softmax(1)
        return scores(logits, self.classes.known[: self.way])

    def kept(self) -> int:
        return int(self.classes.known.sum())
