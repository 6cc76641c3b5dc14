"""Training on the number-analogy task (paper, section 4.5), on embeddings computed once.

The same learner, the same `run_episode`, one optimiser step per batch; only where episodes come from differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from apl.config import LearnerConfig
from apl.encoder import embed_all
from apl.evaluate import watch
from apl.learner import Learner
from apl.networks import TorchNetworks
from apl.training.episodic import descend_through
from apl.training.run import Run, RunOptions, plateau
from apl.training.saved_encoder import read_encoder
from experiments.data.analogy import SYMBOLS, AnalogySampler, Examples, Level, digit_examples

VALIDATION_EPISODES = 64


@dataclass(frozen=True)
class AnalogyConfig:
    """How to train a learner on the analogy task."""

    learner: LearnerConfig
    level: Level = "shuffled"
    digits_from: str = "digits"
    """The encoder of digits; it is not trained further."""
    parallel: int = 16
    batch: int = 4
    """Examples of each episode per step."""
    longest_episode: int = 60
    steps: int = 4000
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    decay_share: float = 0.6
    """The learning rate falls linearly to zero over this last share of the steps."""
    clip: float = 1.0
    seed: int = 0

    def rate(self, step: int) -> float:
        return plateau(step, self.steps, self.learning_rate, self.decay_share, self.warmup_steps)

    def train(self, options: RunOptions) -> Learner:
        return train_analogy(self, options)


def train_analogy(config: AnalogyConfig, options: RunOptions) -> Learner:
    """Train the decoder, save the learner under `options.directory/model`, and return it."""
    torch.manual_seed(config.seed)
    learner = Learner(config.learner)
    digits = read_encoder(config.digits_from)
    digits.load_into(learner.encoder.digit)
    twin = learner.to(options.device).on_embeddings()
    networks = cast(TorchNetworks, twin.networks)
    optimiser = torch.optim.Adam(networks.parameters(), lr=0.0, fused=True)
    run = Run(config, options, networks, optimiser, config.seed)
    sampler = embedded_sampler(learner, config.level, "train", run.generator)

    twin.train()
    for _ in run.rounds(config.steps):
        drawn = sampler.draw(config.parallel, config.longest_episode)
        descend_through(run, twin, drawn.inputs, drawn.episodes, config)
    learner.eval()
    split = "mnist: 45,000 images for the encoder, 10,000 for the decoder, 5,000 to validate"
    validated, encoders = validate(learner, config.level), {"digits": digits.provenance}
    provenance = run.provenance("learner on the analogy task", None, validated, split=split, encoders=encoders)
    learner.save(options.directory / "model", provenance)
    return learner


def embedded_sampler(
    learner: Learner, level: Level, part: Literal["train", "validation", "test"], generator: torch.Generator
) -> AnalogySampler:
    """Episodes for `learner.on_embeddings()`: digits and symbols as the learner's encoder sees them."""
    encoder, digits = learner.encoder, digit_examples(part)
    side = encoder.config.digit.image_size
    seen = embed_all(encoder.digit, digits.inputs.view(-1, 1, side, side))
    symbols = embed_all(encoder.symbol, torch.eye(SYMBOLS))
    return AnalogySampler(level, Examples(seen, digits.labels), symbols, generator)


def validate(learner: Learner, level: Level, seed: int = 0) -> dict[str, float]:
    """Online accuracy on combinations never seen, with digits held out of all training."""
    sampler = embedded_sampler(learner, level, "validation", torch.Generator().manual_seed(seed))
    drawn = sampler.draw(VALIDATION_EPISODES)
    result = watch(learner.eval().on_embeddings(), drawn.inputs, drawn.episodes)
    figures = {f"val_accuracy_after_{t}": float(around(result.correct, t).mean()) for t in (10, 20, 30, 50, 75)}
    return {**figures, "val_accuracy": result.accuracy().mean, "val_stored": result.stored_at_end().mean}


def around(values: Float[Tensor, "episode time"], seen: int, span: int = 5) -> Float[Tensor, " episode"]:
    """Each episode's mean over the examples shown after `seen` others, give or take half the span."""
    start = max(0, seen - span // 2)
    return values[:, start : start + span].mean(1)
