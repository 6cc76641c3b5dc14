"""Decoders (paper, section 2.1): a query and its neighbours become a posterior over labels.

`relational`, `working_memory` and `lstm` are the paper's; `kernel`, `class_mean` and `nearest` have no weights;
`deduction` compares the recalled rows with one another by each key. Each is an `nn.Module` called as
`decoder(query, neighbours, way) -> Posterior`. No weight depends on k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn

from apl.decoder.deduction import DeductionDecoder
from apl.decoder.inputs import NeighbourInputs
from apl.decoder.kernel import ClassMeanDecoder, KernelDecoder, NearestDecoder
from apl.decoder.labels import FixedLabels, NeighbourhoodLabels, Posterior
from apl.decoder.lstm import LSTMDecoder
from apl.decoder.relational import RelationalDecoder
from apl.decoder.working_memory import WorkingMemoryDecoder

DecoderKind = Literal["relational", "working_memory", "lstm", "kernel", "class_mean", "nearest", "deduction"]
WITHOUT_WEIGHTS: tuple[DecoderKind, ...] = ("kernel", "class_mean", "nearest")
LabelForm = Literal["fixed", "neighbourhood"]

__all__ = ["WITHOUT_WEIGHTS", "DecoderConfig", "DecoderKind", "LabelForm", "Posterior", "build_decoder"]


@dataclass(frozen=True)
class DecoderConfig:
    """Which decoder, and how large."""

    kind: DecoderKind = "relational"
    labels: LabelForm = "neighbourhood"
    way: int | None = None
    """The number of classes; needed by fixed labels, meaningless for neighbourhood labels."""
    hidden: int = 512
    blocks: int = 8
    """Residual blocks of the relational decoder; how often the deduction decoder applies its only one."""
    unroll: int = 5
    """How often the working memory is fed the query."""
    heads: int = 8
    label_width: int = 32
    compare: bool = False
    """Deviation: also show the decoder |e_t - e_m|, feature by feature."""
    class_means: bool = False
    """Deviation: show the decoder how far the query is from the mean of the recalled rows of each row's class."""
    key_distances: bool = False
    """Show the decoder how far each row is by every key column, not only by the one that recalled it."""
    content: bool = True
    """Show the deduction decoder the embeddings themselves, beside which of them are alike."""


def build_decoder(config: DecoderConfig, width: int, key_widths: tuple[int, ...] | None = None) -> nn.Module:
    """A decoder for embeddings of this width, made of these keys (one by default)."""
    key_widths = key_widths or (width,)
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
    told = key_widths if config.key_distances else ()
    inputs = NeighbourInputs(width, config.label_width, config.hidden, config.compare, told, config.class_means)
    if config.labels == "fixed":
        if not config.way or config.way < 2:
            raise ValueError("fixed labels need `way`, the number of classes (at least 2)")
        labels: nn.Module = FixedLabels(config.way, config.label_width, config.hidden)
    else:
        labels = NeighbourhoodLabels(config.label_width, config.hidden, config.class_means)
    match config.kind:
        case "relational":
            return RelationalDecoder(inputs, labels, config.hidden, config.blocks, config.heads)
        case "working_memory":
            return WorkingMemoryDecoder(inputs, labels, config.hidden, config.unroll, config.heads)
        case "lstm":
            return LSTMDecoder(inputs, labels, config.hidden)
        case "deduction":
            return DeductionDecoder(
                key_widths, labels, config.label_width, config.hidden, config.blocks, config.heads, config.content
            )
        case unknown:
            raise ValueError(f"no decoder {unknown!r}: choose one of {', '.join(get_args(DecoderKind))}")
