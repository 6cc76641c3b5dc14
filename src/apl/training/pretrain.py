"""A good start for the encoder: train it as a plain classifier of the training classes.

Deviation: the paper trains the encoder only through the decoder. A cosine softmax over all training
classes teaches the same metric (neighbours in angle) with every image, and many times faster on a CPU.
The class vectors are thrown away afterwards; the encoder alone is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from apl.config import ConvConfig, ImageConfig
from apl.data.jitter import JitterConfig, jitter
from apl.data.labelled import LabelledImages
from apl.data.source import DataSource, Mirrored
from apl.encoder import Encoder, build_encoder, embed_all, scale_bytes
from apl.training.run import Run, RunOptions, plateau
from apl.training.saved_encoder import read_encoder
from apl.weights_file import save_model

VALIDATE_EVERY_STEPS = 1000
SHARPNESS = 16.0
"""Inverse temperature of the cosine softmax."""
DRAWINGS_OF_A_START = 3
"""If the encoder is already trained, the direction of a class starts as the mean of this many of its drawings."""


@dataclass(frozen=True)
class PretrainConfig:
    """How to train an encoder as a classifier."""

    encoder: ImageConfig = field(default_factory=ConvConfig)
    data: DataSource = field(default_factory=DataSource)
    mirrored: Mirrored = "none"
    """Whether mirror images of the training characters are classes too."""
    encoder_from: str | None = None
    """Directory of a saved encoder to go on from; the directions of the classes start at their means."""
    steps: int = 9000
    batch: int = 128
    learning_rate: float = 2e-3
    warmup_steps: int = 200
    decay_share: float = 0.5
    """The learning rate is constant, then falls linearly to zero over this last share of the steps."""
    weight_decay: float = 1e-2
    jitter: JitterConfig = field(default_factory=JitterConfig)
    seed: int = 0

    def train(self, options: RunOptions) -> Encoder:
        return pretrain(self, options)


class CosineClassifier(nn.Module):
    """An encoder with one direction per class."""

    def __init__(self, config: PretrainConfig, classes: int) -> None:
        super().__init__()
        self.encoder = build_encoder(config.encoder)
        self.directions = nn.Parameter(0.05 * torch.randn(classes, self.encoder.width))

    def forward(self, images: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image way"]:
        return SHARPNESS * F.normalize(self.encoder(images), dim=1) @ F.normalize(self.directions, dim=1).T


def pretrain(config: PretrainConfig, options: RunOptions) -> Encoder:
    """Train, save the encoder under `options.directory`, and return it."""
    torch.manual_seed(config.seed)
    train = config.data.load_training(config.encoder.image_size, config.mirrored)
    validation = config.data.load("validation", config.encoder.image_size)
    model = CosineClassifier(config, len(train.class_names)).to(options.device)
    if config.encoder_from is not None:
        read_encoder(config.encoder_from).load_into(model.encoder)
        if not options.resume:
            few = train.first_of_each(DRAWINGS_OF_A_START)
            model.directions.data.copy_(class_directions(embed_all(model.encoder, few.images), few))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=config.weight_decay, fused=True)
    run = Run(config, options, model, optimiser, config.seed)

    for _ in run.rounds(config.steps):
        chosen = torch.randint(len(train), (config.batch,), generator=run.generator)
        images = jitter(scale_bytes(train.images[chosen].to(options.device)), config.jitter, run.generator)
        labels = train.labels[chosen].to(options.device)
        with options.autocast():
            logits = model(images)
        loss = F.cross_entropy(logits.float(), labels)
        step = run.state["step"]
        run.descend(loss, plateau(step, config.steps, config.learning_rate, config.decay_share, config.warmup_steps))
        run.record(len(labels), loss=loss, accuracy=(logits.argmax(1) == labels).float().mean())
        if run.state["step"] % VALIDATE_EVERY_STEPS == 0:
            run.log(**one_shot_accuracy(model.encoder, validation))
    started = {"started_from": read_encoder(config.encoder_from).provenance} if config.encoder_from else {}
    validated = {} if config.data.with_validation else one_shot_accuracy(model.encoder, validation)
    provenance = run.provenance("classifier of the training classes", config.data, validated, **started)
    save_model(options.directory / "encoder", model.encoder, config.encoder, provenance, half=False)
    return model.encoder


def class_directions(vectors: Float[Tensor, "image embed"], data: LabelledImages) -> Float[Tensor, "way embed"]:
    """The mean direction of each class, of the vectors of its images."""
    sums = torch.zeros(len(data.class_names), vectors.shape[1], device=vectors.device)
    return F.normalize(sums.index_add_(0, data.labels.to(vectors.device), F.normalize(vectors, dim=1)), dim=1)


def one_shot_accuracy(encoder: Encoder, data: LabelledImages, seed: int = 0) -> dict[str, float]:
    """Nearest-neighbour accuracy over all classes of `data` at once: one stored example each, and class means of five."""
    embeddings = F.normalize(embed_all(encoder, data.images), dim=1)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data), generator=generator)
    by_class = order[data.labels[order].argsort(stable=True)]
    per_class = int(data.labels.bincount().min())
    start = data.labels.bincount().cumsum(0) - data.labels.bincount()
    drawn: Int[Tensor, "way drawing"] = by_class[start[:, None] + torch.arange(per_class)]
    stored, asked = embeddings[drawn[:, :5]], embeddings[drawn[:, 5:]]
    truth = torch.arange(len(drawn))[:, None]

    def accuracy(prototypes: Float[Tensor, "way embed"]) -> float:
        return float(((asked @ F.normalize(prototypes, dim=-1).T).argmax(-1) == truth).float().mean())

    way = len(drawn)
    return {f"val_{way}way_1shot": accuracy(stored[:, 0]), f"val_{way}way_5shot_mean": accuracy(stored.mean(1))}
