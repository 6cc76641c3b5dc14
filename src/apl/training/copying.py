"""A start for decoders of fixed labels: one that already repeats the labels it recalls.

Left to chance, what a row says of its label is a hundredth of what it says of its picture, and finding it takes most of a
training.
"""

from __future__ import annotations

import torch

from apl.decoder.lstm import LSTMDecoder
from apl.decoder.relational import RelationalDecoder
from apl.decoder.working_memory import WorkingMemoryDecoder

COPYING = 15.0
"""How sure a decoder starts out that a label it attends to is the answer, in logits."""


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
