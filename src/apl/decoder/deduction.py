"""Deduction decoder: a relational decoder that compares rows by each key.

Deviation: not in the paper. The paper's relational module must learn from embeddings alone which of the recalled
rows share a digit or a symbol. Here every two rows (and the query) are compared by each key column, and
attention follows those comparisons: what one equation says about a symbol passes to all equations with that symbol.
One block is applied several times. The answer is read from the query's own state.
"""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from apl.decoder.inputs import Neighbourhood
from apl.decoder.labels import FixedLabels, NeighbourhoodLabels
from apl.posterior import Posterior


class Comparison(nn.Module):
    """Log of the degree to which two rows have the same key, for each key column; thresholds are learnt."""

    def __init__(self, key_widths: tuple[int, ...]) -> None:
        super().__init__()
        self.key_widths = key_widths
        # Layer-normalised embeddings of unlike things are about √(2 · width) apart.
        self.threshold = nn.Parameter(torch.full((len(key_widths),), 1.0))
        self.sharpness = nn.Parameter(torch.full((len(key_widths),), 6.0))

    def forward(self, embeddings: Float[Tensor, "query states embed"]) -> Float[Tensor, "query states states key"]:
        compared = []
        for part, width in zip(embeddings.split(self.key_widths, -1), self.key_widths, strict=True):
            norms = part.square().sum(-1)
            squared = norms[:, :, None] + norms[:, None, :] - 2 * part @ part.transpose(1, 2)
            compared.append(squared / width)
        difference = torch.stack(compared, -1)
        return nn.functional.logsigmoid(self.sharpness * (self.threshold - difference))


class DeductionBlock(nn.Module):
    """Attention among rows that share a key, then a shared two-layer network; both residual."""

    def __init__(self, hidden: int, heads: int, keys: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.to_qkv = nn.Linear(hidden, 3 * hidden)
        self.merge = nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))
        # Each head starts out following one key column; training may mix them.
        follows = torch.arange(heads)[:, None] % keys == torch.arange(keys)
        self.follow = nn.Parameter(follows.float())

    def forward(
        self, states: Tensor, sameness: Tensor, mask: Bool[Tensor, "query states"]
    ) -> tuple[Float[Tensor, "query states hidden"], Float[Tensor, "query heads states other"]]:
        q, k, v = rearrange(
            self.to_qkv(self.before_attention(states)), "b s (three h d) -> three b h s d", three=3, h=self.heads
        )
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + rearrange(sameness @ self.follow.T, "b s o h -> b h s o")
        attention = scores.masked_fill(~mask[:, None, None], -torch.inf).softmax(-1)
        states = states + self.merge(rearrange(attention @ v, "b h s d -> b s (h d)"))
        return states + self.mlp(self.before_mlp(states)), attention


class DeductionDecoder(nn.Module):
    """`rounds` applications of one block to the query and the rows recalled for it."""

    def __init__(
        self,
        key_widths: tuple[int, ...],
        labels: FixedLabels | NeighbourhoodLabels,
        label_width: int,
        hidden: int,
        rounds: int,
        heads: int,
        content: bool,
    ) -> None:
        super().__init__()
        self.labels = labels
        self.rounds = rounds
        self.compare = Comparison(key_widths)
        # Fixed labels are sums here: a row's label is also input as a number.
        self.way = labels.way if isinstance(labels, FixedLabels) else None
        self.read = nn.Linear(label_width + (self.way is not None) + len(key_widths), hidden)
        self.ask = nn.Parameter(0.1 * torch.randn(hidden))
        self.content = nn.Linear(sum(key_widths), hidden, bias=False) if content else None
        self.block = DeductionBlock(hidden, heads, len(key_widths))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, query: Float[Tensor, "query embed"], neighbours: Neighbourhood) -> Posterior:
        embeddings = torch.cat([query[:, None], neighbours.embedding], 1)
        mask = nn.functional.pad(neighbours.mask, (1, 0), value=True)
        sameness = self.compare(embeddings)
        rows = [self.labels.embed(neighbours), sameness[:, 0, 1:].exp()]
        if self.way is not None and neighbours.label is not None:
            rows.append(neighbours.label[..., None] / (self.way - 1) * 4 - 2)
        states = torch.cat([self.ask.expand(len(query), 1, -1), self.read(torch.cat(rows, -1))], 1)
        if self.content is not None:
            states = states + self.content(embeddings)
        for _ in range(self.rounds):
            states, attention = self.block(states, sameness, mask)
        states = self.norm(states)
        looked_at = attention[:, :, 0].mean(1)
        return self.labels.answer(states[:, 0], states, looked_at, query, neighbours)
