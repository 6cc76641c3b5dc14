"""One encoder that has learnt from another, larger one, and to see through other pens.

The teacher (a saved encoder of images, the bundled ensemble for one) looks at a drawing as it is; the student sees
it deformed, half of the time by another pen, and must give the teacher's representation. Beside the training classes
there are figures laid over one another at random: nobody was trained on those, so there the teacher shows how it
sees what is new. The student's class directions start at the teacher's class means. Classes from elsewhere (printed
characters of other scripts, invented ones) have no teacher: the student learns to tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from apl.config import ConvConfig, JointConfig
from apl.data.jitter import JitterConfig, jitter
from apl.data.labelled import LabelledImages
from apl.data.pens import PenConfig, other_pen
from apl.data.source import DataSource, Mirrored
from apl.encoder import ConvEncoder, ImageEncoder, JointEncoder, scale_bytes
from apl.training.digits import digit_accuracy
from apl.training.pretrain import VALIDATE_EVERY_STEPS, one_shot_accuracy
from apl.training.run import Run, RunOptions
from apl.training.saved_encoder import read_encoder
from apl.training.schedule import plateau
from apl.weights_file import save_model

FIT_ON = 10_000
"""Drawings on which the student's first map into the teacher's space is fitted."""

LAID_OVER = JitterConfig(rotation_degrees=30.0, scale=0.4, shear=0.3, shift=0.35, elastic=0.08, thickness=0.0)


@dataclass(frozen=True)
class DistilConfig:
    """Who teaches whom, and what the student sees."""

    teacher: str = "omniglot"
    """A bundled model's name, or the directory of a saved encoder or model whose encoder is several joined ones."""
    part: int = 0
    """Which of the teacher's networks the student starts from (and is shaped like) ..."""
    student: ConvConfig | None = None
    """... unless it is this one; it may look at smaller images, and gives as many numbers as the teacher."""
    student_from: str | None = None
    """Weights that the student starts from. The teacher's space is turned to its own, so what reads it still can."""
    data: DataSource = field(default_factory=DataSource)
    mirrored: Mirrored = "for_encoder"
    elsewhere: tuple[DataSource, ...] = ()
    """Further classes, which the teacher was not trained on and does not teach."""
    elsewhere_share: float = 0.5
    """Share of a batch that is of those classes, if there are any."""
    jitter: JitterConfig = field(
        default_factory=lambda: JitterConfig(rotation_degrees=15.0, scale=0.2, shear=0.25, elastic=0.06, thickness=0.4)
    )
    pens: PenConfig = field(default_factory=PenConfig)
    pen_share: float = 0.4
    """Share of a batch that the student sees as another pen's."""
    other_hand: JitterConfig | None = None
    """How much further those are deformed."""
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
    size = saved.config.image_size
    train = config.data.load_training(size, config.mirrored)
    validation = config.data.load("validation", (config.student or saved.config).image_size)

    here = options.device
    teacher.to(here)
    taught = _embeddings(teacher, train.images, options)
    encoder = _student(config, teacher, train.images, taught, options)
    turn = _turn(config, encoder, train.images, taught, options)
    taught = taught @ turn
    means = torch.zeros(len(train.class_names), teacher.width, device=here)
    directions = F.normalize(means.index_add_(0, train.labels.to(here), F.normalize(taught, dim=1)), dim=1)
    elsewhere = _elsewhere(config, size)
    untaught = [_directions(encoder, source, options) for source in elsewhere]
    model = Student(encoder.train(), torch.cat([directions, *untaught]))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=config.weight_decay, fused=True)
    run = Run(config, options, model, optimiser, config.seed)

    def drawings(source: LabelledImages, count: int) -> Int[Tensor, " drawing"]:
        return torch.randint(len(source), (count,), generator=run.generator)

    untold = round(config.batch * config.elsewhere_share / len(elsewhere)) if elsewhere else 0
    taught_count = config.batch - untold * len(elsewhere)
    new = round(taught_count * config.new_share)
    for _ in run.rounds(config.steps):
        chosen = drawings(train, taught_count - new)
        over = laid_over(scale_bytes(train.images[drawings(train, 2 * new)].to(here)), run.generator)
        with torch.no_grad(), run.autocast():
            of_new = teacher(over).float() @ turn
        goal = F.normalize(torch.cat([taught[chosen.to(here)], of_new]), dim=1)
        images, labels, before = [train.images[chosen]], [train.labels[chosen]], len(train.class_names)
        for source in elsewhere:
            picked = drawings(source, untold)
            images.append(source.images[picked])
            labels.append(source.labels[picked] + before)
            before += len(source.class_names)
        truth = torch.cat(labels).to(here)
        shown = torch.cat([over, scale_bytes(torch.cat(images).to(here))])
        shown = as_seen(shown, config, run.generator)

        with run.autocast():
            found = F.normalize(model.encoder(resized(shown, encoder.config.image_size)).float(), dim=1)
        of_new, found = found.tensor_split([new])
        apart = 1 - (torch.cat([found[: len(chosen)], of_new]) * goal).sum(1).mean()
        logits = config.scale * found @ F.normalize(model.directions, dim=1).T
        foreseen = (config.scale * goal[: len(chosen)] @ directions.T).softmax(1)
        wrong = F.cross_entropy(logits, truth, reduction="none")
        guided = -(foreseen * logits[: len(chosen)].log_softmax(1)[:, : len(directions)]).sum(1)
        told = (1 - config.soft) * wrong[: len(chosen)] + config.soft * guided
        loss = config.imitation * apart + torch.cat([told, wrong[len(chosen) :]]).mean()
        run.descend(loss, plateau(config, run.state["step"]))
        right = (logits.argmax(1) == truth).float()
        of_others = {"elsewhere": right[len(chosen) :].mean()} if elsewhere else {}
        run.record(config.batch, {}, apart=apart, loss=wrong.mean(), accuracy=right[: len(chosen)].mean(), **of_others)
        if run.state["step"] % VALIDATE_EVERY_STEPS == 0 and run.rank == 0:
            run.log(**_validate(model.encoder, validation))
    if run.rank == 0:
        validated = {} if config.data.with_validation else _validate(model.encoder, validation)
        started = {"started_from": read_encoder(config.student_from).provenance} if config.student_from else {}
        provenance = run.provenance(
            "student of a larger encoder", config.data, validated, teacher=saved.provenance, **started
        )
        save_model(options.directory / "encoder", model.encoder, model.encoder.config, provenance, half=False)
    return model.encoder


