"""Where the training of a paper's decoder begins. Only the first weights are set; training may move all of them.

*By copying*: with fixed labels, what a row says of its label is by chance a hundredth of what it says of its picture, and
finding it takes most of a training. *By comparing*: where a memory has several keys, attention that begins by looking at
rows with the same key need not find out what likeness is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apl.decoder.lstm import LSTMDecoder
from apl.decoder.relational import RelationalDecoder
from apl.decoder.working_memory import WorkingMemoryDecoder

COPYING = 15.0
"""How sure a decoder starts out that a label it attends to is the answer, in logits."""
LIKENESS = 8.0
"""How much more a row begins by attending to one with the same key than to an unlike one, in nats."""
NUMBER = 4
"""How many numbers of a label's embedding begin as its place among the labels, which are sums here."""
FIRST_GAIN = 0.3
"""How loud a block is at first: what rows are known by must survive the blocks before."""


def start_by_copying(
    decoder: RelationalDecoder | WorkingMemoryDecoder | LSTMDecoder, sharpness: float | None = None
) -> None:
    """Begin as a decoder that repeats the labels it attends to: by nearness, `sharpness` times the distance, or (the LSTM)
    the last read most."""
    labels, project = decoder.labels, decoder.inputs.project
    width, hidden = labels.embedding.embedding_dim, project.out_features
    code = torch.randn(hidden, width, generator=torch.Generator().manual_seed(0)) / width**0.5
    with torch.no_grad():
        project.weight[:, 2 * decoder.inputs.width :][:, :width] = code
        labels.logits.weight.copy_(COPYING / hidden * labels.embedding.weight @ code.T)
        if sharpness is not None:
            decoder.sharpness.fill_(sharpness)
        if isinstance(decoder, LSTMDecoder):
            # The third of the cell's four parts is what it makes of what it reads: at first, just that.
            decoder.cell.weight_ih[2 * hidden : 3 * hidden] = torch.eye(hidden)


def start_by_comparing(decoder: RelationalDecoder | WorkingMemoryDecoder, key_widths: tuple[int, ...]) -> None:
    """Begin with heads that follow one key column each: rows with the same key, and the query, attend to one another."""
    labels, hidden, heads = decoder.labels, decoder.inputs.project.out_features, _attention(decoder)[0][2]
    size, chance = hidden // heads, torch.Generator().manual_seed(0)
    if len(key_widths) > heads:
        raise ValueError(f"{len(key_widths)} keys need as many heads, there are {heads}")
    with torch.no_grad():
        begin = 0
        for key, width in enumerate(key_widths):
            code = torch.linalg.qr(torch.randn(max(size, width), min(size, width), generator=chance))[0]
            code = code if width < size else code.T
            states = slice(key * size, (key + 1) * size)
            columns = slice(begin, begin + width)
            for weight, at in ((decoder.inputs.project.weight, decoder.inputs.width), (decoder.inputs.none.weight, 0)):
                weight[states] = 0
                weight[states, at + columns.start : at + columns.stop] = code
            begin += width
            scale = (LIKENESS * size**0.5 / min(size, width)) ** 0.5
            for query, keys, of in _attention(decoder):
                for head in range(key, of, len(key_widths)):
                    for weight in (query, keys):
                        weight[head * size : (head + 1) * size] = 0
                        weight[head * size : (head + 1) * size, states] = scale * torch.eye(size)
        # What is left of a state says what the row's label is and how far the row is by each key, as loudly.
        rest, spoken = (
            slice(len(key_widths) * size, hidden),
            decoder.inputs.project.weight[:, 2 * decoder.inputs.width :],
        )
        spoken[rest] = torch.randn(spoken[rest].shape, generator=chance)
        spoken[rest, : labels.embedding.embedding_dim] /= labels.embedding.embedding_dim**0.5
        labels.embedding.weight[:, :NUMBER] = torch.linspace(-2, 2, labels.way)[:, None]
        if isinstance(decoder, RelationalDecoder):
            for block in decoder.blocks:
                block.shared[-1].weight.fill_(FIRST_GAIN)


def _attention(decoder: RelationalDecoder | WorkingMemoryDecoder) -> list[tuple[Tensor, Tensor, int]]:
    """Weights that make queries and keys, and the number of heads, of each attention there is."""
    if isinstance(decoder, WorkingMemoryDecoder):
        core = decoder.core
        return [(core.to_q.weight, core.to_kv.weight[: len(core.to_q.weight)], core.heads)]
    made = [(block.attention.to_qkv.weight.chunk(3), block.attention.heads) for block in decoder.blocks]
    return [(query, key, heads) for (query, key, _), heads in made]
