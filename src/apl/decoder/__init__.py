"""Decoders (paper, section 2.1): a query and its neighbours become a posterior over labels.

`relational`, `working_memory` and `lstm` are the paper's; `kernel`, `class_mean` and `nearest` have no weights. Each is an
`nn.Module` called as `decoder(query, neighbourhood) -> Posterior`, a function of tensors alone. No weight depends on k.
"""

from __future__ import annotations

from typing import get_args

from torch import nn

from apl.config import DecoderConfig, DecoderKind
from apl.decoder.inputs import NeighbourInputs
from apl.decoder.kernel import ClassMeanDecoder, KernelDecoder, NearestDecoder
from apl.decoder.labels import FixedLabels, NeighbourhoodLabels
from apl.decoder.lstm import LSTMDecoder
from apl.decoder.relational import RelationalDecoder
from apl.decoder.working_memory import WorkingMemoryDecoder

__all__ = ["build_decoder"]


def build_decoder(config: DecoderConfig, width: int) -> nn.Module:
    """A decoder for embeddings of this width."""
    if config.kind == "class_mean":
        if not config.class_means:
            raise ValueError("the class_mean decoder needs class_means")
        return ClassMeanDecoder()
    if config.kind == "kernel":
        return KernelDecoder()
    if config.kind == "nearest":
        return NearestDecoder()
    if config.hidden % config.heads:
        raise ValueError(f"hidden ({config.hidden}) must be a multiple of heads ({config.heads})")
    labels = _labels(config)
    inputs = NeighbourInputs(width, config)
    match config.kind:
        case "relational":
            return RelationalDecoder(inputs, labels, config.hidden, config.blocks, config.heads)
        case "working_memory":
            return WorkingMemoryDecoder(inputs, labels, config.hidden, config.unroll, config.heads)
        case "lstm":
            return LSTMDecoder(inputs, labels, config.hidden)
        case unknown:
            raise ValueError(f"no decoder {unknown!r}: choose one of {', '.join(get_args(DecoderKind))}")


def _labels(config: DecoderConfig) -> FixedLabels | NeighbourhoodLabels:
    if config.labels == "neighbourhood":
        return NeighbourhoodLabels(config.label_width, config.hidden, config.class_means)
    if not config.way or config.way < 2:
        raise ValueError("fixed labels need `way`, the number of classes (at least 2)")
    return FixedLabels(config.way, config.label_width, config.hidden)
