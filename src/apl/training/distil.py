"""One encoder that has learnt from another, larger one, and to see through other pens.

The teacher (a saved encoder of images, the bundled ensemble for one) looks at a drawing as it is; the student sees
it deformed, half of the time by another pen, and must give the teacher's representation. Beside the training classes
there are figures laid over one another at random: nobody was trained on those, so there the teacher shows how it
sees what is new. The student's class directions start at the teacher's class means.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from apl.checkpoint import current_commit, save_model, to_json
from apl.data.jitter import JitterConfig, jitter
from apl.data.pens import PenConfig, other_pen
from apl.data.source import DataSource, Mirrored
from apl.encoder import JointConfig, JointEncoder, build_encoder, scale_bytes
from apl.training.digits import digit_accuracy
from apl.training.pretrain import one_shot_accuracy
from apl.training.run import LOG_EVERY_SECONDS, Run, RunOptions
from apl.training.saved_encoder import read_encoder

FIT_ON = 10_000
"""Drawings on which the student's first map into the teacher's space is fitted."""

LAID_OVER = JitterConfig(rotation_degrees=30.0, scale=0.4, shear=0.3, shift=0.35, elastic=0.08, thickness=0.0)


@dataclass(frozen=True)
class DistilConfig:
    """Who teaches whom, and what the student sees."""

    teacher: str = "omniglot"
    """A bundled model's name, or the directory of a saved encoder or model whose encoder is several joined ones."""
    part: int = 0
    """Which of the teacher's networks the student starts from (and is shaped like)."""
    data: DataSource = field(default_factory=DataSource)
    mirrored: Mirrored = "for_encoder"
    jitter: JitterConfig = field(
        default_factory=lambda: JitterConfig(rotation_degrees=15.0, scale=0.2, shear=0.25, elastic=0.06, thickness=0.4)
    )
    pens: PenConfig = field(default_factory=PenConfig)
    pen_share: float = 0.4
    """Share of a batch that the student sees as another pen's."""
    new_share: float = 0.25
    """Share of a batch that is figures laid over one another."""
    steps: int = 8000
    batch: int = 96
    learning_rate: float = 1.5e-3
    warmup_steps: int = 100
    decay_share: float = 0.8
    weight_decay: float = 5e-2
    scale: float = 16.0
    """Inverse temperature of the cosine softmax over the training classes."""
    imitation: float = 8.0
    """Weight of the cosine distance to the teacher's representation."""
    soft: float = 0.5
    """Share of the classification loss that follows the teacher's own posterior instead of the label."""
    seed: int = 0


class Student(nn.Module):
    """The encoder to be, with one direction per training class."""

    def __init__(self, encoder: JointEncoder, directions: Float[Tensor, "way embed"]) -> None:
        super().__init__()
        self.encoder = encoder
        self.directions = nn.Parameter(directions.clone())


