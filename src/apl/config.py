"""Learner configuration: frozen dataclasses, saved as JSON beside every model.

The defaults are the paper's form. A field marked `Deviation:` is an addition of this project, one marked `Release:`
follows the authors' code (github.com/cogentlabs/apl) where the paper is silent; docs/explanation/departures.md lists all of them.
Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Metric = Literal["euclidean", "cosine"]

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
DecoderKind = Literal["relational", "working_memory", "lstm", "kernel", "class_mean", "nearest"]
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
    """A convolutional encoder. The defaults are the paper's: 12 blocks of 64 channels, 28×28 pixels to 256 numbers."""

    image_size: int = 28
    stem_channels: int = 64
    stem_kernel: int = 3
    stem_stride: int = 1
    groups: tuple[Group, ...] = (Group(64, 3), Group(64, 3), Group(64, 3), Group(64, 3))
    stride_on: Literal["first", "last"] = "first"
    """Release: the first block of each group carries the stride. The paper says "every three blocks"; "last" costs
    about twice as much."""
    skip: bool = False
    """Release: add the input of a block to its output where the two have the same shape."""
    channels: int = field(default=1, repr=False)
    """1 for grey images, 3 for colour. Not part of a fingerprint's name: the weights differ anyway."""


@dataclass(frozen=True)
class JointConfig:
    """Several encoders of the same image, projected to one representation."""

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
    symbol: IdentityConfig


ImageConfig = ConvConfig | JointConfig
EncoderConfig = ImageConfig | IdentityConfig | PairConfig


@dataclass(frozen=True)
class DecoderConfig:
    """Kind and size of a decoder."""

    kind: DecoderKind = "relational"
    labels: LabelForm = "neighbourhood"
    """Deviation: `neighbourhood` labels are numbered inside each neighbourhood; the paper's are `fixed`."""
    way: int | None = None
    """Number of classes. Required by fixed labels, ignored by neighbourhood labels."""
    hidden: int = 512
    blocks: int = 8
    """Residual blocks of the relational decoder."""
    unroll: int = 5
    """Number of times the working memory is fed the query."""
    heads: int = 8
    label_width: int = 32
    compare: bool = False
    """Deviation: input |e_t - e_m| for each neighbour."""
    class_means: bool = False
    """Deviation: input the query's distance from the mean of the recalled rows of each neighbour's class."""


@dataclass(frozen=True)
class LearnerConfig:
    """Everything about a learner except its weights."""

    encoder: EncoderConfig = field(default_factory=ConvConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    k: int = 5
    """Release: 5 neighbours for Omniglot, which the paper does not say. By each key column; may be changed after training."""
    sigma_ratio: float = 0.75
    """Release: the threshold of surprise is this share of ln N. The paper says "proportional"."""
    metric: Metric = "euclidean"
    distance_gradient: bool = False
    """Deviation: the distance to the (constant) neighbours carries gradient into the (live) query embedding."""
