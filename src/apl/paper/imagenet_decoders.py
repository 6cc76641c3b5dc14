"""The paper's form on ImageNet: decoders of hidden width 1024 with fixed labels, a model for each number of classes.

    python -m apl.paper.imagenet_decoders 20 --minutes 60        # trained on `train`, saved under runs/

They are too large to ship. `apl reproduce imagenet` measures those it finds under runs/, beside the one model for any N.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from jaxtyping import Float, Int
from torch import Tensor

from apl.checkpoint import current_commit, read_json
from apl.config import DecoderConfig, DecoderKind, IdentityConfig, LearnerConfig
from apl.episode import EpisodeSampler, run_episode
from apl.learner import Learner
from apl.training.episodic import next_episode_cap

HIDDEN = 1024


@dataclass(frozen=True)
class DecoderTraining:
    """How to train a decoder of fixed labels behind the frozen encoder."""

    way: Annotated[int, tyro.conf.Positional]
    kind: DecoderKind = "relational"
    hidden: int = HIDDEN
    encoder: str = "lite0"
    minutes: float = 60.0
    batch: int = 16
    parallel: int = 4
    """Episodes run side by side."""
    learning_rate: float = 1e-4
    seed: int = 0

    @property
    def directory(self) -> Path:
        return Path("runs") / f"imagenet-{self.encoder}-{self.kind}-{self.way}way" / "model"


def train(config: DecoderTraining, keys: Float[Tensor, "photo embed"], labels: Int[Tensor, " photo"]) -> Learner:
    """One step of Adam per batch of an episode, labels drawn anew for each (paper, section 2.2)."""
    torch.manual_seed(config.seed)
    decoder = DecoderConfig(kind=config.kind, labels="fixed", way=config.way, hidden=config.hidden)
    learner = Learner(LearnerConfig(IdentityConfig(keys.shape[1], normalise=True), decoder, k=5))
    optimiser = torch.optim.Adam(learner.networks.parameters(), lr=config.learning_rate, fused=True)
    sampler = EpisodeSampler(labels, torch.Generator().manual_seed(config.seed))
    started, steps, cap, accuracy = time.monotonic(), 0, float("inf"), 0.0
    learner.train()
    while time.monotonic() - started < 60 * config.minutes:
        episodes = sampler.online(config.way, None if cap == float("inf") else int(cap), config.parallel)
        memory, mastered = learner.new_memory(config.parallel), None
        for step in run_episode(learner, memory, keys, episodes, config.batch):
            loss = step.observation.surprise_nats.mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learner.networks.parameters(), 1.0)
            for group in optimiser.param_groups:
                group["lr"] = max(1e-5, config.learning_rate * 0.9 ** (steps / 1000))
            optimiser.step()
            steps += 1
            right = step.right.float()
            accuracy = 0.99 * accuracy + 0.01 * float(right.mean())
            if bool(right.all()):
                mastered = mastered or step.seen + config.batch
            late = time.monotonic() - started > 60 * config.minutes
            if late or (mastered and step.seen + config.batch >= 3 * mastered):
                break
        cap = next_episode_cap(cap, mastered, episodes.example.shape[1])
    provenance = {"steps": steps, "minutes": config.minutes, "commit": current_commit(), "training_accuracy": accuracy}
    learner.eval().save(config.directory, provenance)
    return learner


def trained_decoders(encoder: str) -> list[tuple[int, str, Learner, dict[str, object]]]:
    """Those that lie under runs/: number of classes, kind, learner, and how it was trained."""
    found = []
    for directory in sorted(Path("runs").glob(f"imagenet-{encoder}-*way/model")):
        learner = Learner.load(directory)
        decoder = learner.config.decoder
        found.append((decoder.way, decoder.kind, learner.eval(), read_json(directory / "model.json")["provenance"]))
    return found


if __name__ == "__main__":
    from apl.paper.photo_features import photo_features

    chosen = tyro.cli(DecoderTraining)
    data = photo_features(chosen.encoder, "train")
    train(chosen, torch.from_numpy(data.features), torch.from_numpy(data.labels))