def distil(config: DistilConfig, options: RunOptions) -> JointEncoder:
    """Train the student, save it under `options.directory/encoder`, and return it."""
    torch.manual_seed(config.seed)
    saved = read_encoder(config.teacher)
    if not isinstance(saved.config, JointConfig):
        raise ValueError(f"{config.teacher} is no encoder of several joined ones: there is nothing to distil")
    teacher = build_encoder(saved.config).eval().requires_grad_(False)
    saved.load_into(teacher)
    size = saved.config.image_size
    train = config.data.load_training(size, config.mirrored)
    validation = config.data.load("validation", size)
    encoder = JointEncoder(JointConfig((saved.config.parts[config.part],), saved.config.width))
    encoder.parts[0].load_state_dict(teacher.parts[config.part].state_dict())

    taught = _embeddings(teacher, train.images, options)
    fitted = torch.randperm(len(train), generator=torch.Generator().manual_seed(config.seed))[:FIT_ON]
    own = _embeddings(encoder.eval().side_by_side, train.images[fitted], options)
    encoder.project.weight.data.copy_(torch.linalg.lstsq(own, taught[fitted]).solution.T)
    encoder.train()
    means = torch.zeros(len(train.class_names), teacher.width).index_add_(0, train.labels, F.normalize(taught, dim=1))
    directions = F.normalize(means, dim=1)
    model = Student(encoder, directions)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=config.weight_decay, fused=True)
    run = Run(config, options, model, optimiser, config.seed)

    new = round(config.batch * config.new_share)
    logged, seen, sums = time.monotonic(), 0, torch.zeros(3)
    for _ in run.rounds(config.steps):
        step = run.state["step"]
        chosen = torch.randint(len(train), (config.batch - new,), generator=run.generator)
        labels = train.labels[chosen]
        over = laid_over(scale_bytes(train.images[torch.randint(len(train), (2 * new,), generator=run.generator)]), run)
        with torch.no_grad(), run.autocast():
            of_new = teacher(over).float()
        goal = F.normalize(torch.cat([taught[chosen], of_new]), dim=1)
        shown = jitter(torch.cat([scale_bytes(train.images[chosen]), over]), config.jitter, run.generator)
        by_other = torch.rand(config.batch, generator=run.generator) < config.pen_share
        shown[by_other] = other_pen(shown[by_other], config.pens, run.generator)

        with run.autocast():
            found = F.normalize(model.encoder(shown).float(), dim=1)
        apart = 1 - (found * goal).sum(1).mean()
        known = found[: len(chosen)]
        logits = config.scale * known @ F.normalize(model.directions, dim=1).T
        foreseen = (config.scale * goal[: len(chosen)] @ directions.T).softmax(1)
        wrong = F.cross_entropy(logits, labels)
        loss = config.imitation * apart + (1 - config.soft) * wrong + config.soft * F.cross_entropy(logits, foreseen)
        optimiser.zero_grad()
        loss.backward()
        run.average_gradients()
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(config, step)
        optimiser.step()
        run.state["step"] += 1

        seen += config.batch
        right = (logits.argmax(1) == labels).float().mean()
        sums += torch.stack([apart.detach(), wrong.detach(), right]) * config.batch
        elapsed = time.monotonic() - logged
        if elapsed > LOG_EVERY_SECONDS:
            figures = dict(zip(("apart", "loss", "accuracy"), (sums / seen).tolist(), strict=True))
            figures["images_per_second"] = seen * run.world / elapsed
            run.show(**figures)
            run.log(**figures)
            logged, seen, sums = time.monotonic(), 0, torch.zeros(3)
        if run.state["step"] % 1000 == 0 and run.rank == 0:
            run.log(**_validate(model.encoder, validation))
    if run.rank == 0:
        provenance = {
            "trained_as": "student of a larger encoder",
            "distillation": to_json(config),
            "split": config.data.split_name(),
            "split_hash": config.data.split_hash(),
            "steps": run.state["step"],
            "seconds": round(run.seconds),
            "commit": current_commit(),
            "validation": _validate(model.encoder, validation),
            "teacher": saved.provenance,
        }
        save_model(options.directory / "encoder", model.encoder, model.encoder.config, provenance, half=False)
    return model.encoder


def laid_over(images: Float[Tensor, "twice 1 height width"], run: Run) -> Float[Tensor, "image 1 height width"]:
    """Figures nobody has seen: two drawings, each strongly deformed, on one sheet; a third of them alone."""
    first, second = jitter(images, LAID_OVER, run.generator).chunk(2)
    alone = torch.rand(len(first), 1, 1, 1, generator=run.generator) < 1 / 3
    return torch.where(alone, first, torch.maximum(first, second))


def learning_rate(config: DistilConfig, step: int) -> float:
    warm = min(1.0, (step + 1) / config.warmup_steps)
    left = (config.steps - step) / (config.steps * config.decay_share)
    return config.learning_rate * min(warm, left, 1.0)


def _validate(encoder: nn.Module, validation: object) -> dict[str, float]:
    return {**one_shot_accuracy(encoder, validation), **digit_accuracy(encoder)}


@torch.no_grad()
def _embeddings(encoder: object, images: Tensor, options: RunOptions) -> Float[Tensor, "image embed"]:
    with options.autocast():
        return torch.cat([encoder(scale_bytes(part)).float() for part in images.split(256)])
