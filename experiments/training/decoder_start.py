"""First weights of the paper's decoders, set by hand; training may change all of them.

Deviation: *by copying*, a decoder of fixed labels starts by repeating the labels it attends to. *By comparing*, attention starts by
following rows with the same key. Neither is the paper's form.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from apl.decoder.labels import FixedLabels
from apl.decoder.lstm import LSTMDecoder
from apl.decoder.relational import RelationalBlock, RelationalDecoder
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
    labels, project = fixed_labels_of(decoder), decoder.inputs.project
    width, hidden = labels.embedding.embedding_dim, project.out_features
    code = torch.randn(hidden, width, generator=torch.Generator().manual_seed(0)) / width**0.5
    with torch.no_grad():
        project.weight[:, decoder.inputs.before_labels :][:, :width] = code
        labels.logits.weight.copy_(COPYING / hidden * labels.embedding.weight @ code.T)
        if sharpness is not None:
            decoder.sharpness.fill_(sharpness)
        if isinstance(decoder, LSTMDecoder):
            # The third of the cell's four parts is what it makes of what it reads: at first, just that.
            decoder.cell.weight_ih[2 * hidden : 3 * hidden] = torch.eye(hidden)
        _quiet_blocks(decoder)


def start_by_comparing(
    decoder: RelationalDecoder | WorkingMemoryDecoder | LSTMDecoder, key_widths: tuple[int, ...], heads: int
) -> None:
    """Begin with heads that follow one key column each: rows with the same key, and the query, attend to one another.

    A part of each state holds a key, what is left says what the row's label is and how far the row is by each key. The LSTM
    has no attention and begins with such states alone.
    """
    inputs, labels = decoder.inputs, fixed_labels_of(decoder)
    hidden = inputs.project.out_features
    size, chance = hidden // heads, torch.Generator().manual_seed(0)
    if len(key_widths) >= heads:
        raise ValueError(f"{len(key_widths)} keys need more heads than {heads}")
    with torch.no_grad():
        column = 0
        for key, width in enumerate(key_widths):
            code = torch.linalg.qr(torch.randn(max(size, width), min(size, width), generator=chance))[0]
            part = slice(key * size, (key + 1) * size)
            for weight, begin in (
                (inputs.project.weight, inputs.before_labels - inputs.width + column),
                (inputs.none.weight, column),
            ):
                weight[part] = 0
                weight[part, begin : begin + width] = code if width < size else code.T
            column += width
            scale = (LIKENESS * size**0.5 / min(size, width)) ** 0.5
            for weight in _queries_and_keys(decoder):
                for head in range(key, heads, len(key_widths)):
                    weight[head * size : (head + 1) * size] = 0
                    weight[head * size : (head + 1) * size, part] = scale * torch.eye(size)
        said = inputs.project.weight[len(key_widths) * size :, inputs.before_labels :]
        width = labels.embedding.embedding_dim
        said.copy_(torch.randn(said.shape, generator=chance))
        said[:, :width] /= width**0.5
        labels.embedding.weight[:, :NUMBER] = torch.linspace(-2, 2, labels.way)[:, None]
        _quiet_blocks(decoder)


def _quiet_blocks(decoder: RelationalDecoder | WorkingMemoryDecoder | LSTMDecoder) -> None:
    if isinstance(decoder, RelationalDecoder):
        for block in blocks_of(decoder):
            norm = block.shared[-1]
            assert isinstance(norm, nn.LayerNorm)
            norm.weight.fill_(FIRST_GAIN)


def _queries_and_keys(decoder: RelationalDecoder | WorkingMemoryDecoder | LSTMDecoder) -> list[Tensor]:
    """The weights that make queries and keys, of each attention there is."""
    if isinstance(decoder, LSTMDecoder):
        return []
    if isinstance(decoder, WorkingMemoryDecoder):
        return [decoder.core.to_q.weight, decoder.core.to_kv.weight.chunk(2)[0]]
    return [part for block in blocks_of(decoder) for part in block.attention.to_qkv.weight.chunk(3)[:2]]


def blocks_of(decoder: RelationalDecoder) -> list[RelationalBlock]:
    return [block for block in decoder.blocks if isinstance(block, RelationalBlock)]


def fixed_labels_of(decoder: RelationalDecoder | WorkingMemoryDecoder | LSTMDecoder) -> FixedLabels:
    if not isinstance(decoder.labels, FixedLabels):
        raise ValueError("only a decoder of fixed labels has first weights to set")
    return decoder.labels