def _student(
    config: DistilConfig, teacher: JointEncoder, images: Tensor, taught: Tensor, options: RunOptions
) -> ImageEncoder:
    """A network of its own, or one of the teacher's with a first map into the teacher's space."""
    if config.student is not None:
        own_network = ConvEncoder(config.student).to(options.device)
        if own_network.width != teacher.width:
            raise ValueError(f"the student gives {own_network.width} numbers where the teacher gives {teacher.width}")
        if config.student_from is not None:
            read_encoder(config.student_from).load_into(own_network)
        return own_network
    if config.student_from is not None:
        return read_encoder(config.student_from).build_for_images().to(options.device)
    encoder = JointEncoder(JointConfig((teacher.config.parts[config.part],), teacher.width)).to(options.device)
    encoder.parts[0].load_state_dict(teacher.parts[config.part].state_dict())
    fitted = torch.randperm(len(images), generator=torch.Generator().manual_seed(config.seed))[:FIT_ON]
    encoder.eval()
    own = _embeddings(encoder.side_by_side, images[fitted], options)
    encoder.project.weight.data.copy_(fitted_map(own, taught[fitted.to(taught.device)]))
    return encoder


def _turn(
    config: DistilConfig, student: ImageEncoder, images: Tensor, taught: Tensor, options: RunOptions
) -> Float[Tensor, "embed embed"]:
    """The rotation that brings the teacher's representations nearest to those the student starts with."""
    if config.student_from is None:
        return torch.eye(taught.shape[1], device=taught.device)
    fitted = torch.randperm(len(images), generator=torch.Generator().manual_seed(config.seed))[:FIT_ON]
    size = student.config.image_size
    own = _embeddings(lambda shown: student.eval()(resized(shown, size)), images[fitted], options)
    goal = taught[fitted.to(taught.device)]
    left, _, right = torch.linalg.svd(F.normalize(goal, dim=1).T.double() @ F.normalize(own, dim=1).double())
    turn: Tensor = (left @ right).float()
    return turn


