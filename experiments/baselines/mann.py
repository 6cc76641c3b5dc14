"""Memory-augmented neural network (Santoro et al. 2016): an LSTM reads and writes a memory by content, and writes either to
what it read last or to what was used least (least-recently-used access).

Deviation: an example enters together with its own label, a query without one. The paper's sequence gives each label one step
late; binding the two over that step is most of what takes its training a hundred thousand episodes. And a key sees the example
itself beside the LSTM's state, so that what is alike is found before the LSTM has learnt to pass it on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from experiments.baselines.interface import (
    ContextLabels,
    Contexts,
    EpisodicMethod,
    Logits,
    Queries,
    Scores,
    scores,
    seen,
)

DECAY = 0.99
"""How much of its use a row keeps from one step to the next (γ)."""

SHARPNESS = 20.0
"""Of attention, before training."""
LABEL_LENGTH = 8.0
"""A label is to weigh in a key, and an embedding has length 16."""


@dataclass(frozen=True)
class MannState:
    """Everything that changes while a sequence is read, of parallel sequences."""

    memory: Float[Tensor, "task row cell"]
    usage: Float[Tensor, "task row"]
    read_weights: Float[Tensor, "task head row"]
    read: Float[Tensor, "task read"]
    h: Float[Tensor, "task hidden"]
    c: Float[Tensor, "task hidden"]


class MemoryAugmentedNetwork(EpisodicMethod):
    def __init__(
        self, width: int, most_classes: int = 20, hidden: int = 200, rows: int = 416, cell: int = 40, heads: int = 4
    ) -> None:
        """Deviation: more rows than the paper's 128. Each head writes a row of its own, so 128 rows hold 32 examples, and the
        100 of a 20-way 5-shot context would overwrite one another."""
        super().__init__()
        self.most_classes = self.places = most_classes
        self.hidden, self.rows, self.cell, self.heads = hidden, rows, cell, heads
        self.controller = nn.LSTMCell(width + most_classes + heads * cell, hidden)
        self.key = nn.Linear(hidden + width + most_classes, heads * cell)
        self.gate = nn.Linear(hidden, heads)
        nn.init.constant_(self.gate.bias, -2.0)  # it begins by writing to what was used least
        self.answer = nn.Linear(hidden + heads * cell, most_classes)
        # Deviation: a learnt sharpness. A softmax of bare cosines over that many rows reads their mean, whatever the key.
        self.log_sharpness = nn.Parameter(torch.tensor(SHARPNESS).log())

    def start(self, tasks: int) -> MannState:
        shapes = ((self.rows, self.cell), (self.rows,), (self.heads, self.rows), (self.heads * self.cell,))
        memory, usage, read_weights, read = (torch.zeros(tasks, *shape) for shape in shapes)
        h, c = torch.zeros(tasks, self.hidden), torch.zeros(tasks, self.hidden)
        # A memory of zeros has no direction to compare a key with.
        return MannState(memory + 1e-6, usage, read_weights, read, h, c)

    def look(
        self, state: MannState, x: Queries, given: Float[Tensor, "task query places"]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What the controller makes of each example as the next of its sequence: its state, its keys, and what they read."""
        shown = torch.cat([x, LABEL_LENGTH * given], 2).flatten(0, 1)
        h, c, read = (part.repeat_interleave(x.shape[1], 0) for part in (state.h, state.c, state.read))
        h, c = self.controller(torch.cat([shown, read], 1), (h, c))
        key = self.key(torch.cat([h, shown], 1)).view(len(x), -1, self.cell).tanh()
        # Read before it is written to: a query's own key, which says nothing of labels, would be the most like it.
        cosine = F.normalize(key, dim=2) @ state.memory.mT / state.memory.norm(dim=2)[:, None].clamp(min=1e-6)
        read_weights = (self.log_sharpness.exp() * cosine).softmax(2)
        return h, c, key, read_weights, (read_weights @ state.memory).view(len(h), -1)

    def step(self, state: MannState, x: Float[Tensor, "task embed"], y: Int[Tensor, " task"]) -> MannState:
        """Read, then write."""
        given = F.one_hot(y, self.places).to(x.dtype)
        h, c, key, read_weights, read = self.look(state, x[:, None], given[:, None])
        gate, least = self.gate(h).sigmoid()[..., None], least_used(state.usage, self.heads)
        write_weights = gate * state.read_weights + (1 - gate) * least
        # The least used row is wiped before anything is written.
        memory = torch.baddbmm(state.memory * (1 - least.amax(1))[..., None], write_weights.mT, key)
        usage = DECAY * state.usage + read_weights.sum(1) + write_weights.sum(1)
        return MannState(memory, usage, read_weights, read, h, c)

    def ask(self, state: MannState, query: Queries) -> Float[Tensor, "task query places"]:
        """Each query as the next of its sequence, without a label; the state stays as it is."""
        h, _, _, _, read = self.look(state, query, query.new_zeros(*query.shape[:2], self.places))
        answer: Tensor = self.answer(torch.cat([h, read], 1))
        return answer.view(*query.shape[:2], -1)

    def logits(self, context: Contexts, label: ContextLabels, query: Queries, way: int) -> Logits:
        state = self.start(len(context))
        for x, y in zip(context.unbind(1), label.unbind(1), strict=True):
            state = self.step(state, x, y)
        return self.ask(state, query)[..., :way]

    @torch.no_grad()
    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.way, self.known = way, seen(y, way)
        self.state = self.start(1)
        for example, label in zip(x, y, strict=True):
            self.observe(example, int(label))

    @torch.no_grad()
    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self.state = self.step(self.state, x[None], torch.tensor([y]))
        self.known[y] = True

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        known: Bool[Tensor, " way"] = self.known if bool(self.known.any()) else ~self.known
        return scores(self.ask(self.state, x[None])[0, :, : self.way].log_softmax(1), known)

    def kept(self) -> int:
        """Its rows are fewer numbers than an embedding has; they are counted as they are."""
        return self.rows


def least_used(usage: Float[Tensor, "task row"], rows: int) -> Float[Tensor, "task rows row"]:
    """One-hot weights on the `rows` least used rows, the least used first."""
    least = usage.topk(rows, dim=1, largest=False).indices
    return F.one_hot(least, usage.shape[1]).to(usage.dtype)
