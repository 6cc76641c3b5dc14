"""Relational self-attention feed-forward decoder (paper, appendix "Relational Self-attention feed forward module").

Neighbours are compared with the query and with one another in residual self-attention blocks, then summed
with weights from a softmax of their negative distances.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from apl.config import DecoderConfig
from apl.decoder.inputs import Neighbourhood, NeighbourInputs
from apl.decoder.labels import build_labels
from apl.posterior import Posterior


class SelfAttention(nn.Module):
    """Multi-head attention of every state to every valid state."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(hidden, 3 * hidden)
        self.merge = nn.Linear(hidden, hidden)

    def forward(
        self, states: Float[Tensor, "query states hidden"], mask: Bool[Tensor, "query 1 1 states"]
    ) -> Float[Tensor, "query states hidden"]:
        # Plain views, since einops would take a third of the time of a single query.
        q, k, v = self.to_qkv(states).unflatten(2, (3 * self.heads, -1)).transpose(1, 2).chunk(3, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        merged: Tensor = self.merge(mixed.transpose(1, 2).flatten(2))
        return merged


class RelationalBlock(nn.Module):
    """x + LayerNorm(linear(ReLU(attention(x))))."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden, heads)
        self.shared = nn.Sequential(nn.ReLU(), nn.Linear(hidden, hidden), nn.LayerNorm(hidden))

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        added: Tensor = self.shared(self.attention(states, mask))
        return states + added


class RelationalDecoder(nn.Module):
    """Residual blocks over the neighbours, then their sum weighted by distance.

    Deviation: a LayerNorm behind the last block.
    """

    def __init__(self, width: int, config: DecoderConfig) -> None:
        super().__init__()
        self.inputs, self.labels = NeighbourInputs(width, config), build_labels(config)
        self.blocks = nn.ModuleList(RelationalBlock(config.hidden, config.heads) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.hidden)
        self.sharpness = nn.Parameter(torch.tensor(5.0))

    def forward(self, query: Float[Tensor, "query embed"], neighbours: Neighbourhood) -> Posterior:
        states = self.inputs(query, neighbours, self.labels.embed(neighbours))
        mask = self.inputs.mask(neighbours)[:, None, None]
        for block in self.blocks:
            states = block(states, mask)
        states = self.norm(states)
        attention = pooled = None
        if self.labels.pools:
            attention = self.inputs.attention(neighbours, self.sharpness)
            pooled = (attention[..., None] * states).sum(1)
        return self.labels.answer(pooled, states, attention, query, neighbours)
