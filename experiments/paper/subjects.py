"""The learners under test and the embedded test characters, shared by all Omniglot experiments.

Embedding the images is most of the work of an evaluation and the same for all experiments, so it is done
once per encoder and process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from apl.config import ConvConfig, DecoderKind, JointConfig
from apl.data.jitter import JitterConfig, jitter
from apl.data.omniglot import Part
from apl.data.source import DataSource
from apl.device import CPU
from apl.encoder import Encoder, embed_all, scale_bytes
from apl.evaluate import variant
from apl.learner import Learner
from apl.reading.ensemble import EnsembleReading
from apl.training.saved_encoder import read_encoder
from experiments.paper.embedding_cache import embed_once

MODEL = "omniglot"
TRAINED_DECODERS = {"relational": MODEL, "working_memory": "omniglot-working-memory", "lstm": "omniglot-lstm"}
SLIGHTLY = JitterConfig(rotation_degrees=5.0, scale=0.06, shear=0.06, shift=0.03, elastic=0.015, thickness=0.0)
DECODERS: tuple[DecoderKind, ...] = ("relational", "working_memory", "lstm", "kernel", "class_mean", "nearest")


@dataclass(frozen=True)
class Embedded:
    """A data set as one encoder sees it."""

    embeddings: Float[Tensor, "example embed"]
    labels: Int[Tensor, " example"]
    split: str
    split_hash: str
    model: str = ""
    """The name or directory of the encoder's model, where it is one of ours."""


@dataclass(frozen=True)
class Subject:
    """One learner under test, reading embeddings."""

    method: str
    decoder: str
    labels: str
    checkpoint: str
    learner: Learner

    def row(self, data: Embedded, **figures: object) -> dict[str, object]:
        """The part of a result row that says what was tested on what."""
        return {
            "method": self.method,
            "decoder": self.decoder,
            "labels": self.labels,
            "checkpoint": self.checkpoint,
            "split": data.split,
            "split_hash": data.split_hash,
            "k": self.learner.config.k,
            "rule": "consolidating" if isinstance(self.learner.reading, EnsembleReading) else "plain",
            **figures,
        }


def subject(
    decoder: DecoderKind = "relational",
    *,
    k: int | None = None,
    sigma_nats: float | None = None,
    consolidate: bool = False,
) -> Subject:
    """Our learner with one of the five decoders, on the shared encoder."""
    trained = decoder in TRAINED_DECODERS
    checkpoint = TRAINED_DECODERS[decoder] if trained else MODEL
    learner = variant(
        checkpoint, k=k, decoder=None if trained else decoder, sigma_nats=sigma_nats, consolidate=consolidate
    )
    method = "ours" if decoder == "relational" else f"ours, {decoder.replace('_', ' ')} decoder"
    if consolidate:
        method += ", consolidating"
    return Subject(method, decoder, "neighbourhood", checkpoint, learner.on_embeddings())


def image_size(learner: Learner) -> int:
    config = learner.config.encoder
    if not isinstance(config, (ConvConfig, JointConfig)):
        raise ValueError("this model does not take pictures alone")
    return config.image_size


_device = [CPU]


def compute_on(device: torch.device) -> None:
    """Where the experiments' encoders compute from now on: embedding the images is most of their work."""
    _device[0] = device


def encoder_of(model: str) -> Encoder:
    return read_encoder(model).build().to(_device[0])


QUICK_DRAWINGS = 10
"""Drawings of each class (of 20) in a small version with rotations."""


@cache
def characters(
    rotations: bool, part: Part = "test", model: str = MODEL, views: int = 1, quick: bool = False
) -> Embedded:
    """Omniglot characters of the paper's split, embedded by a bundled model's encoder."""
    learner = Learner.load(model).to(_device[0])
    source = DataSource(rotations=rotations)
    images = source.load(part, image_size(learner))
    if quick and rotations:
        images = images.first_of_each(QUICK_DRAWINGS)
    embeddings = (
        embed_once(learner, images.images) if views == 1 else embed_views(learner.encoder, images.images, views)
    )
    return Embedded(embeddings, images.labels, source.split_name(), source.split_hash(), model)


def embed_views(encoder: Encoder, images: Tensor, views: int) -> Float[Tensor, "image embed"]:
    """With several `views` an embedding is the mean of the drawing's own and of its slightly deformed copies'."""
    embeddings = embed_all(encoder, images)
    generator = torch.Generator().manual_seed(0)
    for _ in range(views - 1):
        # A part at a time: deformed copies are four times as large as bytes.
        for embedding, drawn in zip(embeddings.split(2048), images.split(2048), strict=True):
            embedding += embed_all(encoder, jitter(scale_bytes(drawn), SLIGHTLY, generator))
    # A mean is shorter than what it is the mean of: back to the length that every embedding has.
    return F.normalize(embeddings, dim=1) * encoder.width**0.5 if views > 1 else embeddings
