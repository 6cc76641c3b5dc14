"""One encoder taught by several that were joined, and taught to read other pens.

The teacher sees a drawing as it is. The student sees it deformed, sometimes as another pen would have left it, and must give
the teacher's representation. Beside the training classes there are figures laid over one another at random: neither was
trained on those, so the student learns how the teacher sees what is new. Printed characters have no teacher: the student
learns to tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from apl.config import JointConfig
from apl.data.jitter import JitterConfig, jitter
from apl.data.labelled import LabelledImages
from apl.data.source import DataSource, Mirrored
from apl.encoder import ImageEncoder, JointEncoder, scale_bytes
from apl.training.pretrain import DRAWINGS_OF_A_START, VALIDATE_EVERY_STEPS, class_directions, one_shot_accuracy
from apl.training.run import Run, RunOptions, plateau
from apl.training.saved_encoder import read_encoder
from apl.weights_file import save_model
from experiments.data.fonts import load_printed
from experiments.data.pens import other_pen

FIT_ON = 10_000
"""Drawings on which the student's first map into the teacher's space is fitted."""
LAID_OVER = JitterConfig(rotation_degrees=30.0, scale=0.4, shear=0.3, shift=0.35, elastic=0.08, thickness=0.0)
OTHER_HAND = JitterConfig(rotation_degrees=8.0, scale=0.2, shear=0.25, shift=0.05, elastic=0.05, thickness=0.0)
NEW_SHARE = 0.25
"""Share of the taught drawings that is figures laid over one another."""
SCALE = 16.0
"""Inverse temperature of the cosine softmax over the classes."""
IMITATION = 8.0
"""Weight of the cosine distance to the teacher's representation."""
SOFT = 0.5
"""Share of the classification loss that follows the teacher's own posterior instead of the label."""
WEIGHT_DECAY = 5e-2


@dataclass(frozen=True)
class DistilConfig:
    """The teacher, the student, and what the student sees."""

    teacher: str = "omniglot"
    """A bundled model's name, or the directory of a saved encoder or model whose encoder is several joined ones."""
    student_from: str | None = None
    """The encoder that the student starts as, of the teacher's width; by default the first of the teacher's networks. The
    teacher's space is rotated to the student's."""
    data: DataSource = field(default_factory=DataSource)
    mirrored: Mirrored = "for_encoder"
    printed_share: float = 0.0
    """Share of a batch that is printed characters of other scripts."""
    jitter: JitterConfig = field(
        default_factory=lambda: JitterConfig(rotation_degrees=15.0, scale=0.2, shear=0.25, elastic=0.06, thickness=0.4)
    )
    pen_share: float = 0.4
    """Share of a batch that the student sees as another pen's."""
    thinnest: int = 0
    """Pixels by which such a pen may be thinner; if any, the drawing is also deformed once more."""
    steps: int = 8000
    batch: int = 96
    learning_rate: float = 1.5e-3
    warmup_steps: int = 100
    decay_share: float = 0.8
    seed: int = 0

    def train(self, options: RunOptions) -> ImageEncoder:
        return distil(self, options)


class Student(nn.Module):
    """The encoder, with one direction per training class."""

    def __init__(self, encoder: ImageEncoder, directions: Float[Tensor, "way embed"]) -> None:
        super().__init__()
        self.encoder = encoder
        self.directions = nn.Parameter(directions.clone())


def distil(config: DistilConfig, options: RunOptions) -> ImageEncoder:
    """Train the student, save it under `options.directory/encoder`, and return it."""
    torch.manual_seed(config.seed)
    saved = read_encoder(config.teacher)
    if not isinstance(saved.config, JointConfig):
        raise ValueError(f"{config.teacher} is no encoder of several joined ones: there is nothing to distil")
    teacher = JointEncoder(saved.config)
    teacher.eval().requires_grad_(False)
    saved.load_into(teacher)
    size, here = saved.config.image_size, options.device
    train = config.data.load_training(size, config.mirrored)
    validation = config.data.load("validation", size)

    taught = _embeddings(teacher.to(here), train.images, options)
    encoder = _student(config, teacher, train.images, taught, options)
    turn = _turn(config, encoder, train.images, taught, options)
    taught = taught @ turn
    directions = class_directions(taught, train)
    printed = load_printed(size) if config.printed_share else None
    starts = [directions] if printed is None else [directions, _first_directions(encoder, printed, options)]
    model = Student(encoder.train(), torch.cat(starts))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=WEIGHT_DECAY, fused=True)
    run = Run(config, options, model, optimiser, config.seed)

    def drawings(source: LabelledImages, count: int) -> Int[Tensor, " drawing"]:
        return torch.randint(len(source), (count,), generator=run.generator)

    untaught = round(config.batch * config.printed_share)
    new = round((config.batch - untaught) * NEW_SHARE)
    for _ in run.rounds(config.steps):
        chosen = drawings(train, config.batch - untaught - new)
        over = laid_over(scale_bytes(train.images[drawings(train, 2 * new)].to(here)), run.generator)
        with torch.no_grad(), options.autocast():
            of_new = teacher(over).float() @ turn
        goal = F.normalize(torch.cat([taught[chosen.to(here)], of_new]), dim=1)
        images, truth = train.images[chosen], train.labels[chosen]
        if printed is not None:
            picked = drawings(printed, untaught)
            images = torch.cat([images, printed.images[picked]])
            truth = torch.cat([truth, printed.labels[picked] + len(train.class_names)])
        truth = truth.to(here)
        shown = as_seen(torch.cat([over, scale_bytes(images.to(here))]), config, run.generator)

        with options.autocast():
            found = F.normalize(model.encoder(shown).float(), dim=1)
        of_new, found = found.tensor_split([new])
        apart = 1 - (torch.cat([found[: len(chosen)], of_new]) * goal).sum(1).mean()
        logits = SCALE * found @ F.normalize(model.directions, dim=1).T
        foreseen = (SCALE * goal[: len(chosen)] @ directions.T).softmax(1)
        wrong = F.cross_entropy(logits, truth, reduction="none")
        guided = -(foreseen * logits[: len(chosen)].log_softmax(1)[:, : len(directions)]).sum(1)
        told = (1 - SOFT) * wrong[: len(chosen)] + SOFT * guided
        loss = IMITATION * apart + torch.cat([told, wrong[len(chosen) :]]).mean()
        step = run.state["step"]
        run.descend(loss, plateau(step, config.steps, config.learning_rate, config.decay_share, config.warmup_steps))
        right = (logits.argmax(1) == truth).float()
        run.record(config.batch, apart=apart, loss=wrong.mean(), accuracy=right[: len(chosen)].mean())
        if run.state["step"] % VALIDATE_EVERY_STEPS == 0:
            run.log(**one_shot_accuracy(model.encoder, validation))
    validated = {} if config.data.with_validation else one_shot_accuracy(model.encoder, validation)
    started = {"started_from": read_encoder(config.student_from).provenance} if config.student_from else {}
    provenance = run.provenance(
        "student of a larger encoder", config.data, validated, teacher=saved.provenance, **started
    )
    save_model(options.directory / "encoder", model.encoder, model.encoder.config, provenance, half=False)
    return model.encoder


