"""Decoders (paper, section 2.1): a query and its neighbours become a posterior over labels.

`relational`, `working_memory` and `lstm` are the paper's; `kernel`, `class_mean` and `nearest` have no weights. Each is an
`nn.Module` called as `decoder(query, neighbourhood) -> Posterior`, a function of tensors alone. No weight depends on k.
"""

from __future__ import annotations

from torch import nn

from apl.config import DecoderConfig
from apl.decoder.kernel import ClassMeanDecoder, KernelDecoder, NearestDecoder
from apl.decoder.lstm import LSTMDecoder
from apl.decoder.relational import RelationalDecoder
from apl.decoder.working_memory import WorkingMemoryDecoder

__all__ = ["build_decoder"]

TRAINED = {"relational": RelationalDecoder, "working_memory": WorkingMemoryDecoder, "lstm": LSTMDecoder}
UNTRAINED = {"kernel": KernelDecoder, "class_mean": ClassMeanDecoder, "nearest": NearestDecoder}


def build_decoder(config: DecoderConfig, width: int) -> nn.Module:
    """A decoder for embeddings of this width."""
    if config.kind in UNTRAINED:
        return UNTRAINED[config.kind]()
    if config.hidden % config.heads:
        raise ValueError(f"hidden ({config.hidden}) must be a multiple of heads ({config.heads})")
    if config.labels == "fixed" and (config.way or 0) < 2:
        raise ValueError("fixed labels need `way`, the number of classes (at least 2)")
    return TRAINED[config.kind](width, config)
