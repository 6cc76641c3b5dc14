"""The paper's form on ImageNet: decoders of hidden width 1024 with fixed labels, a model for each number of classes.

Trained on the photographs of `train` behind the frozen encoder. They are too large to ship: `python -m experiments imagenet` trains
what it does not find under runs/, and continues a run that was stopped.

Deviation: two of the paper's eight blocks, a start that knows what labels are for, and few steps in half precision, so that
minutes of one core are enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apl.checkpoint import read_json
from apl.config import DecoderConfig, IdentityConfig, LearnerConfig
from apl.episode import EpisodeSampler, run_episode
from apl.learner import Learner
from apl.training.episodic import in_precision, next_episode_cap
from apl.training.run import Run, RunOptions
from apl.training.schedule import learning_rate
from experiments.training.decoder_start import start_by_copying

SHARPNESS, NONE_DISTANCE = 20.0, 1.5
"""Of the attention it starts with: near rows count, and "none" only where there is no row. A step of Adam moves such a number
by the learning rate, so a training hardly changes it."""


@dataclass(frozen=True)
class DecoderTraining:
    """How to train a decoder of fixed labels behind a frozen encoder."""

    way: int
    encoder: str = "lite0"
    hidden: int = 1024
    blocks: int = 2
    parallel: int = 16
    """Episodes run side by side: the more, the less can be gained by fitting the labels of one into the weights."""
    batch: int = 8
    """Photographs of each episode per step; many where there are many classes, so that a training sees whole episodes."""
    longest_episode: int = 4
    """Photographs per class."""
    steps: int = 200
    learning_rate: float = 3e-4
    decay: float = 0.5
    lowest_learning_rate: float = 1e-5
    decay_share: float | None = None
    seed: int = 0

    @property
    def directory(self) -> Path:
        return Path("runs") / f"imagenet-{self.encoder}-{self.way}way"

    @property
    def model(self) -> Path:
        return self.directory / "model"


def trainings(encoder: str) -> tuple[DecoderTraining, ...]:
    sizes = {20: (16, 8), 100: (8, 16), 1000: (2, 64)}
    return tuple(DecoderTraining(way, encoder, parallel=side, batch=batch) for way, (side, batch) in sizes.items())


def train(
    config: DecoderTraining,
    keys: Float[Tensor, "photo embed"],
    labels: Int[Tensor, " photo"],
    minutes: float | None = None,
) -> bool:
    """One step of Adam per batch of an episode, labels drawn anew for each (paper, section 2.2). Whether it is complete:
    a run that was stopped goes on where it was."""
    torch.manual_seed(config.seed)
    decoder = DecoderConfig(labels="fixed", way=config.way, hidden=config.hidden, blocks=config.blocks)
    learner = Learner(LearnerConfig(IdentityConfig(keys.shape[1], normalise=True), decoder, k=5))
    start_by_copying(learner.decoder, sharpness=SHARPNESS)
    torch.nn.init.constant_(learner.decoder.inputs.none_distance, NONE_DISTANCE)
    optimiser = torch.optim.Adam(learner.networks.parameters(), lr=config.learning_rate, fused=True)
    begun = (config.directory / "state.json").exists()
    options = RunOptions(config.directory, resume=begun, minutes=minutes, precision="bf16")
    run = Run(config, options, learner.networks, optimiser, config.seed)
    run.state.setdefault("episode_cap", math.inf)
    run.state.setdefault("accuracy", 0.0)
    sampler = EpisodeSampler(labels, run.generator)
    learner.train()
    for _ in run.rounds(config.steps):
        length = min(config.way * config.longest_episode, run.state["episode_cap"])
        episodes = sampler.online(config.way, int(length), config.parallel)
        memory, mastered = learner.new_memory(config.parallel), None
        for step in in_precision(run, run_episode(learner, memory, keys, episodes, config.batch)):
            loss = step.observation.surprise_nats.mean()
            run.descend(loss, learning_rate(config, run.state["step"]), 1.0)
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
    provenance = run.provenance("decoder of fixed labels", None, {}, training_accuracy=run.state["accuracy"])
    learner.eval().save(config.model, provenance)
    return True


def trained_decoders(encoder: str) -> Iterator[tuple[int, Learner, dict[str, Any]]]:
    """Those that lie under runs/: number of classes, learner, and how it was trained."""
    for config in trainings(encoder):
        if (config.model / "model.json").is_file():
            told = read_json(config.model / "model.json")["provenance"]
            parts = ("steps", "seconds", "commit", "training_accuracy")
            yield config.way, Learner.load(config.model).eval(), {part: told[part] for part in parts}
