"""Omniglot's characters as an encoder sees them, shared by all experiments: embedding is most of the work of an evaluation, and
done once per encoder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from jaxtyping import Float, Int
from torch import Tensor

from apl.config import ConvConfig, EncoderConfig, JointConfig
from apl.data import Part
from apl.data.source import DataSource
from apl.learner import Learner
from experiments.paper.embedding_cache import embed_once

MODEL = "omniglot"
FEW_DRAWINGS = 10
"""Drawings of each class (of 20) where rotations are classes and few are enough."""


@dataclass(frozen=True)
class Embedded:
    """A data set as one encoder sees it."""

    embeddings: Float[Tensor, "example embed"]
    labels: Int[Tensor, " example"]
    split: str
    split_hash: str
    model: str = ""
    """The name or directory of the encoder's model, where it is one of ours."""


def image_size(config: EncoderConfig) -> int:
    if not isinstance(config, (ConvConfig, JointConfig)):
        raise ValueError("this model does not take pictures alone")
    return config.image_size


@cache
def characters(rotations: bool, part: Part = "test", model: str = MODEL, few: bool = False) -> Embedded:
    """Omniglot characters of the paper's split, embedded by a bundled model's encoder."""
    learner, source = Learner.load(model), DataSource(rotations=rotations)
    images = source.load(part, image_size(learner.config.encoder))
    if few and rotations:
        images = images.first_of_each(FEW_DRAWINGS)
    embeddings = embed_once(learner, images.images)
    return Embedded(embeddings, images.labels, source.split_name(), source.split_hash(), model)
