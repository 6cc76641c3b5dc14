"""SNAIL (Mishra et al. 2018): a sequence of examples with their labels, the query last and without one, read by causal
convolutions that reach back 1, 2, 4 … steps and by causal attention over everything before.

Several queries may follow the same context without seeing one another: each layer is computed once for the context
and, for each query, as if it were the next in the sequence.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
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

Labelled = Float[Tensor, "task time channel"]
Unlabelled = Float[Tensor, "task query channel"]


class DenseBlock(nn.Module):
    """A gated causal convolution of width two, reaching `dilation` steps back; its output is put beside its input."""

    def __init__(self, channels: int, dilation: int, filters: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.now, self.before = nn.Linear(channels, 2 * filters), nn.Linear(channels, 2 * filters, bias=False)

    def forward(self, context: Labelled, query: Unlabelled) -> tuple[Tensor, Tensor]:
        past = F.pad(context, (0, 0, self.dilation, 0))[:, : context.shape[1]]
        return self._beside(context, past), self.next(context, query)

    def next(self, context: Labelled, query: Unlabelled) -> Tensor:
        """What lies `dilation` back is one of the context, or nothing."""
        back = context.shape[1] - self.dilation
        before = context[:, back : back + 1] if back >= 0 else context.new_zeros(len(context), 1, context.shape[2])
        return self._beside(query, before)

    def _beside(self, x: Tensor, before: Tensor) -> Tensor:
        filtered, gate = (self.now(x) + self.before(before)).chunk(2, -1)
        return torch.cat([x, filtered.tanh() * gate.sigmoid()], -1)


class CausalAttention(nn.Module):
    """Each position reads those up to itself by content; what it read is put beside it."""

    def __init__(self, channels: int, keys: int, values: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (
            nn.Linear(channels, keys),
            nn.Linear(channels, keys),
            nn.Linear(channels, values),
        )
        # Deviation: both begin alike, so that what is alike is attended to before anything is learnt.
        self.query.load_state_dict(self.key.state_dict())
        self.unit = keys**-0.5

    def forward(self, context: Labelled, query: Unlabelled) -> tuple[Tensor, Tensor]:
        keys, values, time = self.key(context), self.value(context), context.shape[1]
        ahead = torch.ones(time, time, dtype=torch.bool).triu(1)
        among = (self.unit * self.query(context) @ keys.mT).masked_fill(ahead, -torch.inf).softmax(-1) @ values
        return torch.cat([context, among], -1), self.next(context, query)

    def next(self, context: Labelled, query: Unlabelled) -> Tensor:
        """A query sees the context and itself, not the other queries."""
        keys, values, asked = self.key(context), self.value(context), self.query(query)
        itself = (asked * self.key(query)).sum(-1, keepdim=True)
        weights = (self.unit * torch.cat([asked @ keys.mT, itself], -1)).softmax(-1)
        read = weights[..., :-1] @ values + weights[..., -1:] * self.value(query)
        return torch.cat([query, read], -1)


class Snail(EpisodicMethod):
    def __init__(
        self, width: int, most_classes: int = 20, longest: int = 101, filters: int = 16, features: int = 64
    ) -> None:
        """Deviation: fewer filters, keys and values than the paper's (128 filters; 64, 256, 512 keys), to be trained in
        about a minute. `features` are the paper's 64; `longest` is the length of the sequences trained on; a longer one is
        only attended to."""
        super().__init__()
        self.most_classes = self.places = most_classes
        self.embed = nn.Linear(width, features)
        reach = math.ceil(math.log2(longest))
        channels = features + most_classes
        layers: list[nn.Module] = []
        for block in range(3):
            layers.append(CausalAttention(channels, 64, 64))
            channels += 64
            for i in range(reach if block < 2 else 0):
                layers.append(DenseBlock(channels, 2**i, filters))
                channels += filters
        self.layers = nn.ModuleList(layers)
        self.answer = nn.Linear(channels, most_classes)

    def logits(self, context: Contexts, label: ContextLabels, query: Queries, way: int) -> Logits:
        labelled, unlabelled = self._labelled(context, label), self._unlabelled(query)
        for layer in self.layers:
            labelled, unlabelled = layer(labelled, unlabelled)
        answer: Tensor = self.answer(unlabelled)
        return answer[..., :way]

    def _labelled(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([self.embed(x), F.one_hot(y, self.places).to(x.dtype)], -1)

    def _unlabelled(self, x: Tensor) -> Tensor:
        return F.pad(self.embed(x), (0, self.places))

    @torch.no_grad()
    def adapt(self, x: Float[Tensor, "example embed"], y: Int[Tensor, " example"], way: int) -> None:
        self.known, self.way, self.length = seen(y, way), way, len(x)
        labelled = self._labelled(x, y)[None]
        self.inputs: list[Tensor] = []
        """Of each layer, for the sequence so far: what comes later changes nothing about it."""
        none = labelled[:, :0]
        for layer in self.layers:
            self.inputs.append(labelled)
            labelled, none = layer(labelled, none)

    @torch.no_grad()
    def observe(self, x: Float[Tensor, " embed"], y: int) -> None:
        self._next(self._labelled(x, torch.tensor(y))[None, None], keep=True)
        self.known[y], self.length = True, self.length + 1

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "query embed"]) -> Scores:
        # An empty context is nothing special here: the query is the first of its sequence.
        logits = self.answer(self._next(self._unlabelled(x)[None], keep=False))[0, :, : self.way]
        return scores(logits.log_softmax(1), self.known if self.length else ~self.known)

    def _next(self, x: Tensor, keep: bool) -> Tensor:
        """Each of these as the next of the sequence; one that is to be kept lengthens it."""
        for place, layer in enumerate(self.layers):
            before = self.inputs[place]
            if keep:
                self.inputs[place] = torch.cat([before, x], 1)
            assert isinstance(layer, CausalAttention | DenseBlock)
            x = layer.next(before, x)
        return x

    def kept(self) -> int:
        return self.length
