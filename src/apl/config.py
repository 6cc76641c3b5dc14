"""What defines a learner but its weights: frozen dataclasses that are saved as JSON beside every model.

They are read by whoever trains a model and by whoever only uses one, so nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Metric = Literal["euclidean", "cosine"]

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
DecoderKind = Literal["relational", "working_memory", "lstm", "kernel", "class_mean", "nearest", "deduction"]
WITHOUT_WEIGHTS: tuple[DecoderKind, ...] = ("kernel", "class_mean", "nearest")
LabelForm = Literal["fixed", "neighbourhood"]


@dataclass(frozen=True)
class Group:
    """Consecutive blocks of one width; one of them may halve the image."""

    channels: int
    blocks: int
    stride: int = 2


@dataclass(frozen=True)
class ConvConfig:
    """A residual convolutional encoder. The defaults are the paper's: 12 blocks of 64, 28×28 → 256."""

    image_size: int = 28
    stem_channels: int = 64
    stem_kernel: int = 3
    stem_stride: int = 1
    groups: tuple[Group, ...] = (Group(64, 3), Group(64, 3), Group(64, 3), Group(64, 3))
    stride_on: Literal["first", "last"] = "first"
    """Which block of a group carries the stride. The paper does not say; "last" costs about twice as much."""
    skip: bool = True
    """Add the input of a block to its output wherever the two have the same shape."""
    channels: int = field(default=1, repr=False)
    """1 sees grey, 3 sees colours. Not part of the name a fingerprint is made of: the weights tell the two apart."""


@dataclass(frozen=True)
class JointConfig:
    """Several encoders that look at the same image, and one representation made of theirs."""

    parts: tuple[ConvConfig, ...]
    width: int = 256

    @property
    def image_size(self) -> int:
        return self.parts[0].image_size

    @property
    def channels(self) -> int:
        return self.parts[0].channels


@dataclass(frozen=True)
class IdentityConfig:
    """Vectors are their own representation."""

    width: int
    normalise: bool = False
    """Layer-normalise the vector, as the convolutional encoder does."""


@dataclass(frozen=True)
class PairConfig:
    """A digit and a symbol, shown together (paper, section 4.5); each is a key column of the memory."""

    digit: ConvConfig
    symbol: ConvConfig | IdentityConfig


ImageConfig = ConvConfig | JointConfig
EncoderConfig = ImageConfig | IdentityConfig | PairConfig


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
    counts: bool = False
    """Deviation: show the decoder how many examples stand behind each row, in memories that consolidate."""
    key_distances: bool = False
    """Show the decoder how far each row is by every key column, not only by the one that recalled it."""
    content: bool = True
    """Show the deduction decoder the embeddings themselves, beside which of them are alike."""


@dataclass(frozen=True)
class LearnerConfig:
    """Everything that defines a learner but its weights."""

    encoder: EncoderConfig = field(default_factory=ConvConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    k: int = 5
    """Neighbours recalled by each key column. May be changed after training."""
    hops: int = 1
    """Deviation: from the second hop on, the rows already recalled recall their own neighbours: two facts may
    be joined by a third that shares nothing with the query. For memories of the size of an episode."""
    sigma_ratio: float = 0.75
    """The threshold of surprise is this share of ln N."""
    metric: Metric = "euclidean"
    distance_gradient: bool = True
    """Let the distance to the (constant) neighbours carry gradient into the (live) query embedding."""