def _elsewhere(config: DistilConfig, size: int) -> list[LabelledImages]:
    return [source.load_training(size, "none") for source in config.elsewhere]


def _directions(
    encoder: ImageEncoder, source: LabelledImages, options: RunOptions, drawings: int = 3
) -> Float[Tensor, "way embed"]:
    """Classes that nobody teaches start where the student sees the first of their drawings."""
    few = source.first_of_each(drawings)
    size = encoder.config.image_size
    own = _embeddings(lambda shown: encoder.eval()(resized(shown, size)), few.images, options)
    sums = torch.zeros(len(source.class_names), own.shape[1], device=own.device)
    return F.normalize(sums.index_add_(0, few.labels.to(own.device), F.normalize(own, dim=1)), dim=1)


def as_seen(
    images: Float[Tensor, "image 1 height width"], config: DistilConfig, generator: torch.Generator
) -> Float[Tensor, "image 1 height width"]:
    """What the student sees of drawings: all deformed a little, some left by another pen and hand."""
    shown = jitter(images, config.jitter, generator)
    by_other = torch.rand(len(images), generator=generator) < config.pen_share
    others = shown[by_other]
    if config.other_hand is not None and len(others):
        others = jitter(others, config.other_hand, generator)
    shown[by_other] = other_pen(others, config.pens, generator)
    return shown


def fitted_map(own: Float[Tensor, "image own"], goal: Float[Tensor, "image embed"]) -> Float[Tensor, "embed own"]:
    """Least squares with a little ridge: layer-normalised numbers sum to zero, so one direction is empty."""
    own, goal = own.double().cpu(), goal.double().cpu()
    products = own.T @ own
    ridge = 1e-4 * products.diagonal().mean() * torch.eye(len(products), dtype=torch.float64)
    solved: Tensor = torch.linalg.solve(products + ridge, own.T @ goal).T.float()
    return solved


def resized(images: Float[Tensor, "image 1 height width"], size: int) -> Float[Tensor, "image 1 size size"]:
    """As a smaller copy of the file would be: smoothed first."""
    if images.shape[-1] == size:
        return images
    return F.interpolate(images, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)


def laid_over(
    images: Float[Tensor, "twice 1 height width"], generator: torch.Generator
) -> Float[Tensor, "image 1 height width"]:
    """Figures nobody has seen: two drawings, each strongly deformed, on one sheet; a third of them alone."""
    if not len(images):
        return images
    first, second = jitter(images, LAID_OVER, generator).chunk(2)
    alone = torch.rand(len(first), 1, 1, 1, generator=generator).to(images.device) < 1 / 3
    return torch.where(alone, first, torch.maximum(first, second))


def _validate(encoder: ImageEncoder, validation: LabelledImages) -> dict[str, float]:
    return {**one_shot_accuracy(encoder, validation), **digit_accuracy(encoder)}


@torch.no_grad()
def _embeddings(
    encoder: Callable[[Tensor], Tensor], images: Tensor, options: RunOptions
) -> Float[Tensor, "image embed"]:
    with options.autocast():
        return torch.cat([encoder(scale_bytes(part.to(options.device))).float() for part in images.split(256)])
