"""Matching networks (Vinyals et al. 2016) with full context embeddings: the answer is the labels of the context, weighted
by attention. What attends and what is attended to are embedded in the light of the whole context: its examples by an LSTM
that reads them in both directions, a query by an LSTM that looks at them several times (their appendix A).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
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
)

LOOKS = 3
"""Times a query looks at the context (K in the paper)."""
GROWTH = 1.1
"""In a stream the context is read again when it has grown by a tenth; until then new examples stand as they are."""


class MatchingNetwork(EpisodicMethod):
    in_context: Tensor

    def __init__(self, width: int, full_context: bool = True, embed: nn.Module | None = None) -> None:
        super().__init__()
        self.embed = EmbeddingMap(width) if embed is None else embed
        self.full_context = full_context
        self.forwards, self.backwards = (nn.LSTM(width, width, batch_first=True) for _ in range(2))
        self.attending = nn.LSTMCell(2 * width, width)
        for part in (self.forwards, self.backwards, self.attending):
            for weight in part.parameters():  # near nothing at first: training starts from the plain embedding
                nn.init.uniform_(weight, -0.01, 0.01)
        # Deviation: a learnt sharpness. The paper's bare cosine cannot be surer than e² to one.
        self.log_sharpness = nn.Parameter(torch.tensor(3.0))

    def logits(self, context: Contexts, label: ContextLabels, query: Queries, way: int) -> Logits:
        return self.match(self.read(self.embed(context)), label, self.embed(query), way).clamp(min=1e-9).log()

    def read(self, context: Float[Tensor, "task context embed"]) -> Float[Tensor, "task context embed"]:
        """g(x, S): each example of the context beside what an LSTM made of those before and after it."""
        if not self.full_context:
            return context
        there: Tensor = self.forwards(context)[0]
        back: Tensor = self.backwards(context.flip(1))[0]
        return context + there + back.flip(1)

    def look(
        self, query: Float[Tensor, "task query embed"], context: Float[Tensor, "task context embed"]
    ) -> Float[Tensor, "task query embed"]:
        """f(x, S)."""
        if not self.full_context:
            return query
        start, shape = query.flatten(0, 1), query.shape
        h, cell, unit = start, torch.zeros_like(start), shape[2] ** -0.5
        for _ in range(LOOKS):
            attention = (unit * h.view(shape) @ context.mT).softmax(2)
            recalled = (attention @ context).flatten(0, 1)
            # The cell's hidden state is [h, recalled] in the paper; recalled enters beside the query here, which is the same.
            h, cell = self.attending(torch.cat([start, recalled], 1), (h, cell))
            h = h + start
        return h.view(shape)

    def match(
        self,
        context: Float[Tensor, "task context embed"],
        label: Int[Tensor, "task context"],
        query: Float[Tensor, "task query embed"],
        way: int,
    ) -> Float[Tensor, "task query way"]:
        """Probabilities: attention by cosine, summed over the examples of each label."""
        cosine = F.normalize(self.look(query, context), dim=2) @ F.normalize(context, dim=2).mT
        self.closest = cosine.amax(2)
        attention = (self.log_sharpness.exp() * cosine).softmax(2)
        index = label[:, None].expand_as(attention)
        return attention.new_zeros(*attention.shape[:2], way).scatter_add(2, index, attention)

    @torch.no_grad()
    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        super().adapt(self.embed(x), y, way)
        self._read_again()

    @torch.no_grad()
    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        embedded = self.embed(x)
        super().observe(embedded, y)
        self.in_context = torch.cat([self.in_context, embedded[None]])
        if len(self.context) >= GROWTH * self.read_at:
            self._read_again()

    def _read_again(self) -> None:
        self.read_at = len(self.context)
        self.in_context = self.read(self.context[None])[0] if self.read_at else self.context

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        if not len(self.context):
            return nothing_known(len(x), self.way)
        probability = self.match(self.in_context[None], self.context_label[None], self.embed(x)[None], self.way)[0]
        known = seen(self.context_label, self.way)
        log_probs = probability.clamp(min=1e-9).log().masked_fill(~known, -torch.inf)
        return Scores(log_probs, -self.closest[0])