def _student(
    config: DistilConfig, teacher: JointEncoder, images: Tensor, taught: Tensor, options: RunOptions
) -> ImageEncoder:
    """A saved encoder, or the teacher's first network with a map into the teacher's space."""
    if config.student_from is not None:
        return read_encoder(config.student_from).build().to(options.device)
    encoder = JointEncoder(JointConfig(teacher.config.parts[:1], teacher.width)).to(options.device)
    encoder.parts[0].load_state_dict(teacher.parts[0].state_dict())
    fitted = torch.randperm(len(images), generator=torch.Generator().manual_seed(config.seed))[:FIT_ON]
    encoder.eval()
    own = _embeddings(encoder.side_by_side, images[fitted], options)
    encoder.project.weight.data.copy_(_fitted_map(own, taught[fitted.to(taught.device)]))
    return encoder


def _turn(
    config: DistilConfig, student: ImageEncoder, images: Tensor, taught: Tensor, options: RunOptions
) -> Float[Tensor, "embed embed"]:
    """The rotation that brings the teacher's representations nearest to those the student starts with."""
    if config.student_from is None:
        return torch.eye(taught.shape[1], device=taught.device)
    fitted = torch.randperm(len(images), generator=torch.Generator().manual_seed(config.seed))[:FIT_ON]
    own = _embeddings(student.eval(), images[fitted], options)
    goal = taught[fitted.to(taught.device)]
    left, _, right = torch.linalg.svd(F.normalize(goal, dim=1).T.double() @ F.normalize(own, dim=1).double())
    turn: Tensor = (left @ right).float()
    return turn


def _first_directions(encoder: ImageEncoder, source: LabelledImages, options: RunOptions) -> Float[Tensor, "way embed"]:
    """Classes without a teacher start where the student sees the first of their drawings."""
    few = source.first_of_each(DRAWINGS_OF_A_START)
    return class_directions(_embeddings(encoder.eval(), few.images, options), few)


def as_seen(
    images: Float[Tensor, "image 1 height width"], config: DistilConfig, generator: torch.Generator
) -> Float[Tensor, "image 1 height width"]:
    """What the student sees of drawings: all deformed a little, some left by another pen and hand."""
    shown = jitter(images, config.jitter, generator)
    by_other = torch.rand(len(images), generator=generator) < config.pen_share
    others = shown[by_other]
    if config.thinnest and len(others):
        others = jitter(others, OTHER_HAND, generator)
    shown[by_other] = other_pen(others, generator, config.thinnest)
    return shown


def _fitted_map(own: Float[Tensor, "image own"], goal: Float[Tensor, "image embed"]) -> Float[Tensor, "embed own"]:
    """Least squares with a little ridge: layer-normalised numbers sum to zero, so one direction is empty."""
    own, goal = own.double().cpu(), goal.double().cpu()
    products = own.T @ own
    ridge = 1e-4 * products.diagonal().mean() * torch.eye(len(products), dtype=torch.float64)
    solved: Tensor = torch.linalg.solve(products + ridge, own.T @ goal).T.float()
    return solved


def laid_over(
    images: Float[Tensor, "twice 1 height width"], generator: torch.Generator
) -> Float[Tensor, "image 1 height width"]:
    """New figures: two drawings, each strongly deformed, on one canvas; a third of them alone."""
    first, second = jitter(images, LAID_OVER, generator).chunk(2)
    alone = torch.rand(len(first), 1, 1, 1, generator=generator).to(images.device) < 1 / 3
    return torch.where(alone, first, torch.maximum(first, second))


@torch.no_grad()
def _embeddings(
    encoder: Callable[[Tensor], Tensor], images: Tensor, options: RunOptions
) -> Float[Tensor, "image embed"]:
    with options.autocast():
        return torch.cat([encoder(scale_bytes(part.to(options.device))).float() for part in images.split(256)])
