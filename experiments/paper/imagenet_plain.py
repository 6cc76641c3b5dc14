"""ImageNet in the paper's form: relational decoders of 8 blocks, 1024 wide, with fixed labels, from a random start.

One model for each number of classes, trained on the photographs of `train` behind the frozen encoder, keys without class names;
too large for the repository. `python -m experiments imagenet-plain --train` makes those that are missing under runs/ and goes on with a
run that was stopped. As in the paper no class is held out of the test: photographs of `val`, labels shuffled anew. The decoders of
20 and 100 labels are not shown the last 100 classes of `train`, on which they are validated; that of 1000 needs all.

Deviation: EfficientNet-Lite0 instead of Inception-ResNet-v2; half precision and a higher rate, for minutes of one core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tyro.conf import arg

from apl.checkpoint import read_description
from apl.config import DecoderConfig, IdentityConfig, LearnerConfig
from apl.episode import EpisodeSampler, run_episode
from apl.learner import Learner
from apl.training.episodic import in_precision, next_episode_cap
from apl.training.run import Run, RunOptions, plateau
from experiments.data.imagenet import CLASSES
from experiments.paper.imagenet import row, watch_episodes
from experiments.paper.photo_features import PhotoFeatures, photo_features
from experiments.paper.results import Row, load_rows, save_rows

NAME = "imagenet-plain"
ENCODER = "lite0"
PAPER_FORM, NEAREST = "the paper's form", "nearest neighbour"
EPISODES = {20: 50, 100: 20, 1000: 5}
VALIDATION_CLASSES = 100


@dataclass(frozen=True)
class DecoderTraining:
    """How to train a decoder of fixed labels behind a frozen encoder."""

    way: int
    hidden: int = 1024
    blocks: int = 8
    parallel: int = 8
    """Episodes run side by side: the more, the less can be gained by fitting the labels of one into the weights."""
    batch: int = 8
    """Photographs of each episode per step; many where there are many classes, so that a training sees whole episodes."""
    longest_episode: int = 6
    """Photographs per class."""
    steps: int = 2000
    learning_rate: float = 3e-4
    lowest_learning_rate: float = 1e-5
    decay_share: float = 0.4
    seed: int = 0

    @property
    def directory(self) -> Path:
        return Path("runs") / f"{NAME}-{self.way}way"

    @property
    def model(self) -> Path:
        return self.directory / "model"

    @property
    def trained(self) -> bool:
        return (self.model / "model.json").is_file()


TRAININGS = (
    DecoderTraining(20),
    DecoderTraining(100, parallel=4, batch=16),
    DecoderTraining(1000, parallel=1, batch=64, longest_episode=4),
)


@dataclass
class Command:
    """Measure the decoders there are; writes results/imagenet-plain.json."""

    train: bool = False
    """First train those that are missing; a run that was stopped goes on."""
    minutes: Annotated[float | None, arg(metavar="MINUTES")] = None
    """With --train: stop each training after this much time, to go on later."""
    quick: bool = False
    """A tenth of the episodes, in results/quick."""

    def run(self) -> None:
        torch.set_num_threads(1)
        if self.train:
            for config in TRAININGS:
                if not config.trained:
                    data = photo_features(ENCODER, "train")
                    ended = train(config, torch.from_numpy(data.features), torch.from_numpy(data.labels), self.minutes)
                    print(f"{config.directory.name}: {'trained' if ended else 'stopped'}", flush=True)
        reproduce(self.quick)


def train(
    config: DecoderTraining,
    keys: Float[Tensor, "photo embed"],
    labels: Int[Tensor, " photo"],
    minutes: float | None = None,
) -> bool:
    """One step of Adam per batch of an episode, labels drawn anew for each (paper, section 2.2). Whether it is complete."""
    torch.manual_seed(config.seed)
    learner = Learner(learner_config(config, keys.shape[1]))
    optimiser = torch.optim.Adam(learner.networks.parameters(), lr=config.learning_rate, fused=True)
    begun = (config.directory / "state.json").exists()
    options = RunOptions(config.directory, resume=begun, minutes=minutes, precision="bf16")
    run = Run(config, options, learner.networks, optimiser, config.seed)
    run.state.setdefault("episode_cap", math.inf)
    run.state.setdefault("accuracy", 0.0)
    shown = labels < shown_classes(config.way)
    keys_shown, sampler = keys[shown], EpisodeSampler(labels[shown], run.generator)
    learner.train()
    for _ in run.rounds(config.steps):
        length = min(config.way * config.longest_episode, run.state["episode_cap"])
        episodes = sampler.online(config.way, int(length), config.parallel)
        memory, mastered = learner.new_memory(config.parallel), None
        for step in in_precision(run, run_episode(learner, memory, keys_shown, episodes, config.batch)):
            loss = step.observation.surprise_nats.mean()
            rate = plateau(run.state["step"], config.steps, config.learning_rate, config.decay_share)
            run.descend(loss, max(config.lowest_learning_rate, rate), 1.0)
            right = step.right.float()
            run.state["accuracy"] = 0.98 * run.state["accuracy"] + 0.02 * float(right.mean())
            stored = float(memory.counts.mean()) / config.way
            run.record(right.numel(), accuracy=float(right.mean()), surprise_nats=loss, stored_per_class=stored)
            if bool(right.all()):
                mastered = mastered or step.seen + config.batch
            if (mastered and step.seen + config.batch >= 3 * mastered) or run.state["step"] >= config.steps:
                break
        run.state["episode_cap"] = next_episode_cap(run.state["episode_cap"], mastered, episodes.example.shape[1])
    if run.stopped_early:
        return False
    validation = validated(learner.eval(), keys[~shown], labels[~shown], config.way)
    provenance = run.provenance(
        "decoder of fixed labels",
        None,
        validation,
        training_accuracy=run.state["accuracy"],
        photographs=int(shown.sum()),
    )
    learner.save(config.model, provenance)
    return True


def learner_config(config: DecoderTraining, width: int) -> LearnerConfig:
    decoder = DecoderConfig(labels="fixed", way=config.way, hidden=config.hidden, blocks=config.blocks)
    return LearnerConfig(IdentityConfig(width, normalise=True), decoder)


def shown_classes(way: int) -> int:
    """The first so many classes are trained on."""
    return CLASSES if way > CLASSES - VALIDATION_CLASSES else CLASSES - VALIDATION_CLASSES


def validated(learner: Learner, keys: Tensor, labels: Tensor, way: int) -> dict[str, float]:
    """Accuracy over the last quarter of episodes with classes it was not trained on; nothing where there are none."""
    if not len(labels):
        return {}
    numbers = (labels - labels.min()).numpy()
    data = PhotoFeatures(keys.numpy(), numbers, numbers, "validation")
    result = watch_episodes(learner, keys, data, way, 10).result
    return {"val_accuracy": result.accuracy_last(result.correct.shape[1] // 4).mean}


def reproduce(quick: bool = False) -> None:
    """Measure what was trained, beside the nearest neighbour under the same rule; rows of models that are not at hand stay."""
    rows = load_rows(NAME, quick)
    data = photo_features(ENCODER, "val")
    keys = torch.from_numpy(data.features)
    for config in TRAININGS:
        if config.trained:
            rows = measured(config, keys, data, rows, EPISODES[config.way] // (10 if quick else 1) or 1)
            save_rows(NAME, rows, quick)
    save_rows(NAME, rows, quick)


def measured(config: DecoderTraining, keys: Tensor, data: PhotoFeatures, rows: list[Row], episodes: int) -> list[Row]:
    """The rows with those of this model, unless the same training was measured before."""
    provenance = read_description(config.model)["provenance"]
    trained = {name: provenance[name] for name in ("steps", "seconds", "commit", "validation", "training_accuracy")}
    before = [one for one in rows if one["way"] == config.way]
    if any(one.get("trained") == trained for one in before):
        return rows
    nearest = Learner(
        LearnerConfig(IdentityConfig(keys.shape[1], normalise=True), DecoderConfig(kind="nearest"))
    ).eval()
    learner = Learner.load(config.model).eval()
    about = {
        "decoder": "relational",
        "labels": "fixed",
        "rule": "plain",
        "trained": trained,
        "checkpoint": config.directory.name,
    }
    new = [
        row(PAPER_FORM, ENCODER, data, watch_episodes(learner, keys, data, config.way, episodes), **about),
        row(NEAREST, ENCODER, data, watch_episodes(nearest, keys, data, config.way, episodes), rule="plain"),
    ]
    return [one for one in rows if one not in before] + new
