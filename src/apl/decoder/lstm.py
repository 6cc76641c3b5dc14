"""LSTM decoder (paper, appendix "LSTM"): the state starts as the query; the neighbours are read one by one.

The paper does not give the order. The nearest is read last, so that it influences the final state most.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from apl.config import DecoderConfig
from apl.decoder.inputs import Neighbourhood, NeighbourInputs
from apl.decoder.labels import build_labels
from apl.posterior import Posterior


class LSTMDecoder(nn.Module):
    """k steps of one cell, one per neighbour; an empty memory leaves the query's own state.

    Deviation: the query is projected to the two parts of the state, since it is not as wide as they are.
    Deviation: a LayerNorm in front of the logits.
    """

    def __init__(self, width: int, config: DecoderConfig) -> None:
        super().__init__()
        self.inputs, self.labels = NeighbourInputs(width, config), build_labels(config)
        self.start = nn.Linear(width, 2 * config.hidden)
        self.cell = nn.LSTMCell(config.hidden, config.hidden)
        self.norm = nn.LayerNorm(config.hidden)
        self.sharpness = nn.Parameter(torch.tensor(5.0))

    def forward(self, query: Float[Tensor, "query embed"], neighbours: Neighbourhood) -> Posterior:
        read = self.inputs(query, neighbours, self.labels.embed(neighbours))
        mask = self.inputs.mask(neighbours)
        h, c = self.start(query).chunk(2, -1)
        h = h.tanh()
        for i in reversed(range(1, read.shape[1])):
            new_h, new_c = self.cell(read[:, i], (h, c))
            valid = mask[:, i, None]
            h, c = torch.where(valid, new_h, h), torch.where(valid, new_c, c)
        # Neighbourhood labels score each row: its input beside the final state.
        states = self.norm(F.relu(read + h[:, None]))
        attention = self.inputs.attention(neighbours, self.sharpness)
        return self.labels.answer(self.norm(h), states, attention, query, neighbours)
