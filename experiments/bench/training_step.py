"""A whole training step against the bare network: what episodes, recall, writing and bookkeeping add."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from tyro.conf import arg

from apl.checkpoint import current_commit, write_json
from apl.data.glyphs import draw_glyphs
from apl.data.labelled import LabelledImages
from apl.encoder import scale_bytes
from apl.episode import EpisodeSampler, Step, run_episode
from apl.learner import Learner
from apl.training.episodic import TrainConfig
from apl.training.run import Run, RunOptions
from experiments.bench.measurement import ratio, take_turns, threads
from experiments.data.embedded import image_size
from experiments.paper.results import RESULTS
from experiments.presets import PRESETS

CLASSES, DRAWINGS = 60, 20


@dataclass
class Command:
    """Time a training step: at most 1.15 times the bare network. Writes results/training-step.json."""

    rounds: Annotated[int, arg(metavar="TURNS")] = 60
    """Turns that each of the two takes."""

    def run(self) -> None:
        if self.rounds < 1:
            raise ValueError("rounds must be at least 1")
        with threads(1):
            result = training_step(self.rounds)
        about = {
            "rounds": self.rounds,
            "threads": 1,
            "versions": {"torch": torch.__version__},
            "commit": current_commit(),
        }
        write_json(RESULTS / "training-step.json", {**result, **about})
        print(result)


def training_step(rounds: int) -> dict[str, Any]:
    """The paper's network on 16 examples per step; the bare network gets the very tensors of such a step."""
    preset = PRESETS["paper-recipe"]
    assert isinstance(preset, TrainConfig)
    config = replace(preset, parallel=1)
    torch.manual_seed(0)
    learner = Learner(config.learner).train()
    with tempfile.TemporaryDirectory() as directory:
        optimiser = torch.optim.Adam(learner.networks.parameters(), lr=config.learning_rate, fused=True)
        run = Run(config, RunOptions(Path(directory) / "run"), learner.networks, optimiser, config.seed)
        whole = WholeStep(config, run, learner)
        bare = BareStep(copy.deepcopy(learner), *whole.tensors())
        seconds = take_turns({"whole": whole, "bare": bare}, rounds)
    return {
        "preset": "paper-recipe, one episode at a time",
        **{f"{name}_milliseconds": round(1e3 * median(times), 2) for name, times in seconds.items()},
        "ratio": round(ratio(seconds["whole"], seconds["bare"]), 3),
    }


class WholeStep:
    """One step as `train` takes it, on generated characters."""

    def __init__(self, config: TrainConfig, run: Run, learner: Learner) -> None:
        self.config, self.run, self.learner = config, run, learner
        drawn = draw_glyphs(CLASSES, DRAWINGS, np.random.default_rng(0), image_size(config.learner.encoder))
        glyphs = LabelledImages.of_glyphs(drawn)
        self.images = glyphs.images
        self.sampler = EpisodeSampler(glyphs.labels, run.generator)
        self.memory = learner.new_memory(config.parallel)
        self.steps = self._steps()

    def __call__(self) -> Step:
        step = next(self.steps)
        loss = step.observation.surprise_nats.mean()
        self.run.descend(loss, self.config.rate(self.run.state["step"]), self.config.clip)
        right = step.right
        stored = float(self.memory.counts.sum()) / self.config.parallel / self.config.ways[0]
        accuracy = float(right.float().mean())
        self.run.record(right.numel(), accuracy=accuracy, surprise_nats=loss, stored_per_class=stored)
        return step

    def _steps(self) -> Iterator[Step]:
        way = self.config.ways[0]
        while True:
            episodes = self.sampler.online(way, way * DRAWINGS, self.config.parallel)
            self.memory = self.learner.new_memory(self.config.parallel)
            yield from run_episode(self.learner, self.memory, self.images, episodes, self.config.batch, self._prepare)

    def _prepare(self, images: Tensor) -> Tensor:
        self.shown = images
        return images

    def tensors(self) -> tuple[Step, Tensor]:
        """A step with a well filled memory, and the images it saw."""
        for _ in range(3):
            step = self()
        return step, scale_bytes(self.shown)


class BareStep:
    """Forward through encoder and decoder, backward, optimiser: nothing else."""

    def __init__(self, learner: Learner, step: Step, images: Tensor) -> None:
        self.learner, self.images = learner, images
        prediction = step.observation.prediction
        queries = prediction.embedding.detach().flatten(0, 1)
        anywhere = np.zeros(step.label.shape, np.float32)
        self.neighbourhood = learner.networks.neighbourhood(queries, prediction.neighbours, anywhere)
        self.label = step.label.flatten()
        self.optimiser = torch.optim.Adam(learner.networks.parameters(), lr=1e-4, fused=True)

    def __call__(self) -> None:
        embedding = self.learner.encoder(self.images)
        posterior = self.learner.decoder(embedding, self.neighbourhood)
        loss = torch.nn.functional.nll_loss(posterior.log_probs, self.label)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
