"""Relational working memory decoder (paper, appendix "Relational working memory"; Santoro et al. 2018).

The slots of a relational memory core start as the neighbours {e_m, l_m, d_m}. The query is fed five times. Each time every
slot attends to all slots and to the query, and gates decide what it keeps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from apl.config import DecoderConfig
from apl.decoder.inputs import Neighbourhood, NeighbourInputs
from apl.decoder.labels import build_labels
from apl.posterior import Posterior


class RelationalMemoryCore(nn.Module):
    """One step of the core: M' = f ∘ M + i ∘ tanh(MLP(attend(M, [M; x])))."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(hidden, hidden)
        self.to_kv = nn.Linear(hidden, 2 * hidden)
        self.after_attention = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.after_mlp = nn.LayerNorm(hidden)
        self.gates_of_input = nn.Linear(hidden, 2 * hidden)
        self.gates_of_memory = nn.Linear(hidden, 2 * hidden)

    def forward(
        self,
        slots: Float[Tensor, "query states hidden"],
        fed: Float[Tensor, "query 1 hidden"],
        mask: Tensor,
    ) -> Float[Tensor, "query states hidden"]:
        seen = torch.cat([slots, fed], 1)
        q = rearrange(self.to_q(slots), "b s (h d) -> b h s d", h=self.heads)
        k, v = rearrange(self.to_kv(seen), "b s (two h d) -> two b h s d", two=2, h=self.heads)
        mask = F.pad(mask, (0, 1), value=True)[:, None, None]
        mixed = rearrange(F.scaled_dot_product_attention(q, k, v, attn_mask=mask), "b h s d -> b s (h d)")
        proposal: Tensor = self.after_attention(slots + mixed)
        proposal = self.after_mlp(proposal + self.mlp(proposal))
        gates: Tensor = self.gates_of_input(fed) + self.gates_of_memory(slots.tanh())
        write, forget = gates.chunk(2, -1)
        # The forget gate opens with a bias of 1, as in LSTMs, so that slots survive the first steps.
        return slots * (forget + 1).sigmoid() + proposal.tanh() * write.sigmoid()


class WorkingMemoryDecoder(nn.Module):
    """A relational memory core whose slots start as the neighbours; the query is its input, `unroll` times.

    Deviation: the slots are pooled by distance behind a LayerNorm. In the paper a linear layer reads all of them, so that
    its weights depend on k.
    """

    def __init__(self, width: int, config: DecoderConfig) -> None:
        super().__init__()
        self.inputs, self.labels = NeighbourInputs(width, config), build_labels(config)
        self.feed = nn.Linear(width, config.hidden)
        self.core = RelationalMemoryCore(config.hidden, config.heads)
        self.steps = config.unroll
        self.norm = nn.LayerNorm(config.hidden)
        self.sharpness = nn.Parameter(torch.tensor(5.0))

    def forward(self, query: Float[Tensor, "query embed"], neighbours: Neighbourhood) -> Posterior:
        slots = self.inputs(query, neighbours, self.labels.embed(neighbours))
        mask = self.inputs.mask(neighbours)
        fed = self.feed(query)[:, None]
        for _ in range(self.steps):
            slots = self.core(slots, fed, mask)
        states = self.norm(slots)
        attention = self.inputs.attention(neighbours, self.sharpness)
        pooled = (attention[..., None] * states).sum(1)
        return self.labels.answer(pooled, states, attention, query, neighbours)
