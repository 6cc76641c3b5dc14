"""A trained relational decoder laid out anew for one query at a time.

The same answer to within rounding, computed with numpy: for the sixteen rows of one query a call of torch costs more
than its arithmetic. What does not depend on the query is worked out once, when the decoder is laid out.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from apl.decoder.labels import NeighbourhoodLabels, Posterior, first_with_same_label, number_by_first_appearance
from apl.decoder.relational import RelationalBlock, RelationalDecoder
from apl.memory import Neighbours


class Linear:
    """y = x W + b."""

    def __init__(self, layer: nn.Linear) -> None:
        self.weight = np.ascontiguousarray(layer.weight.numpy().T)
        self.bias = 0.0 if layer.bias is None else layer.bias.numpy()

    def __call__(self, x: Float[np.ndarray, "states width"]) -> Float[np.ndarray, "states new_width"]:
        y = x @ self.weight
        y += self.bias
        return y


class LayerNorm:
    def __init__(self, layer: nn.LayerNorm) -> None:
        self.weight, self.bias, self.epsilon = layer.weight.numpy(), layer.bias.numpy(), layer.eps

    def __call__(self, x: Float[np.ndarray, "states width"]) -> Float[np.ndarray, "states width"]:
        width = x.shape[1]
        x = x - (x.sum(1, keepdims=True) / width)
        x /= np.sqrt(np.einsum("sw,sw->s", x, x) / width + self.epsilon)[:, None]
        x *= self.weight
        x += self.bias
        return x


class Block:
    def __init__(self, block: RelationalBlock) -> None:
        self.heads = block.attention.heads
        self.to_qkv, self.merge = Linear(block.attention.to_qkv), Linear(block.attention.merge)
        _, shared, norm = block.shared
        self.shared, self.norm = Linear(shared), LayerNorm(norm)

    def __call__(self, states: Float[np.ndarray, "states hidden"]) -> Float[np.ndarray, "states hidden"]:
        q, k, v = self.to_qkv(states).reshape(len(states), 3, self.heads, -1).transpose(1, 2, 0, 3)
        looks = q @ k.transpose(0, 2, 1)
        looks /= np.float32(q.shape[-1] ** 0.5)
        looks -= looks.max(-1, keepdims=True)
        np.exp(looks, out=looks)
        looks /= looks.sum(-1, keepdims=True)
        mixed = self.merge((looks @ v).transpose(1, 0, 2).reshape(states.shape))
        return states + self.norm(self.shared(np.maximum(mixed, 0, out=mixed)))


class OneQueryDecoder(nn.Module):
    """Reads single queries with numpy, and hands all else to the decoder it was made of."""

    def __init__(self, decoder: RelationalDecoder) -> None:
        super().__init__()
        self.whole = decoder
        inputs, labels = decoder.inputs, decoder.labels
        width = inputs.width
        project = inputs.project.weight.numpy()
        columns = [
            width,
            width,
            labels.codes.shape[1],
            1,
            *([width] if inputs.compare else []),
            *([1] * inputs.class_means),
        ]
        asked, recalled, code, distance, *more = np.split(project, np.cumsum(columns)[:-1], axis=1)
        # The query's share of every row's state, and the state that stands for "none of these".
        self.ask = np.ascontiguousarray(np.concatenate([inputs.none.weight.numpy(), asked]).T)
        self.ask_bias = np.concatenate([inputs.none.bias.numpy(), inputs.project.bias.numpy()])
        self.codes = labels.codes.numpy() @ code.T
        self.difference = np.ascontiguousarray(more.pop(0).T) if inputs.compare else None
        self.recalled = np.ascontiguousarray(recalled.T)
        self.distances = np.stack([distance[:, 0], *(part[:, 0] for part in more)]) / np.float32(width**0.5)
        self.blocks = [Block(block) for block in decoder.blocks]
        self.norm, self.score = LayerNorm(decoder.norm), Linear(labels.score)
        sharpness = [labels.sharpness, *([] if labels.class_sharpness is None else [labels.class_sharpness])]
        self.sharpness = np.array([float(s) for s in sharpness], np.float32) / np.float32(width**0.5)
        self.none_logit = -sum(float(s) for s in sharpness) * float(labels.none_distance)

    def forward(self, query: Float[Tensor, "query embed"], neighbours: Neighbours, way: int) -> Posterior:
        label, mask = neighbours.columns["label"].numpy(), neighbours.mask.numpy()
        if len(query) != 1 or not mask.all() or int(label.max()) >= way:
            return self.whole(query, neighbours, way)
        asked, rows = query.numpy(), neighbours.columns["embedding"].numpy()[0]
        distances = [neighbours.distance.numpy()]
        if len(self.distances) > 1:
            distances.append(neighbours.columns["class_distance"].numpy())
        apart = np.concatenate(distances).T

        hidden = self.recalled.shape[1]
        states = np.empty((len(rows) + 1, hidden), np.float32)
        said = (asked @ self.ask)[0] + self.ask_bias
        states[0] = said[:hidden]
        np.matmul(rows, self.recalled, out=states[1:])
        if self.difference is not None:
            difference = rows - asked
            states[1:] += np.abs(difference, out=difference) @ self.difference
        states[1:] += apart @ self.distances
        states[1:] += self.codes[number_by_first_appearance(label, mask)[0] % NeighbourhoodLabels.SLOTS]
        states[1:] += said[hidden:]
        for block in self.blocks:
            states = block(states)
        logits = self.score(self.norm(states))[:, 0]
        logits[0] += self.none_logit
        logits[1:] -= apart @ self.sharpness
        return _share_out(logits, label[0], first_with_same_label(label, mask)[0], way)


def _share_out(logits: Float[np.ndarray, " states"], label: np.ndarray, first: np.ndarray, way: int) -> Posterior:
    """`apl.decoder.labels.share_out` for one query."""
    is_first = first == np.arange(len(first))
    absent = way - int(is_first.sum())
    if not absent:
        logits[0] = -np.inf
    logits -= logits.max()
    log_shares = logits - np.log(np.exp(logits).sum())
    log_class = np.full(len(first), -np.inf, np.float32)
    np.logaddexp.at(log_class, first, log_shares[1:])
    log_probs = np.full((1, way), log_shares[0] - np.log(np.float32(max(absent, 1))))
    log_probs[0, label[is_first]] = log_class[is_first]
    weight = np.exp(log_shares[None, 1:])
    return Posterior(torch.from_numpy(log_probs), torch.from_numpy(log_shares[:1]), torch.from_numpy(weight))


@torch.no_grad()
def for_one_query(decoder: nn.Module) -> nn.Module:
    """The decoder for calls with a single query. It is made of the weights as they are: train first.

    Other kinds than the relational decoder with neighbourhood labels come back as they are.
    """
    known = isinstance(decoder, RelationalDecoder) and isinstance(decoder.labels, NeighbourhoodLabels)
    return OneQueryDecoder(decoder) if known and not decoder.inputs.key_widths else decoder
